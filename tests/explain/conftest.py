"""Runs in which some steps of some ranks take longer in one phase."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
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
