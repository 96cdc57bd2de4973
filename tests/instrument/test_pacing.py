"""Pauses of an experiment end: they are no longer than a few usual steps of the job."""

from __future__ import annotations

import pytest

from profkit.instrument import pacing, pauses
from profkit.instrument.experiments import LENGTH, OBSERVED
from profkit.instrument.loading.loaders import Loaders
from profkit.instrument.loading.ring import Ring
from profkit.instrument.pacing import MOST_PAUSED
from profkit.instrument.pauses import MOST_WORKER_PAUSE_NS, pause_worker
from profkit.instrument.rows import BatchTimes
from profkit.vocab import EXPERIMENT_CUT
from tests.instrument.test_experiments import MS, World


class Iterator:
    """A loader's iterator."""


def cut_steps(world: World) -> list[int]:
    found = []
    for row in world.sink.rows["samples"]:
        if row[2] == EXPERIMENT_CUT:
            found.append(int(row[4]))
    return found


@pytest.mark.parametrize("parts", [1, 1_000])
def test_a_long_step_in_a_block_is_paused_as_a_few_usual_ones(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute in forward: a compilation, or an evaluation that profkit does not recognise."""
    world, count, long = World("data", monkeypatch), 0, []
    for _ in world.steps():
        count = count + 1 if world.is_slowed() else 0
        if count != 5:
            world.phase("forward", 10)
            continue
        long.append(world.recorder.step_index)
        before = world.paused
        for _ in range(parts):
            world.phase("forward", 60_000 / parts)
        assert 0 < world.paused - before <= MOST_PAUSED * 10.1 * MS
    assert len(long) == 8
    assert cut_steps(world) == long
    assert world.experiments().get("data") is None or not len(world.experiments()["data"].slowed)


def test_steps_as_long_as_usual_are_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("data", monkeypatch)
    for number, _ in enumerate(world.steps()):
        world.phase("forward", (2, 3, 5)[number % 3])
    assert cut_steps(world) == []


def test_an_evaluation_is_not_slowed_by_the_phases_inside_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World("data", monkeypatch)
    for _ in world.steps():
        world.phase("forward", 2)
        pacer, before = world.recorder.pacer, world.paused
        if pacer is not None:
            pacer.enter("other")
        world.phase("forward", 1)
        if pacer is not None:
            pacer.leave()
        assert world.paused == before


def test_the_workers_of_an_epoch_that_begins_in_a_block_are_slowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without persistent workers, each epoch has a ring of its own."""
    world = World("forward", monkeypatch)
    loaders = Loaders(world.recorder, world.sink.appender("samples"))
    rings: list[Ring] = []
    for number, _ in enumerate(world.steps()):
        if number % 3 == 0:
            iterator = Iterator()
            loaders.open(iterator, 1, 2)
            rings.append(loaders.channels[iterator].ring)
        assert rings[-1].slowed == world.is_slowed()
        world.phase("forward", 2)
    assert len({ring.slowed for ring in rings}) == 1, "the last block has ended"


def test_no_worker_is_slowed_until_an_evaluation_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins in a block, and no step ends before it does, with a loader of any kind."""
    world = World("forward", monkeypatch)
    loaders = Loaders(world.recorder, world.sink.appender("samples"))
    training, kept, evaluations = Iterator(), Iterator(), 0
    loaders.open(training, 4, 8)
    loaders.open(kept, 4, 8)
    for _ in world.steps():
        for _ in range(2):  # two batches are accumulated
            loaders.look(training, lambda channel: ())
        world.phase("forward", 2)
        place = world.plan.place_of(world.recorder.step_index + 1)
        if place is None or not place.slowed or world.is_slowed():
            continue
        world.recorder.end_step(world.clock(), 1)
        evaluation = (training, kept, Iterator())[evaluations % 3]
        if evaluation not in loaders.channels:
            loaders.open(evaluation, 4, 8)
        evaluations += 1
        slowed = 0
        for _ in range(1_000):
            loaders.look(evaluation, lambda channel: ())
            slowed += loaders.channels[evaluation].ring.slowed
        assert 0 < slowed <= MOST_PAUSED * 2
        opened = Iterator()
        loaders.open(opened, 1, 2)
        assert not loaders.channels[opened].ring.slowed, "the block is cut"
    assert evaluations == 8
    assert len(cut_steps(world)) == 8
    assert not len(world.experiments()["forward"].slowed)


def test_a_loader_thread_is_not_slowed_during_an_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, times = World("forward", monkeypatch), BatchTimes(0, 0, 0, MS, 0, 0)
    paused: list[BatchTimes] = []
    monkeypatch.setattr(pacing, "pause_worker", paused.append)
    for _ in world.steps():
        world.phase("forward", 2)
        pacer = world.recorder.pacer
        if pacer is not None and world.is_slowed():
            paused.clear()
            for _ in range(1_000):
                pacer.asked()
                pacer.made(times)
            assert len(paused) <= MOST_PAUSED


def test_the_workers_are_not_slowed_in_a_block_about_data(monkeypatch: pytest.MonkeyPatch) -> None:
    world, near = World("data", monkeypatch), 0
    loaders = Loaders(world.recorder, world.sink.appender("samples"))
    for _ in world.steps():
        near += world.recorder.pacer is not None
        iterator = Iterator()
        loaders.open(iterator, 1, 2)
        assert not loaders.channels[iterator].ring.slowed
        world.phase("forward", 2)
    assert near == 8 * (LENGTH + OBSERVED)


def test_a_batch_that_hung_is_not_made_to_hang_as_long_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(pauses, "pause", lambda ns, busy_ns: asked.append(ns))
    pause_worker(BatchTimes(0, 0, 0, 3_600_000 * MS, 0, 0))
    pause_worker(BatchTimes(0, 0, 0, 100 * MS, 0, 0))
    assert asked == [MOST_WORKER_PAUSE_NS, 100 * MS]
