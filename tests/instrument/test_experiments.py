"""Blocks in which all but one phase is slowed: when they are, what is slowed, what they show."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from profkit.analysis.experiments import find_experiments
from profkit.analysis.slowed import slowed_steps, unlike_steps
from profkit.errors import UsageError
from profkit.instrument import pacing, pauses
from profkit.instrument.blocks import WARM_UP
from profkit.instrument.experiments import LENGTH, OBSERVED, SHARE, WINDOW, ExperimentPlan
from profkit.instrument.loading import worker_loop
from profkit.instrument.loading.ring import Ring
from profkit.instrument.pacing import Pacer, open_pacer
from profkit.instrument.pauses import pause_worker
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.rows import BatchTimes
from profkit.schema import open_schema
from profkit.testing.fakes import FakeClock
from profkit.vocab import EXPERIMENT_PHASES

MS = 1_000_000
STEPS = WARM_UP + 8 * WINDOW


def plan_of(words: str, run: str = "run-1") -> ExperimentPlan:
    plan = ExperimentPlan.parse(words, run)
    assert plan is not None
    return plan


def test_all_ranks_of_a_run_have_the_same_blocks_and_another_run_has_others() -> None:
    plans = [plan_of("all"), plan_of("all"), plan_of("all", "run-2")]
    first, again, other = [[plan.place_of(step) for step in range(STEPS)] for plan in plans]
    assert first == again
    assert first != other


def test_blocks_are_two_percent_of_the_steps_and_each_phase_has_as_many() -> None:
    plan = plan_of("data,forward")
    places = [plan.place_of(step) for step in range(STEPS)]
    assert not any(places[:WARM_UP])
    slowed = Counter(place.phase for place in places if place is not None and place.slowed)
    assert slowed == {"data": 4 * LENGTH, "forward": 4 * LENGTH}
    assert sum(slowed.values()) / (STEPS - WARM_UP) == pytest.approx(SHARE)


def test_nothing_is_slowed_unless_it_is_asked_for() -> None:
    assert ExperimentPlan.parse("") is None
    assert plan_of("all").phases == EXPERIMENT_PHASES
    with pytest.raises(UsageError, match="unknown phase 'forwart'; did you mean 'forward'"):
        ExperimentPlan.parse("forwart")


class World:
    """A training thread on a clock of its own, whose pauses take time on that clock."""

    def __init__(self, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.sink = FakeClock(), MemorySink()
        self.paused = 0.0
        monkeypatch.setattr(pacing, "now_ns", self.clock)
        monkeypatch.setattr(pacing, "pause", self.pause)
        self.recorder = Recorder(self.sink, clock=self.clock)
        self.plan = plan_of(words)
        thread = threading.get_ident()
        samples = self.sink.appender("samples")
        self.pacer = Pacer(self.recorder, samples, self.plan, thread)
        self.recorder.at_border = self.pacer.begin_step
        self.others: list[Any] = []

    def pause(self, ns: float, busy_ns: float) -> float:
        """Take a tenth of a millisecond more than one should."""
        assert ns > 0
        self.paused += ns
        self.clock.advance(int(ns) + MS // 10)
        return MS / 10

    def phase(self, name: str, ms: float) -> None:
        pacer = self.recorder.pacer
        if pacer is not None:
            pacer.enter(name)
        self.clock.advance(int(ms * MS))
        if pacer is not None:
            pacer.leave()

    def wait(self, ms: float) -> None:
        """Wait for other ranks, inside of a phase."""
        start = self.clock()
        self.clock.advance(int(ms * MS))
        self.recorder.keep_inner("allreduce", "exposed", start, self.clock())

    def is_slowed(self) -> bool:
        place = self.plan.place_of(self.recorder.step_index)
        return place is not None and place.slowed

    def experiments(self) -> Mapping[str, Any]:
        rows = self.sink.rows
        steps = {
            "rank": [0 for _ in rows["steps"]],
            "step": [row[0] for row in rows["steps"]],
            "start_ns": [row[1] for row in rows["steps"]],
            "end_ns": [row[2] for row in rows["steps"]],
        }
        names = ("device", "source", "metric", "time_ns", "value")
        columns = zip(*rows["samples"], strict=True)
        samples = pa.table(dict(zip(names, map(list, columns), strict=True)))
        samples = samples.append_column("rank", pa.array([0] * len(samples), pa.int32()))
        empty = {name: open_schema(name).empty_table() for name in ("spans", "sums")}
        trace: Any = SimpleNamespace(steps=pa.table(steps), samples=samples, ranks=[0], **empty)
        usual = np.setdiff1d(np.arange(WARM_UP, STEPS), unlike_steps(samples))
        return find_experiments(trace, usual, unlike_steps(samples))

    def steps(self) -> Iterator[None]:
        for _ in range(STEPS):
            yield
            self.recorder.end_step(self.clock(), 1)


COSTS: Mapping[str, float] = {"data": 4, "h2d": 0.5, "forward": 2, "backward": 3, "optimizer": 1}


@pytest.mark.parametrize("phase", COSTS)
def test_a_block_shows_the_step_of_the_job_whose_phase_is_twice_as_fast(
    phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(phase, monkeypatch)
    for _ in world.steps():
        for name, ms in COSTS.items():
            world.phase(name, ms)
        world.clock.advance(MS // 2)  # outside of all phases
    whole = sum(COSTS.values()) + 0.5
    share = world.experiments()[phase].share
    assert share.value == pytest.approx((whole - COSTS[phase] / 2) / whole, rel=1e-3)
    assert share.low is not None
    assert share.low <= share.value


def test_a_wait_for_slowed_workers_is_not_slowed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers take 8 ms for a batch, or 16 ms in a block; the loop needs 3 ms besides."""
    world = World("forward", monkeypatch)
    world.recorder.rings.add(ring := Ring.create(1, 2))
    ready = 0
    for _ in world.steps():
        ready += (16 if ring.slowed else 8) * MS  # the worker never has to wait
        world.phase("data", max(0.1, (ready - world.clock()) / MS))
        for name, ms in (("forward", 2), ("backward", 1)):
            world.phase(name, ms)
    assert not ring.slowed, "the last block has ended"
    share = world.experiments()["forward"].share
    assert share.value == pytest.approx(1.0, rel=0.02), "the loader decides on the step"


