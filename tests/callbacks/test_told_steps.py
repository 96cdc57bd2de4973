"""Steps that loops and callbacks report themselves, on a clock that the test advances."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from profkit.callbacks import _recording
from profkit.callbacks._recording import Recording, begins_training, hook
from profkit.instrument.guard import FAILURES
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.tracking.marks import mark_region
from profkit.instrument.tracking.pending import MOST_IN_A_ROW
from profkit.instrument.tracking.tracker import Tracker
from profkit.testing.fakes import FakeClock

LOADER_MS, BATCH, EVALUATED = 2, 4, 100


class Loop:
    """A loop whose every call takes a known time."""

    def __init__(self) -> None:
        self.clock = FakeClock(1_000)
        self.sink = MemorySink()
        self.tracker = Tracker(Recorder(self.sink, clock=self.clock), clock=self.clock)

    def start_loader(self) -> None:
        span = self.tracker.begin_data(starts_epoch=True)
        self.clock.advance(1)
        self.tracker.end_data(span, 0)

    def fetch(self, samples: int = BATCH) -> None:
        span = self.tracker.begin_data()
        self.clock.advance(LOADER_MS)
        self.tracker.end_data(span, samples)

    def forward(self, *, with_gradients: bool = True) -> None:
        span = self.tracker.begin_forward(with_gradients=with_gradients)
        self.clock.advance(3)
        self.tracker.end(span)

    def train(self, *, steps_optimizer: bool = True) -> None:
        self.forward()
        span = self.tracker.begin_backward("torch")
        self.clock.advance(5)
        self.tracker.end(span)
        if steps_optimizer:
            span = self.tracker.begin_optimizer(1)
            self.clock.advance(1)
            self.tracker.end(span)

    def evaluate(self, batches: int = 2) -> None:
        self.start_loader()
        for _ in range(batches):
            self.fetch(EVALUATED)
            self.forward(with_gradients=False)

    @property
    def samples(self) -> list[int]:
        return [row[3] for row in self.sink.rows["steps"]]

    @property
    def steps(self) -> list[int]:
        return [row[0] for row in self.sink.rows["steps"]]

    def phases(self, step: int) -> list[str]:
        return [row[1] for row in self.sink.rows["spans"] if row[0] == step]


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.mark.parametrize("marks_before", [True, False])
@pytest.mark.parametrize("every", [1, 2])
def test_a_marked_step_ends_where_the_next_batch_is_waited_for(
    loop: Loop, every: int, marks_before: bool
) -> None:
    """The suites report each iteration, before or after it, with an optimizer step or without."""
    loop.start_loader()
    for iteration in range(4):
        loop.fetch()
        if marks_before:
            loop.tracker.mark_step()
        loop.train(steps_optimizer=iteration % every == every - 1)
        if not marks_before:
            loop.tracker.mark_step()
    loop.evaluate()
    loop.tracker.finish()
    assert loop.samples == [BATCH] * 4
    assert [loop.phases(step)[:3] for step in (1, 2, 3)] == [["data", "forward", "backward"]] * 3
    assert set(loop.phases(4)) == {"other"}
    ends = [row[2] for row in loop.sink.rows["steps"]]
    assert [row[1] for row in loop.sink.rows["steps"]][1:] == ends[:-1]


@pytest.mark.parametrize("marks_before", [True, False])
def test_without_a_known_loader_the_mark_is_the_border(loop: Loop, marks_before: bool) -> None:
    for _ in range(3):
        if marks_before:
            loop.tracker.mark_step()
        loop.train()
        if not marks_before:
            loop.tracker.mark_step()
    loop.tracker.finish()
    assert loop.steps == [0, 1, 2]


def test_a_mark_within_a_step_that_the_loop_delimits_is_none(loop: Loop) -> None:
    loop.tracker.begin_explicit_step()
    loop.train()
    loop.tracker.mark_step()
    assert loop.steps == []
    loop.tracker.end_explicit_step()
    loop.tracker.end_explicit_step()
    assert loop.steps == [0]


def test_batches_in_a_row_are_all_trained_on(loop: Loop) -> None:
    """Several loaders side by side, or all batches of an accumulated step fetched at once."""
    loop.start_loader()
    for _ in range(3):
        loop.fetch()
        loop.fetch(2)
        loop.train()
    loop.tracker.finish()
    assert loop.samples == [BATCH + 2] * 3
    assert [loop.phases(step).count("data") for step in (1, 2)] == [2, 2]


def test_a_pass_over_the_data_that_calls_no_model_is_no_part_of_the_training(loop: Loop) -> None:
    loop.start_loader()
    for _ in range(5):
        loop.fetch(EVALUATED)
    loop.start_loader()
    loop.fetch()
    loop.train()
    loop.tracker.finish()
    assert loop.samples == [BATCH]
    assert loop.phases(0) == [*["other"] * 6, "data", "data", "forward", "backward", "optimizer"]


def test_an_endless_pass_over_the_data_is_not_waited_out(loop: Loop) -> None:
    for _ in range(3 * MOST_IN_A_ROW):
        loop.fetch(1)
    assert loop.tracker.waiting_samples <= MOST_IN_A_ROW


def test_of_a_loader_that_is_ahead_each_step_counts_its_own_batches(loop: Loop) -> None:
    """As accelerate's: two batches come before the first step, none before the last."""
    loop.start_loader()
    loop.fetch(1)
    for samples in (2, 3, 0):
        loop.fetch(samples)
        loop.tracker.begin_explicit_step()
        loop.train()
        loop.tracker.end_explicit_step(batches=1)
    assert loop.samples == [1, 2, 3]


