"""A recorded job of data parallel training behaves, to the bit, like the bare job."""

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

JOB = Path(__file__).parent / "jobs" / "ddp_cases.py"
WORLDS = (2, 3)
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


def names_of_cases() -> list[str]:
    """The names in the decorators of the job, which is not imported."""
    tree = ast.parse(JOB.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    decorators = [decorator for function in functions for decorator in function.decorator_list]
    return [
        str(decorator.args[0].value)
        for decorator in decorators
        if isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Name)
        and decorator.func.id == "case"
        and isinstance(decorator.args[0], ast.Constant)
    ]


def launch(world: int, folder: Path, before: list[str]) -> Launch:
    """Run all cases under torchrun, which the words in front may wrap."""
    results = folder / "results"
    results.mkdir(parents=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    job = ["--nproc-per-node", str(world), str(JOB), "--out", str(results)]
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
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Pair]:
    """Both launches of a number of ranks, made when they are first asked for."""

    @cache
    def launched(world: int) -> Pair:
        folder = tmp_path_factory.mktemp(f"ddp{world}")
        traces = str(folder / "traces")
        profkit = [sys.executable, "-m", "profkit", "run", "--output", traces, "--"]
        bare = launch(world, folder / "bare", [])
        return Pair(bare, launch(world, folder / "recorded", profkit))

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


def test_the_names_are_those_of_the_job(pair_of: Callable[[int], Pair]) -> None:
    assert list(pair_of(2).bare.ranks[0]) == names_of_cases()


@pytest.mark.parametrize("world", WORLDS)
def test_both_jobs_end_well(world: int, pair_of: Callable[[int], Pair]) -> None:
    pair = pair_of(world)
    assert pair.bare.exit_code == 0, pair.bare.errors
    assert pair.recorded.exit_code == 0, pair.recorded.errors


@pytest.mark.parametrize("name", names_of_cases())
@pytest.mark.parametrize("world", WORLDS)
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