def test_a_transfer_takes_longer_and_a_wait_for_a_slowed_rank_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wait of 5 ms: 1 ms of transfer, and 4 ms for a rank that is later in a block."""
    world = World("forward", monkeypatch)
    for count, _ in enumerate(world.steps()):
        late = (4 if count % 2 else 0) * (2 if world.is_slowed() else 1)
        world.phase("forward", 2)
        before = world.paused
        world.wait(1 + late)
        if world.is_slowed():
            assert world.paused - before == pytest.approx(1 * MS, abs=0.11 * MS)


def test_nothing_but_a_block_is_slowed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("data", monkeypatch)
    for _ in world.steps():
        before = world.paused
        world.phase("forward", 2)
        world.phase("other", 5)
        assert (world.paused > before) == world.is_slowed()
        assert world.paused - before <= 2 * MS, "an evaluation is not slowed"
    assert world.recorder.pacer is None
    world.recorder.stop()
    assert len(slowed_steps(_samples(world))["data"]) == 8 * LENGTH


def _samples(world: World) -> pa.Table:
    rows = world.sink.rows["samples"]
    return pa.table({"source": [row[1] for row in rows], "metric": [row[2] for row in rows],
                     "value": [row[4] for row in rows]})  # fmt: skip


def test_hooks_report_at_once_while_a_block_comes_near(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("data", monkeypatch)
    near = 0
    for _ in world.steps():
        near += world.recorder.pacer is not None
    assert near == 8 * (LENGTH + OBSERVED)


def test_a_worker_pauses_as_long_as_it_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, float]] = []
    monkeypatch.setattr(pauses, "pause", lambda *times: asked.append(times))
    monkeypatch.setattr(worker_loop, "pause_worker", pause_worker)
    ring = Ring.create(1, 2)
    meter = worker_loop.WorkerMeter(0, ring)
    times = BatchTimes(0, 10, 0, 110, 30, 70)
    fetch: Any = SimpleNamespace(close=lambda worker: times, task=0)
    meter.end(fetch)
    assert asked == []
    ring.slowed = True
    meter.end(fetch)
    assert asked == [(100, 70)], "30 of 100 ns were no work of a processor"


def test_a_pause_is_busy_as_long_as_the_part_was(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slept = FakeClock(), []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(max(1_000, int(seconds * 1e9)))

    monkeypatch.setattr(pauses, "now_ns", clock)
    monkeypatch.setattr(pauses, "_be_busy", lambda: clock.advance(7_000))
    monkeypatch.setattr(time, "sleep", sleep)
    begin = clock()
    late = pauses.pause(10 * MS, 4 * MS)
    assert 0 <= late <= 7_000
    assert clock() - begin == 10 * MS + late
    asleep = sum(slept) * 1e9
    assert asleep == pytest.approx(6 * MS - pauses.SLEEP_ERROR_NS, rel=0.01)


@pytest.mark.parametrize(
    ("words", "ranks", "phases", "unmeasured"),
    [
        ("data,h2d", 1, ("data", "h2d"), []),
        ("h2d", 1, ("h2d",), []),
        ("h2d,all", 1, ("data", "h2d", "forward", "backward", "optimizer"), []),
        ("all", 1, ("data", "forward", "backward", "optimizer"), []),
        ("allreduce", 2, ("allreduce",), []),
        ("data,allreduce", 1, ("data",), ["one rank has no exchange: allreduce"]),
        ("allreduce", 1, (), ["one rank has no exchange: allreduce"]),
    ],
)
def test_phases_that_are_named_have_blocks_or_a_reason(
    words: str, ranks: int, phases: tuple[str, ...], unmeasured: list[str]
) -> None:
    sink = MemorySink()
    job = ("torch", "cpu", ranks)
    pacer = open_pacer(Recorder(sink), sink.appender("samples"), plan_of(words), 0, job)
    assert pacer is not None
    assert pacer.plan.phases == phases
    said = [row[2] for row in sink.rows["samples"]]
    assert said == [f"unmeasured:experiments: {why}" for why in unmeasured]


@pytest.mark.parametrize(
    ("job", "phases"),
    [
        (("torch", "cpu", 2), ("data", "forward", "backward", "allreduce", "optimizer")),
        (("paddle", "cpu", 1), ("data", "forward", "backward", "optimizer")),
        (("torch", "cuda:0", 1), None),
        (("paddle", "cpu", 2), None),
    ],
)
def test_only_what_can_be_slowed_has_blocks(
    job: tuple[str, str, int], phases: tuple[str, ...] | None
) -> None:
    sink = MemorySink()
    recorder = Recorder(sink)
    pacer = open_pacer(recorder, sink.appender("samples"), plan_of("all"), 0, job)
    if phases is None:
        (row,) = sink.rows["samples"]
        assert row[2].startswith("unmeasured:experiments: ")
        assert recorder.at_border is None
    else:
        assert pacer is not None
        assert pacer.plan.phases == phases
        assert recorder.at_border is not None