def test_what_happens_in_an_aside_is_other_and_counts_no_samples(loop: Loop) -> None:
    loop.start_loader()
    loop.fetch()
    loop.train()
    loop.fetch()
    loop.forward()
    aside = loop.tracker.begin_aside("evaluation")
    assert loop.tracker.begin_aside("evaluation") is None
    loop.evaluate()
    loop.tracker.end(aside)
    loop.train()
    loop.tracker.finish()
    assert loop.samples == [BATCH, BATCH]
    assert loop.phases(1) == ["data", "forward", "other", "forward", "backward", "optimizer"]


def test_a_region_named_evaluation_is_no_training_and_its_name_is_kept(loop: Loop) -> None:
    loop.start_loader()
    for _ in range(2):
        loop.fetch()
        loop.train()
        with mark_region(loop.tracker, "evaluation"):
            loop.evaluate()
    loop.tracker.finish()
    assert loop.samples == [BATCH, BATCH]
    assert loop.phases(0) == ["data", "data", "forward", "backward", "optimizer", "other"]
    names = [row[2] for row in loop.sink.rows["spans"] if row[1] == "other"]
    assert names == ["evaluation"] * 2


def test_a_region_named_checkpoint_leaves_the_batch_that_waits_to_training(loop: Loop) -> None:
    loop.start_loader()
    for _ in range(2):
        loop.fetch()
        with mark_region(loop.tracker, "checkpoint"):
            assert loop.tracker.begin_checkpoint() is None  # a file that the loop writes in it
        loop.train()
    loop.tracker.finish()
    assert loop.samples == [BATCH, BATCH]
    assert sorted(loop.phases(1)) == ["backward", "data", "forward", "optimizer", "other"]


@pytest.mark.parametrize("name", ["optimizer", "augment", "evaluation"])
def test_a_region_that_an_exception_leaves_is_closed(loop: Loop, name: str) -> None:
    loop.start_loader()
    loop.fetch()
    loop.train()
    with pytest.raises(OSError, match="disk"), mark_region(loop.tracker, name):
        raise OSError("disk")
    assert loop.tracker.inside == ""
    loop.tracker.finish()
    (row,) = [row for row in loop.sink.rows["spans"] if row[2] == name and row[10]]
    assert row[1] == ("optimizer" if name == "optimizer" else "other")


def test_a_loop_that_is_over_leaves_what_follows_out_of_its_last_step(loop: Loop) -> None:
    loop.start_loader()
    loop.fetch()
    loop.train()
    loop.clock.advance(7)
    loop.tracker.note_step(0.5, 3, 128.0)
    loop.tracker.end_loop()
    end = loop.clock()
    with mark_region(loop.tracker, "evaluation"):
        loop.evaluate()
    loop.tracker.finish()
    assert [(*row[2:6], row[7]) for row in loop.sink.rows["steps"]] == [(end, BATCH, 0.5, 128.0, 3)]
    assert loop.phases(1) == ["other"]


def test_what_a_loader_notes_inside_an_evaluation_is_other_too(loop: Loop) -> None:
    loop.start_loader()
    loop.fetch()
    loop.train()
    span = loop.tracker.begin_data()
    loop.tracker.recorder.keep_inner("data", "read", loop.clock(), loop.clock())
    loop.tracker.end_data(span, EVALUATED)
    loop.forward(with_gradients=False)
    loop.tracker.finish()
    assert [row[1:3] for row in loop.sink.rows["spans"] if row[0] == 1] == [
        ("other", "read"),
        ("other", "evaluation"),
        ("other", "evaluation"),
    ]


