"""Phases and what no phase covers add up to the wall clock, for whatever spans there are."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.frame.phases import UNKNOWN, StepTimes, step_times
from profkit.vocab import PHASES
from tests.analysis.tables import Span, Step, spans_table, steps_table

MAIN, OTHER_THREAD = "MainThread", "loader-pin"
STRANGE = "postprocess"


def _split(times: StepTimes) -> dict[str, list[float]]:
    return {name: row.tolist() for name, row in zip(times.names, times.parts, strict=True)}


def _of(steps: list[Step], spans: list[Span], used: list[int]) -> StepTimes:
    return step_times(steps_table(steps), spans_table(spans), np.array(used, dtype=np.int64))


def _parent(span: Span, spans: list[Span]) -> Span | None:
    """Return the last span one level up that began before this one, if it holds it."""
    above = [
        other
        for other in spans
        if (other.rank, other.thread, other.depth) == (span.rank, span.thread, span.depth - 1)
        and other.start_ns <= span.start_ns
    ]
    last = max(above, key=lambda other: (other.start_ns, other.end_ns), default=None)
    return last if last is not None and last.end_ns >= span.end_ns else None


def _own_times(spans: list[Span]) -> list[int]:
    own = {id(span): span.end_ns - span.start_ns for span in spans}
    for span in spans:
        parent = _parent(span, spans) if span.depth else None
        if parent is not None:
            own[id(parent)] -= span.end_ns - span.start_ns
    return [own[id(span)] for span in spans]


def _threads_of_steps(spans: list[Span]) -> dict[int, str]:
    """Return each rank's thread with the most time at the top; of two, the one named first."""
    seen = list(dict.fromkeys(span.thread for span in spans))
    total: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for span in spans:
        total[span.rank][span.thread] += 0 if span.depth else span.end_ns - span.start_ns
    return {
        rank: max(threads, key=lambda name: (threads[name], -seen.index(name)))
        for rank, threads in total.items()
    }


def _split_by_brute_force(
    steps: list[Step], spans: list[Span], used: list[int]
) -> tuple[list[float], dict[str, list[float]]]:
    ranks = max(1, len({row.rank for row in steps}))
    wall = {
        number: sum(row.end_ns - row.start_ns for row in steps if row.step == number)
        for number in used
    }
    thread = _threads_of_steps(spans)
    time: dict[tuple[str, int], int] = defaultdict(int)
    for span, own in zip(spans, _own_times(spans), strict=True):
        if span.step in wall and span.phase in PHASES and thread[span.rank] == span.thread:
            time[span.phase, span.step] += own
    parts = {phase: [time[phase, number] / ranks for number in used] for phase in PHASES}
    parts = {phase: row for phase, row in parts.items() if any(row)}
    parts[UNKNOWN] = [
        (wall[number] - sum(time[phase, number] for phase in PHASES)) / ranks for number in used
    ]
    return [wall[number] / ranks for number in used], parts


def _nested(seed: int, *, ranks: int, steps: int) -> tuple[list[Step], list[Span]]:
    """Return a random run of nested regions, lost rows, other threads and odd names."""
    draw = random.Random(seed)
    step_rows: list[Step] = []
    spans: list[Span] = []
    for rank in range(ranks):
        now = draw.randrange(10**15)
        for step in range(steps):
            begin = now
            for thread in (MAIN, OTHER_THREAD) if draw.random() < 0.3 else (MAIN,):
                now = max(
                    now,
                    _fill(
                        draw, spans, rank, step, thread, 0, begin, begin + draw.randrange(1, 10**7)
                    ),
                )
            now += draw.randrange(1000)
            if draw.random() < 0.9:
                step_rows.append(Step(rank, step, begin, now))
    draw.shuffle(spans)
    return step_rows, spans


