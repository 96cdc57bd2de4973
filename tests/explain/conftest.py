"""Runs in which some steps of some ranks take longer in one phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from profkit.testing import synthetic_trace
from profkit.testing.synthetic_timeline import Ints, Longer
from profkit.trace import Trace

MS = 1_000_000

Added: TypeAlias = Callable[[Ints], Any]
"""Returns the ms that are added to steps, from their numbers."""

Make: TypeAlias = Callable[..., Trace]


def plant(phase: str, added: Added, ranks: tuple[int, ...] = ()) -> Longer:
    """Return what makes a phase, or what is `outside` all, longer on all or on some ranks."""

    def longer(name: str, ns: Ints) -> Ints:
        if name == phase:
            more = np.asarray(MS * added(np.arange(ns.shape[1])), dtype=np.int64)
            ns = ns.copy()
            ns[list(ranks or range(len(ns)))] += more
        return ns

    return longer


Sample: TypeAlias = tuple[int, int, str, str | None]
"""Its time, its place in `SCRIPT`, and the state and the system call of the thread."""

SCRIPT = (("main", 1), ("step", 40), ("evaluate", 89), ("hook", 97))
"""The functions of a job, and their lines; the first one calls the others."""


def set_samples(trace: Trace, rows: Sequence[Sample]) -> Trace:
    """Give a run of one rank samples of its stacks."""
    count, calls = len(rows), len(SCRIPT)
    vars(trace)["stacks"] = pa.table(
        {
            "rank": pa.array([0] * count, pa.int32()),
            "time_ns": pa.array([each[0] for each in rows], pa.int64()),
            "late_ns": pa.array([0] * count, pa.int64()),
            "every_ns": pa.array([10 * MS] * count, pa.int64()),
            "thread": pa.array(["MainThread"] * count).dictionary_encode(),
            "stack": pa.array([each[1] for each in rows], pa.int32()),
            "state": pa.array([each[2] or None for each in rows], pa.string()).dictionary_encode(),
            "call": pa.array([each[3] for each in rows], pa.string()).dictionary_encode(),
        }
    )
    vars(trace)["frames"] = pa.table(
        {
            "rank": pa.array([0] * calls, pa.int32()),
            "id": pa.array(range(calls), pa.int32()),
            "parent": pa.array([None, *[0] * (calls - 1)], pa.int32()),
            "file": pa.array(["/job/train.py"] * calls).dictionary_encode(),
            "function": pa.array([name for name, _ in SCRIPT]).dictionary_encode(),
            "line": pa.array([line for _, line in SCRIPT], pa.int32()),
            "origin": pa.array(["job"] * calls).dictionary_encode(),
        }
    )
    return trace


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return a function that writes a run; equal runs without plants are written once."""
    known: dict[str, Path] = {}

    def made(ranks: int = 1, seed: int = 1, longer: Longer | None = None, **more: Any) -> Trace:
        key = str((ranks, seed, sorted(more.items())))
        if longer is not None or key not in known:
            path = tmp_path_factory.mktemp("runs") / "run"
            options = {"steps": 200, **more}
            synthetic_trace(path, ranks=ranks, seed=seed, longer=longer, **options)
            if longer is not None:
                return Trace.open(path)
            known[key] = path
        return Trace.open(known[key])

    return made
