"""Run a command bare and under `profkit run`, and keep the results of each."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profkit.trace import Trace

PYTHON = sys.executable
PATIENCE_S = 240
NOT_HANDED_ON = ("PYTHONPATH", "PYTHONSTARTUP", "PYTHONUNBUFFERED", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Ended:
    """The exit code and output of a command, and its runs."""

    code: int
    out: str
    err: str
    runs: tuple[Path, ...]
    left: tuple[str, ...]  # files in the working folder

    @property
    def said(self) -> str:
        """Return the output of `profkit run`: before the job, and from its first line after it."""
        return "\n".join([*self._lines[0], *self._lines[2]])

    @property
    def own_errors(self) -> list[str]:
        """The job's own lines on stderr."""
        return self._lines[1]

    @property
    def _lines(self) -> tuple[list[str], list[str], list[str]]:
        """The lines on stderr before those of the job, its own, and those after them."""
        lines = self.err.splitlines()
        ours = [line.startswith("profkit:") for line in lines]
        begin = ours.index(False) if False in ours else len(lines)
        end = ours.index(True, begin) if True in ours[begin:] else len(lines)
        return lines[:begin], lines[begin:end], lines[end:]

    @property
    def ranks(self) -> list[str]:
        """The folders of ranks in all runs."""
        return sorted(rank.name for run in self.runs for rank in run.glob("r[0-9]*"))

    @property
    def is_recorded(self) -> bool:
        return bool(self.ranks)

    def steps(self) -> int:
        """Return the number of steps in the only run."""
        assert len(self.runs) == 1, (self.runs, self.err)
        rows: int = Trace.open(self.runs[0]).steps.num_rows
        return rows


def run(
    command: Sequence[object],
    folder: Path,
    *,
    recorded: bool,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    stdin: Path | None = None,
    patience: float = PATIENCE_S,
) -> Ended:
    """Run a command in a new folder; a whole process group is ended when it hangs."""
    kind = "recorded" if recorded else "bare"
    place = folder / kind / "cwd"
    place.mkdir(parents=True)
    traces = folder / kind / "traces"
    words = list(map(str, command))
    if recorded:
        words = [PYTHON, "-m", "profkit", "run", "--output", str(traces), *options, "--", *words]
    clean = {name: value for name, value in os.environ.items() if _is_handed_on(name)}
    clean |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **(env or {})}
    outputs = folder / kind / "stdout", folder / kind / "stderr"
    with (
        open(outputs[0], "w") as out,
        open(outputs[1], "w") as err,
        open(stdin or os.devnull) as given,
    ):
        process = subprocess.Popen(
            words,
            cwd=place,
            env=clean,
            stdin=given,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = -1000  # no signal has this number
    return Ended(
        code,
        outputs[0].read_text(errors="replace"),
        outputs[1].read_text(errors="replace"),
        tuple(sorted(traces.iterdir())) if traces.is_dir() else (),
        tuple(sorted(str(path.relative_to(place)) for path in place.rglob("*"))),
    )


def _is_handed_on(name: str) -> bool:
    return not name.startswith("PROFKIT_") and name not in NOT_HANDED_ON


def cases_in(script: Path) -> list[str]:
    """The functions of a script that are decorated as cases; the script is not imported."""
    body = ast.parse(script.read_text()).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    return [function.name for function in functions if _is_case(function)]


def _is_case(function: ast.FunctionDef) -> bool:
    names = [one.id for one in function.decorator_list if isinstance(one, ast.Name)]
    return "case" in names
