"""The rank that works longer than the others is found, whatever slows all of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from profkit.frame.columns import durations, split_ranks
from profkit.frame.estimate import Ints
from profkit.frame.lateness import RankWork, work_of
from profkit.frame.phases import UNKNOWN
from profkit.frame.rank_sums import sum_spans
from tests.analysis.tables import Span, Step, spans_table, steps_table

STEPS = 40


def _work(late_ns: int, where: str = "forward") -> tuple[list[Step], list[Span]]:
    """Return three ranks with steps as long as the latest's, under much larger common noise."""
    noise = np.random.default_rng(0).integers(0, 50_000, STEPS).tolist()
    steps, spans = [], []
    for number, slow in enumerate(noise):
        begin = number * 1_000_000
        for rank in range(3):
            late = late_ns if rank == 2 else 0
            ends = begin + 10_000 + slow + (late if where == "forward" else 0)
            meeting = begin + 10_000 + slow + late_ns
            steps.append(Step(rank, number, begin, meeting + 500))
            spans.append(Span(rank, number, "forward", 0, "MainThread", begin, ends))
            spans.append(
                Span(
                    rank,
                    number,
                    "allreduce",
                    0,
                    "MainThread",
                    ends + (late if where == UNKNOWN else 0),
                    meeting,
                )
            )
    return steps, spans


def _of(steps: pa.Table, spans: pa.Table, used: Ints) -> RankWork:
    own, times = split_ranks(spans), []
    for rank, rows in split_ranks(steps).items():
        wall_ns = durations(rows.sort_by("step"))[used]
        times.append((rank, sum_spans(own[rank], used).exposed, wall_ns))
    return work_of(times)


@pytest.mark.parametrize("where", ["forward", UNKNOWN])
def test_a_late_rank_is_found_below_noise_that_all_share(where: str) -> None:
    steps, spans = _work(3_000, where)
    late = _of(steps_table(steps), spans_table(spans), np.arange(STEPS)).latest()
    assert late is not None
    assert (late.rank, late.phase) == (2, where)
    assert (late.excess.value, late.excess.low, late.whole_ns) == pytest.approx(
        (3_000, 3_000, 3_000)
    )


def test_ranks_that_work_alike_are_not_late() -> None:
    steps, spans = _work(0)
    late = _of(steps_table(steps), spans_table(spans), np.arange(STEPS)).latest()
    assert late is not None
    assert late.excess.value == 0


def test_one_rank_alone_is_late_for_nobody() -> None:
    steps, spans = _work(3_000)
    alone = [row for row in steps if row.rank == 2], [row for row in spans if row.rank == 2]
    work = _of(steps_table(alone[0]), spans_table(alone[1]), np.arange(STEPS))
    assert work.latest() is None
    assert work.lateness(0, "forward") is None
    assert work.lateness(2, "forward") is None


def test_steps_that_are_not_used_do_not_count() -> None:
    steps, spans = _work(3_000)
    used = np.array([3, 4, 7, 8, 9, 20, 21, 22, 30])
    work = _of(steps_table(steps), spans_table(spans), used)
    assert work.ns.shape == (3, len(work.phases), len(used))
    assert work.ns.sum(axis=1)[0, 1] == work.ns.sum(axis=1)[1, 1]