def _fill(
    draw: random.Random,
    spans: list[Span],
    rank: int,
    step: int,
    thread: str,
    depth: int,
    begin: int,
    end: int,
) -> int:
    """Add nested regions one after the other between two moments; return where the last ends."""
    at = begin
    while at < end and draw.random() < 0.65:
        start = draw.randint(at, end)
        at = draw.randint(start, end)
        if depth < 2:
            _fill(draw, spans, rank, step, thread, depth + 1, start, at)
        if draw.random() < 0.95:  # else its row was lost
            owner = None if draw.random() < 0.05 else step
            spans.append(
                Span(rank, owner, draw.choice([*PHASES, STRANGE]), depth, thread, start, at)
            )
    return at


any_spans = st.lists(
    st.builds(
        lambda rank, step, phase, depth, thread, start, length: Span(
            rank, step, phase, depth, thread, start, start + length
        ),
        st.integers(0, 2),
        st.one_of(st.none(), st.integers(-1, 9)),
        st.sampled_from([*PHASES, STRANGE]),
        st.integers(0, 3),
        st.sampled_from([MAIN, OTHER_THREAD]),
        st.integers(0, 50),
        st.integers(0, 30),
    ),
    max_size=40,
)


def _agrees(steps: list[Step], spans: list[Span], used: list[int]) -> None:
    found = _of(steps, spans, used)
    wall, parts = _split_by_brute_force(steps, spans, used)
    assert found.wall_ns.tolist() == pytest.approx(wall)
    assert found.names == tuple(parts)
    for name, row in _split(found).items():
        assert row == pytest.approx(parts[name], rel=1e-12, abs=1e-3), name
    np.testing.assert_allclose(found.parts.sum(axis=0), found.wall_ns, rtol=1e-12, atol=1e-3)


@given(seed=st.integers(0, 2**32), ranks=st.integers(1, 3), steps=st.integers(1, 4), data=st.data())
def test_a_brute_force_splits_a_nested_run_in_the_same_way(
    seed: int, ranks: int, steps: int, data: st.DataObject
) -> None:
    step_rows, spans = _nested(seed, ranks=ranks, steps=steps)
    _agrees(step_rows, spans, sorted(data.draw(st.sets(st.integers(0, steps - 1)))))


@given(spans=any_spans, used=st.sets(st.integers(-1, 9)))
def test_a_brute_force_splits_whatever_spans_there_are_in_the_same_way(
    spans: list[Span], used: set[int]
) -> None:
    steps = [
        Step(rank, step, step * 10, step * 10 + 10)
        for rank in range(3)
        for step in range(-1, 10)
        if (rank, step) != (1, 4)
    ]
    _agrees(steps, spans, sorted(used))


def test_phases_and_the_unknown_are_the_wall_clock() -> None:
    spans = [Span(0, 0, "data", 0, MAIN, 0, 30), Span(0, 0, "forward", 0, MAIN, 35, 75)]
    assert _split(_of([Step(0, 0, 0, 100)], spans, [0])) == {
        "data": [30],
        "forward": [40],
        UNKNOWN: [30],
    }


def test_the_unknown_may_be_negative() -> None:
    spans = [Span(0, 0, "forward", 0, MAIN, 0, 130)]
    assert _split(_of([Step(0, 0, 0, 100)], spans, [0]))[UNKNOWN] == [-30]


def test_what_runs_inside_the_optimizer_counts_for_its_own_phase() -> None:
    """Lightning runs forward and backward, with the exchange in it, in `optimizer.step`."""
    spans = [
        Span(0, 0, "optimizer", 0, MAIN, 0, 100),
        Span(0, 0, "forward", 1, MAIN, 5, 25),
        Span(0, 0, "backward", 1, MAIN, 25, 85),
        Span(0, 0, "allreduce", 2, MAIN, 70, 85),
    ]
    found = _split(_of([Step(0, 0, 0, 100)], spans, [0]))
    assert found == {
        "forward": [20],
        "backward": [45],
        "allreduce": [15],
        "optimizer": [20],
        UNKNOWN: [0],
    }


