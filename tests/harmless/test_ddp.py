"""A recorded job of data parallel training behaves, to the bit, like the bare job.

On two ranks run the cases whose code depends on the number of ranks; `make nightly` runs all cases
on two and on three ranks, where means are rounded and a group of two is not all ranks.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.warm import warm_python

JOB = Path(__file__).parent / "jobs" / "ddp_cases.py"
WORLDS = (2, 3)
OFTEN = [2, pytest.param(3, marks=pytest.mark.nightly)]
MOST = 3
PATIENCE_S = 250
GRACE_S = 20
MOST_DIFFERENCES = 12  # of those parts of a case that a message shows

Lines = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Launch:
    """The exit code of a job, and the lines that each of its ranks wrote."""

    exit_code: int | None
    errors: str
    ranks: tuple[Lines, ...]


@dataclass(frozen=True)
class Pair:
    """The same job, bare and recorded."""

    bare: Launch
    recorded: Launch


def functions_of_cases() -> dict[str, ast.FunctionDef]:
    """The functions of the job by the names in their decorators; the job is not imported."""
    found = {}
    for function in ast.parse(JOB.read_text(encoding="utf-8")).body:
        if isinstance(function, ast.FunctionDef):
            for decorator in function.decorator_list:
                match decorator:
                    case ast.Call(func=ast.Name("case"), args=[ast.Constant(name)]):
                        found[str(name)] = function
    return found


def depends_on_world(function: ast.FunctionDef) -> bool:
    """Whether a case uses the number of ranks, or makes groups of some of them."""
    for statement in function.body:
        for node in ast.walk(statement):
            match node:
                case ast.Name("world") | ast.Attribute(attr="new_group"):
                    return True
    return False


def names_of_cases(world: int, *, full: bool) -> list[str]:
    """The cases that run on so many ranks."""
    found = []
    for name, function in functions_of_cases().items():
        if full or world == MOST or depends_on_world(function):
            found.append(name)
    return found


def launch(world: int, names: list[str], folder: Path, before: list[str]) -> Launch:
    """Run cases under torchrun, which the words in front may wrap."""
    results = folder / "results"
    results.mkdir(parents=True)
    python = sys.executable
    if world != MOST:
        python = warm_python()
    torchrun = [python, "-m", "torch.distributed.run", "--standalone"]
    job = ["--nproc-per-node", str(world), str(JOB), "--out", str(results)]
    for name in names:
        job += ["--only", name]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    errors = folder / "errors"
    with open(errors, "wb") as sink:
        process = subprocess.Popen(
            [*before, *torchrun, *job],
            cwd=folder,
            env=environ,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
        exit_code = ended(process)
    told = errors.read_text(encoding="utf-8", errors="replace")
    ranks = tuple(lines_of(results / f"rank{rank}.json") for rank in range(world))
    return Launch(exit_code, told[-4000:], ranks)


def ended(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code; None for a job that had to be ended."""
    try:
        return process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return None


def lines_of(path: Path) -> Lines:
    """Return a rank's lines, without a last line that is incomplete."""
    if not path.exists():
        return {}
    whole = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines = [json.loads(line) for line in whole if line.endswith("\n")]
    return {line["case"]: line for line in lines}


@pytest.fixture(scope="session")
def pair_of(tmp_path_factory: pytest.TempPathFactory, is_nightly: bool) -> Callable[[int], Pair]:
    """Both launches of a number of ranks, made when they are first asked for."""

    @cache
    def launched(world: int) -> Pair:
        folder = tmp_path_factory.mktemp(f"ddp{world}")
        traces = str(folder / "traces")
        profkit = [sys.executable, "-m", "profkit", "run", "--output", traces, "--"]
        names = names_of_cases(world, full=is_nightly)
        bare = launch(world, names, folder / "bare", [])
        return Pair(bare, launch(world, names, folder / "recorded", profkit))

    return launched


def differences(bare: dict[str, Any] | None, recorded: dict[str, Any] | None) -> list[str]:
    """Describe the differences between both sides of a case."""
    if bare is None or recorded is None:
        sides = (("bare", bare), ("recorded", recorded))
        return [f"{name}: the job did not get there" for name, side in sides if side is None]
    if bare["digest"] == recorded["digest"]:
        return []
    if bare["outcome"] != recorded["outcome"]:
        return [f"bare: {bare['outcome']}", f"recorded: {recorded['outcome']}"]
    pairs = list(zip(bare["parts"], recorded["parts"], strict=False))
    found = []
    for (name, ours), (_, theirs) in pairs:
        if ours != theirs:
            here, there = shortened(ours, theirs), shortened(theirs, ours)
            found.append(f"{name}: bare {here}, recorded {there}")
    sizes = (len(bare["parts"]), len(recorded["parts"]))
    if sizes[0] != sizes[1]:
        found.append(f"parts: bare {sizes[0]}, recorded {sizes[1]}")
    more = [f"and {len(found) - MOST_DIFFERENCES} more"] if len(found) > MOST_DIFFERENCES else []
    return found[:MOST_DIFFERENCES] + more


def shortened(text: str, other: str, most: int = 160) -> str:
    """The text from shortly before the place where the other one differs."""
    pairs = enumerate(zip(text, other, strict=False))
    same = next((at for at, (ours, theirs) in pairs if ours != theirs), min(len(text), len(other)))
    start = max(same - 40, 0)
    cut = text[start : start + most]
    return ("..." if start else "") + cut + ("..." if start + most < len(text) else "")


@pytest.mark.parametrize("world", OFTEN)
def test_the_names_are_those_of_the_job(
    world: int, pair_of: Callable[[int], Pair], is_nightly: bool
) -> None:
    assert list(pair_of(world).bare.ranks[0]) == names_of_cases(world, full=is_nightly)
    assert len(names_of_cases(MOST, full=False)) > 150
    assert len(names_of_cases(2, full=False)) > 20


@pytest.mark.parametrize("world", OFTEN)
def test_both_jobs_end_well(world: int, pair_of: Callable[[int], Pair]) -> None:
    pair = pair_of(world)
    assert pair.bare.exit_code == 0, pair.bare.errors
    assert pair.recorded.exit_code == 0, pair.recorded.errors


def combinations() -> list[Any]:
    """Numbers of ranks with cases; all but those of two ranks are for the night."""
    found = []
    for world in WORLDS:
        usual = names_of_cases(world, full=False) if world == 2 else []
        for name in functions_of_cases():
            marks = [] if name in usual else [pytest.mark.nightly]
            found.append(pytest.param(world, name, marks=marks))
    return found


@pytest.mark.parametrize(("world", "name"), combinations())
def test_recorded_is_as_bare(world: int, name: str, pair_of: Callable[[int], Pair]) -> None:
    pair = pair_of(world)
    found = [
        f"rank {rank}: {difference}"
        for rank in range(world)
        for difference in differences(
            pair.bare.ranks[rank].get(name),
            pair.recorded.ranks[rank].get(name),
        )
    ]
    assert not found, "\n".join(["", *found])
