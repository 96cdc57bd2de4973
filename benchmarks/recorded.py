"""Record the runs of traces/ again, and check what a comparison of the first two says.

    python benchmarks/recorded.py [--attempts N] [NAME ...]

The commands are those of traces/README.md. A run replaces the old one only if it is whole, and the
pair of `PAIR` only if each direction has its verdict and its cause. Other work on the machine makes
the recordings worse, so each one waits for a quiet machine first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
TRACES = TOP / "traces"
README = TRACES / "README.md"
PAIR = "recorded-resnet50-workers-2", "recorded-resnet50-workers-0"
"""The quicker run and the slower one."""

CAUSE = "input_bound"
MOST_OTHERS = 0.1
"""A machine is quiet if its processes use fewer cores than this."""

WAIT_S, LOOK_S = 120, 5
"""A recording waits at most so long for a quiet machine, and looks at it for so long."""

ROW = re.compile(r"\| `(recorded-[\w-]+)` \| `profkit (.+?)` \|")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""One thread computes, so that workers of a loader have a core of their own on two cores."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="the runs to record (default: all)")
    parser.add_argument("--attempts", type=int, default=3)
    args = parser.parse_args()
    commands = dict(ROW.findall(README.read_text()))
    names = args.names or list(commands)
    others = [name for name in names if name not in PAIR]
    with tempfile.TemporaryDirectory() as folder:
        for name in others:
            keep(record(commands[name], Path(folder), name), name)
        if set(names) & {*PAIR}:
            for attempt in range(args.attempts):
                place = Path(folder, str(attempt))
                runs = [record(commands[name], place, name) for name in PAIR]
                if is_clear(*runs):
                    for run, name in zip(runs, PAIR, strict=True):
                        keep(run, name)
                    return 0
            print("no attempt gave a clear comparison, so the old pair is kept", file=sys.stderr)
            return 1
    return 0


def record(command: str, folder: Path, name: str) -> Path:
    """Run a command of the table when the machine is quiet; return the run."""
    wait_until_quiet()
    output = folder / name
    verb, *words = shlex.split(command)
    if "--" in words:  # the job is found next to this file, and its words name no folder
        words = [*words[: words.index("--")], "-o", str(output), *words[words.index("--") :]]
    else:
        words += ["-o", str(output)]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    profkit(verb, *words, environment={**os.environ, **ENVIRONMENT, "PATH": path})
    (run,) = (file.parent for file in output.glob("*/run.json"))
    profkit("verify", str(run))
    return run


def profkit(*words: str, environment: dict[str, str] | None = None) -> str:
    command = [sys.executable, "-m", "profkit", *words]
    print(shlex.join(["profkit", *words]), flush=True)
    done = subprocess.run(
        command,
        env=environment,
        cwd=Path(__file__).parent,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def wait_until_quiet() -> None:
    """Wait until other processes use hardly a core, but not for ever."""
    until = time.monotonic() + WAIT_S
    while (others := busy_cores()) > MOST_OTHERS:
        if time.monotonic() > until:
            print(f"other processes still use {others:.1f} cores", file=sys.stderr)
            return


def busy_cores() -> float:
    """Return the cores that all processes used while this one slept."""
    before = _busy_ticks()
    time.sleep(LOOK_S)
    return (_busy_ticks() - before) / os.sysconf("SC_CLK_TCK") / LOOK_S


def _busy_ticks() -> int:
    user, nice, system, _idle, _wait, *rest = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return user + nice + system + sum(rest)


def is_clear(quick: Path, slow: Path) -> bool:
    """Return true if both directions have a verdict, and its cause comes first."""
    expected = (((quick, slow), "regression"), ((slow, quick), "improvement"))
    return all(_is_said(runs, verdict) for runs, verdict in expected)


def _is_said(runs: Sequence[Path], verdict: str) -> bool:
    said = json.loads(profkit("explain", *map(str, runs), "--json"))
    kinds = [each["kind"] for each in said["causes"]]
    print(f"{said['verdict']}: {', '.join(kinds) or 'no cause'}")
    return bool(said["verdict"] == verdict and kinds[:1] == [CAUSE])


def keep(run: Path, name: str) -> None:
    """Put a run in the place of the one before."""
    shutil.rmtree(TRACES / name, ignore_errors=True)
    shutil.copytree(run, TRACES / name)


if __name__ == "__main__":
    sys.exit(main())