def test_a_region_of_the_same_phase_stays_with_it() -> None:
    spans = [
        Span(0, 0, "forward", 0, MAIN, 0, 60),
        Span(0, 0, "forward", 1, MAIN, 10, 20),
        Span(0, 0, "forward", 2, MAIN, 12, 14),
    ]
    assert _split(_of([Step(0, 0, 0, 100)], spans, [0])) == {"forward": [60], UNKNOWN: [40]}


def test_of_two_regions_that_began_at_one_moment_the_longer_one_holds_what_is_inside() -> None:
    spans = [
        Span(0, 0, "data", 0, MAIN, 0, 60),
        Span(0, 0, "h2d", 0, MAIN, 0, 0),
        Span(0, 0, "other", 1, MAIN, 0, 20),
    ]
    for rows in (spans, spans[::-1]):
        assert _split(_of([Step(0, 0, 0, 100)], rows, [0])) == {
            "data": [40],
            "other": [20],
            UNKNOWN: [40],
        }


def test_a_region_of_no_step_is_not_taken_for_one_of_a_step_below_zero() -> None:
    spans = [Span(0, None, "data", 0, MAIN, 0, 60)]
    assert _split(_of([Step(0, -1, 0, 100)], spans, [-1])) == {UNKNOWN: [100]}


def test_a_region_of_no_known_phase_is_unknown_also_inside_a_phase() -> None:
    spans = [
        Span(0, 0, "forward", 0, MAIN, 0, 60),
        Span(0, 0, STRANGE, 1, MAIN, 10, 20),
        Span(0, 0, STRANGE, 0, MAIN, 70, 80),
    ]
    assert _split(_of([Step(0, 0, 0, 100)], spans, [0])) == {"forward": [50], UNKNOWN: [50]}


def test_a_region_whose_outer_one_was_lost_counts_for_its_own_phase() -> None:
    spans = [Span(0, 0, "backward", 0, MAIN, 0, 40), Span(0, 0, "allreduce", 1, MAIN, 50, 60)]
    assert _split(_of([Step(0, 0, 0, 100)], spans, [0])) == {
        "backward": [40],
        "allreduce": [10],
        UNKNOWN: [50],
    }


def test_other_threads_overlap_and_are_not_part_of_the_wall() -> None:
    spans = [Span(0, 0, "forward", 0, MAIN, 0, 90), Span(0, 0, "data", 0, OTHER_THREAD, 0, 80)]
    assert _split(_of([Step(0, 0, 0, 100)], spans, [0])) == {"forward": [90], UNKNOWN: [10]}


def test_each_rank_has_its_own_thread_that_runs_the_steps() -> None:
    steps = [Step(0, 0, 0, 100), Step(1, 0, 0, 100)]
    spans = [
        Span(0, 0, "forward", 0, MAIN, 0, 90),
        Span(1, 0, "forward", 0, "trainer", 0, 70),
        Span(1, 0, "data", 0, MAIN, 0, 60),
    ]
    assert _split(_of(steps, spans, [0])) == {"forward": [80], UNKNOWN: [20]}


def test_spans_of_steps_that_are_not_used_and_of_no_step_do_not_count() -> None:
    steps = [Step(0, number, number * 100, number * 100 + 100) for number in range(3)]
    spans = [
        Span(0, 0, "forward", 0, MAIN, 0, 50),
        Span(0, 1, "forward", 0, MAIN, 100, 160),
        Span(0, None, "forward", 0, MAIN, 160, 170),
    ]
    assert _split(_of(steps, spans, [1, 2])) == {"forward": [60, 0], UNKNOWN: [40, 100]}


def test_samples_are_those_of_all_ranks_and_time_is_the_mean_over_them() -> None:
    steps = [Step(0, 0, 0, 100, sample_count=8), Step(1, 0, 0, 300, sample_count=8)]
    found = _of(steps, [], [0])
    assert (found.samples.tolist(), found.wall_ns.tolist()) == ([16], [200])


@pytest.mark.parametrize("used", [[], [7]])
def test_nothing_to_split_is_no_error(used: list[int]) -> None:
    assert _split(_of([], [], used)) == {UNKNOWN: [0.0] * len(used)}