def test_between_two_trainings_nothing_belongs_to_a_step(loop: Loop) -> None:
    for _ in range(2):
        loop.tracker.start_over()
        loop.start_loader()
        for _ in range(2):
            loop.fetch()
            loop.train()
        loop.tracker.start_over()
        loop.clock.advance(1_000)
        loop.evaluate()
    assert loop.samples == [BATCH] * 4
    assert [row[2] - row[1] < 20 for row in loop.sink.rows["steps"]] == [True] * 4
    between = {row[0] for row in loop.sink.rows["spans"] if row[1] == "other"}
    assert between.isdisjoint(loop.steps)


class Callback:
    """A callback of a trainer that does not exist."""

    def __init__(self, loop: Loop) -> None:
        self.recording = Recording()
        self.loop = loop

    @begins_training
    def begin(self) -> None:
        self.recording.begin()

    @hook
    def step(self) -> None:
        self.recording.begin_step()

    @hook
    def fail(self) -> None:
        raise ValueError("ours")


def test_nothing_that_fails_in_a_hook_reaches_the_trainer(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_recording, "_job", lambda: loop)
    callback = Callback(loop)
    callback.begin()
    callback.fail()
    assert FAILURES.pop("tests.callbacks.test_told_steps.fail") == 1


def test_switched_off_hooks_do_nothing(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    FAILURES.clear()
    monkeypatch.setattr(_recording, "_job", lambda: None)
    callback = Callback(loop)
    callback.begin()
    callback.step()
    callback.fail()
    assert not callback.recording.is_open
    assert not FAILURES


def test_a_copy_of_a_callback_records_nothing_yet(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_recording, "_job", lambda: loop)
    recording = Recording()
    recording.begin()
    assert not pickle.loads(pickle.dumps(recording)).is_open


class Saver:
    """Something of a trainer's that is timed."""

    def save(self, path: str) -> str:
        if not path:
            raise OSError("no path")
        return path


def test_calls_are_named_until_the_training_ends(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_recording, "_job", lambda: loop)
    recording, saver = Recording(), Saver()
    recording.begin()
    recording.name_calls(saver, "save", "checkpoint")
    assert saver.save("before the training") == "before the training"
    loop.start_loader()
    loop.fetch()
    loop.train()
    assert saver.save("here") == "here"
    with pytest.raises(OSError, match="no path"):
        saver.save("")
    recording.end()
    assert "save" not in vars(saver)
    rows: list[Any] = [row for row in loop.sink.rows["spans"] if row[2] == "checkpoint"]
    assert [(row[1], row[-1]) for row in rows] == [("other", None), ("other", "OSError")]


def test_a_loss_is_told_where_every_batch_has_one(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_recording, "_job", lambda: loop)
    recording = Recording()
    recording.begin()
    for losses in ((1.0, 2.0), (1.0, None)):
        recording.begin_step()
        for samples, loss in enumerate(losses, start=1):
            recording.end_batch(loss, samples)
        recording.end_step(7, sum)
    assert [row[3:5] + row[-1:] for row in loop.sink.rows["steps"]] == [(3, 3.0, 7), (3, None, 7)]


class Dispatcher:
    """A loader of one rank that fetches for all; others hand out what it has sent them."""

    def __init__(self, dataset: list[list[int]], loop: Loop) -> None:
        self.dataset = dataset
        self.loop = loop

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.dataset:
            self.loop.fetch(8)
            yield batch


def test_a_rank_counts_what_it_is_handed_not_what_it_fetches_for_all(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_recording, "_job", lambda: loop)
    recording, loader, original = (
        Recording(),
        Dispatcher([[1, 2, 3], [4, 5]], loop),
        Dispatcher.__iter__,
    )
    recording.begin()
    recording.count_handed_out(loader)
    for _ in loader:
        recording.begin_step()
        loop.train()
        recording.end_batch()
        recording.end_step(0, sum)
        assert len(list(Dispatcher([[6]], loop))) == 1
        recording.begin_aside("evaluation")
        assert len(list(loader)) == 2
        recording.end_aside()
    assert loop.samples == [3, 2]
    assert loop.phases(0) == ["data", "data", "forward", "backward", "optimizer"]
    recording.end()
    assert Dispatcher.__iter__ is original
