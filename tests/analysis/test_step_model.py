"""Steps replayed from models with known answers, and from runs whose twins are known."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from profkit.analysis.whatif.changes import (
    expected_maximum,
    extrapolated_maximum,
    find_latency,
    level_out,
    reduce_evenly,
    reduce_peaks,
    remove_trend,
    scale_links,
    shift_parts,
    with_loaders,
    without_transfers,
)
from profkit.analysis.whatif.loader_model import LoaderLine
from profkit.analysis.whatif.meetings import Events, Meetings, ReplayError
from profkit.analysis.whatif.step_model import (
    DATA,
    EXCHANGE,
    MOST_STEPS,
    PARTS,
    Line,
    StepModel,
    build_model,
    choose_steps,
)
from profkit.analysis.whatif.step_replay import replay
from profkit.frame.columns import split_ranks
from profkit.frame.run_frame import frame_of
from profkit.testing.synthetic import synthetic_trace
from profkit.trace import Trace

STEPS = 5
FORWARD, BACKWARD, OPTIMIZER = (PARTS.index(name) for name in ("forward", "backward", "optimizer"))


def line(
    rank: int, gaps: list[dict[int, float]], events: tuple[int | tuple[int, ...], ...]
) -> Line:
    """Return a rank with the same work in all steps, by gap and part."""
    work = np.zeros((len(gaps), len(PARTS), STEPS))
    for place, parts in enumerate(gaps):
        for part, ns in parts.items():
            work[place, part] = ns
    return Line(rank, work, events)


def model(lines: list[Line], transfer: list[float], previous: list[int]) -> StepModel:
    return StepModel(
        steps=np.arange(STEPS),
        lines=tuple(lines),
        wall=np.zeros((len(lines), STEPS)),
        transfer=np.repeat(np.array(transfer)[:, None], STEPS, axis=1).reshape(-1, STEPS),
        members=tuple(frozenset(each.rank for each in lines) for _ in transfer),
        previous=tuple(previous),
        sizes=np.zeros(len(transfer)),
        left_out=0,
        detailed=True,
        buckets=np.ones(len(transfer), dtype=bool),
    )


def two_ranks(late: float = 0.0) -> StepModel:
    """Return ranks that compute 10 and 10 + `late`, exchange for 3, and update for 1."""
    lines = []
    for rank in range(2):
        forward = 4.0 + late * rank
        gaps = [{FORWARD: forward, BACKWARD: 6.0}, {}, {OPTIMIZER: 1.0}]
        lines.append(line(rank, gaps, (0, (0,))))
    return model(lines, [3.0], [-1])


def test_all_ranks_wait_for_the_late_one() -> None:
    assert np.allclose(replay(two_ranks(late=5.0)), 10 + 5 + 3 + 1)


def test_a_rank_that_works_less_is_waited_for_less() -> None:
    shifted = shift_parts(two_ranks(late=5.0), [1], ["forward"], [5.0])
    assert np.allclose(replay(shifted), 14.0)
    assert np.allclose(replay(shift_parts(two_ranks(), [1], ["forward"], [2.0])), 14.0)


def test_links_and_transfers() -> None:
    plain = two_ranks()
    assert np.allclose(replay(scale_links(plain, 2.0, 0.0)), 12.5)
    assert np.allclose(replay(scale_links(plain, 2.0, 1.0)), 13.0), "latency stays"
    assert np.allclose(replay(without_transfers(plain)), 11.0)
    assert np.allclose(replay(reduce_evenly(plain, 2.2)), 14.0 - 2.2)


def test_a_hidden_collective_costs_only_what_backward_does_not_cover() -> None:
    gaps: list[dict[int, float]] = [{FORWARD: 4.0}, {BACKWARD: 6.0}, {}, {OPTIMIZER: 1.0}]
    lines = [line(rank, gaps, (0, 1, (0, 1))) for rank in range(2)]
    first, second = model(lines, [5.0, 2.0], [-1, 0]), model(lines, [9.0, 2.0], [-1, 0])
    assert np.allclose(replay(first), 4 + 6 + 2 + 1), "the first is done when the second begins"
    assert np.allclose(replay(second), 4 + 9 + 2 + 1), "the second waits for the first"


def test_a_rank_that_ends_late_begins_the_next_step_late() -> None:
    lines = []
    for rank in range(2):
        gaps = [{FORWARD: 4.0}, {}, {OPTIMIZER: 1.0 + 3.0 * rank}]
        lines.append(line(rank, gaps, (0, (0,))))
    walls = replay(model(lines, [2.0], [-1]))
    assert np.allclose(walls[:, 1:].mean(), 4 + 3 + 2 + 1)


def test_ranks_that_never_meet_go_their_own_way() -> None:
    lines = [line(rank, [{FORWARD: 4.0 + rank}], ()) for rank in range(2)]
    assert replay(model(lines, [], [])).mean(axis=1).tolist() == [4.0, 5.0]


def test_a_wait_for_what_is_launched_later_is_an_error() -> None:
    first = line(0, [{}, {}, {}, {}, {}], ((1,), 0, 1, (0,)))
    second = line(1, [{}, {}, {}, {}, {}], ((0,), 1, 0, (1,)))
    with pytest.raises(ReplayError, match="only afterwards"):
        replay(model([first, second], [1.0, 1.0], [-1, -1]))


@pytest.mark.parametrize(
    ("workers", "expected"),
    [(1, 30.0), (2, 15.0), (3, 10.5), (8, 10.5), (0, 40.5)],
)
def test_the_loader_sets_the_pace_until_its_workers_keep_up(workers: int, expected: float) -> None:
    steps = 200
    pieces = np.full((3, steps), 10.0)
    loader = LoaderLine(pieces, workers, 2, 0.0, 0.5)
    plain = two_ranks()
    work = np.zeros((1, len(PARTS), steps))
    work[0, FORWARD] = 10.0
    work[0, DATA] = 99.0
    one = dataclasses.replace(
        plain,
        steps=np.arange(steps),
        lines=(Line(0, work, (), loader),),
        wall=np.zeros((1, steps)),
        members=(),
        transfer=plain.transfer[:0],
    )
    assert replay(with_loaders(one, [loader])).mean() == pytest.approx(expected, rel=0.01)


def test_latency_is_known_from_messages_of_several_sizes() -> None:
    plain = dataclasses.replace(two_ranks(), sizes=np.array([100.0]))
    assert find_latency(plain) is None
    lines = [line(rank, [{}, {}, {}, {}], (0, 1, (0, 1))) for rank in range(2)]
    both = model(lines, [3.0, 12.0], [-1, 0])
    both = dataclasses.replace(both, sizes=np.array([100.0, 1000.0]))
    assert find_latency(both) == pytest.approx(2.0)


def test_the_expected_maximum_of_known_distributions() -> None:
    coin = np.tile([0.0, 1.0], 500)[None, :]
    assert expected_maximum(coin, [1, 2, 10]) == pytest.approx([0.5, 0.75, 1 - 0.5**10], abs=1e-2)
    normal = np.random.default_rng(0).standard_normal((8, 2_000))
    found = expected_maximum(normal, [16, 64])
    assert found == pytest.approx([1.766, 2.344], abs=0.05)
    assert (extrapolated_maximum(normal, [16, 64]) >= found).all()


def test_a_slow_rank_is_there_once_however_its_twins_are_drawn() -> None:
    slow = np.stack([np.zeros(100), np.full(100, 5.0)])
    assert expected_maximum(slow, [2, 64]) == pytest.approx([5.0, 5.0])


def varying(forward: list[float]) -> StepModel:
    """Return one rank whose forward takes another time in each step, and its update 1."""
    work = np.zeros((1, len(PARTS), len(forward)))
    work[0, FORWARD], work[0, OPTIMIZER] = forward, 1.0
    plain = two_ranks()
    return dataclasses.replace(
        plain,
        steps=np.arange(len(forward)),
        lines=(Line(0, work, ()),),
        wall=work.sum(axis=(0, 1))[None, :],
        members=(),
        transfer=np.zeros((0, len(forward))),
    )


def test_pauses_are_taken_from_the_steps_that_have_them() -> None:
    found = replay(reduce_peaks(varying([10.0, 10.0, 25.0] * 4), 5.0))
    assert found == pytest.approx(11.0)


def test_more_than_the_peaks_is_taken_evenly() -> None:
    found = replay(reduce_peaks(varying([10.0, 10.0, 25.0] * 4), 7.2))
    assert found.mean() == pytest.approx(16.0 - 7.2)


@pytest.mark.parametrize(
    ("less", "expected"), [(0.5, 27.25), (20.0, 7.75), (27.75, 0.0), (40.0, 0.0)]
)
def test_a_cost_that_few_steps_hold_is_taken_whole(less: float, expected: float) -> None:
    """Waits for a disk are long in few steps: taking the mean from each would leave most of it."""
    shifted = shift_parts(varying([1.0, 5.0, 4.0, 101.0]), [0], ["forward"], [less])
    times = shifted.part("forward")
    assert times.mean() == pytest.approx(expected)
    assert (times >= 0).all()


def test_a_trend_is_taken_from_the_part_that_rises() -> None:
    rising = [10.0 + place for place in range(21)]
    found = replay(remove_trend(varying(rising), 10.0))
    assert found == pytest.approx(11.0)
    assert replay(remove_trend(varying([10.0] * 21), 2.2)) == pytest.approx(8.8)


def test_the_parts_of_a_step_can_be_levelled_out() -> None:
    assert np.allclose(replay(level_out(two_ranks(late=4.0))), 10 + 2 + 3 + 1)


def test_the_rows_of_ranks_are_split(tmp_path: Path) -> None:
    steps = Trace.open(synthetic_trace(tmp_path / "run", ranks=3, steps=4)).steps
    for table in (steps, steps.take([11, 0, 5, 4, 3, 2, 1, 6, 7, 8, 9, 10]), steps.slice(0, 0)):
        split = split_ranks(table)
        assert sum(each.num_rows for each in split.values()) == table.num_rows
        for rank, rows in split.items():
            assert set(rows["rank"].to_pylist()) == {rank}


def model_of(path: Path) -> StepModel:
    trace = Trace.open(path)
    costs = frame_of(trace).costs
    basis = dataclasses.replace(frame_of(trace).basis, used=costs.selection.steps)
    return build_model(trace, basis)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_unchanged_replay_is_the_measured_run(tmp_path: Path, ranks: int, device: str) -> None:
    found = model_of(synthetic_trace(tmp_path / "run", ranks=ranks, device=device))
    assert found.detailed == (ranks > 1 and device == "cpu")
    assert replay(found).mean() == pytest.approx(found.wall.mean(), rel=2e-3)


def test_parts_add_up_to_the_step_but_for_the_waits(tmp_path: Path) -> None:
    found = model_of(synthetic_trace(tmp_path / "run", ranks=2))
    assert (found.own_work() <= found.wall + 1).all()
    alone = model_of(synthetic_trace(tmp_path / "alone"))
    whole = alone.own_work() + alone.part("allreduce")
    assert whole == pytest.approx(alone.wall)
    assert alone.lines[0].work[:, EXCHANGE].sum() == 0


def test_a_run_without_enough_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="too few steps"):
        model_of(synthetic_trace(tmp_path / "run", steps=1))


RECORDED = sorted((Path(__file__).parents[2] / "traces").glob("recorded-*"))


@pytest.mark.parametrize("run", RECORDED, ids=lambda run: run.name)
def test_recorded_jobs_are_replayed_as_they_were(run: Path) -> None:
    found = model_of(run)
    assert replay(found).mean() == pytest.approx(found.wall.mean(), rel=0.01)
    assert all(each.loader is not None for each in found.lines)


def test_there_are_recorded_jobs() -> None:
    assert len(RECORDED) >= 4


def one_event(code: int, start: int, end: int) -> Events:
    """Return the launch of one collective, equal in all steps."""
    times = np.full((1, STEPS), start), np.full((1, STEPS), end)
    nothing = np.zeros((1, STEPS), dtype=np.int64)
    return Events((code,), *times, nothing, nothing, np.ones(STEPS, dtype=bool))


@pytest.mark.parametrize(
    ("code", "one_clock", "expected"), [(-2, True, 4), (-2, False, 14), (0, True, 14)]
)
def test_a_message_takes_no_time_before_both_sides_are_ready(
    code: int, one_clock: bool, expected: int
) -> None:
    events = {0: one_event(code, 10, 30), 1: one_event(code, 0, 14)}
    members = (frozenset({0, 1}),)
    met = Meetings(events, {0: (0,), 1: (0,)}, members, (-1,), True, one_clock)
    assert (met.transfers() == expected).all()


@pytest.mark.parametrize("count", [3, MOST_STEPS, MOST_STEPS + 1, 10 * MOST_STEPS])
def test_long_runs_are_replayed_in_blocks_from_all_of_them(count: int) -> None:
    chosen = choose_steps(np.arange(count))
    assert (np.diff(chosen) > 0).all()
    assert len(chosen) <= MOST_STEPS
    assert (chosen[0], chosen[-1]) == (0, count - 1)
