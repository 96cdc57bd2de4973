"""The rank that the others wait for since a change: named if it is surely the one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from profkit.analysis.run_change import LateSince
from profkit.analysis.run_changes import find_late, works_of
from tests.analysis.tables import Span, Step, spans_table, steps_table

MS = 1_000_000
BEFORE = 100
USUAL_MS, WAIT_MS = 80.0, 5.0

Floats = npt.NDArray[np.float64]


def _find(work: Floats, wait: Floats) -> LateSince | None:
    """Look for the late rank of a job with this work by (rank, step), and waits for the network."""
    rows, spans = [], []
    whole = work.max(axis=0) + wait
    for rank, own in enumerate(work):
        start = 1_000.0 * MS
        for step, (ns, end) in enumerate(zip(own, start + np.cumsum(whole), strict=True)):
            places = [int(each) for each in (start, start + ns / 2, start + ns, end)]
            rows.append(Step(rank, step, places[0], places[-1]))
            for number, phase in enumerate(("forward", "backward", "allreduce")):
                span = Span(rank, step, phase, 0, "MainThread", *places[number : number + 2])
                spans.append(span)
            start = end
    change_ns = float(whole[BEFORE:].mean() - whole[:BEFORE].mean())
    before, after = np.arange(BEFORE), np.arange(BEFORE, work.shape[1])
    return find_late(works_of(steps_table(rows), spans_table(spans)), before, after, change_ns)


def _work(seed: int, ranks: int, after: int) -> tuple[Floats, Floats]:
    noise = np.random.default_rng(seed).standard_normal((ranks, BEFORE + after))
    return USUAL_MS * MS * np.exp(0.03 * noise), np.full(BEFORE + after, WAIT_MS * MS)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_slower_network_makes_no_rank_late(ranks: int) -> None:
    """Over few steps, the ranks' own noise differs by half of a small change."""
    found = 0
    for seed in range(25):
        work, wait = _work(seed, ranks, after=12)
        wait[BEFORE:] += 2.5 * MS
        found += _find(work, wait) is not None
    assert found <= 2


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_surely_late_is_named(ranks: int) -> None:
    for seed in range(5):
        work, wait = _work(seed, ranks, after=30)
        work[1, BEFORE:] += 8 * MS
        found = _find(work, wait)
        assert found is not None
        assert (found.rank, found.phase) in {(1, "forward"), (1, "backward")}
        assert found.later_ns == pytest.approx(8 * MS, rel=0.3)
