"""Replayed notes make the same rows as immediate reports: in Python, in C, without notes."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.instrument.device import DeviceTimer
from profkit.instrument.guard import FAILURES
from profkit.instrument.ranges import Ranges
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.rows import Meter, SpanRow
from profkit.instrument.tracking import boundaries
from profkit.instrument.tracking import notes as notes_in_python
from profkit.instrument.tracking.boundaries import LATE_NS, LONG_STEP_NS, LONGEST_TOGETHER_NS
from profkit.instrument.tracking.notes import ROOM, Notes
from profkit.instrument.tracking.steps import MOST_ROUNDS
from profkit.instrument.tracking.tracker import Tracker
from profkit.testing.fakes import FakeClock, FakeDevice
from tests.compiling import compile_module

Call = tuple[str, Any]
Rows = dict[str, list[Any]]

LEAVES = st.sampled_from(
    [
        "copy",
        "reset",
        "inner",
        "rows",
        "note scale",
        "ask inside",
        "ask loss",
        "ask waiting",
        "mark step",
        "skipped",
        "another thread",
        "late",
    ]
)


def _nested(parts: st.SearchStrategy[list[Any]]) -> st.SearchStrategy[Any]:
    inside = st.sampled_from(
        [
            "forward",
            "inference",
            "backward",
            "optimizer",
            "own",
            "aside",
            "fails",
            "data",
            "checkpoint",
            "explicit step",
            "fetch",
        ]
    )
    return st.tuples(inside, parts)


PART = st.recursive(LEAVES, lambda part: _nested(st.lists(part, max_size=3)), max_leaves=6)
USUAL: st.SearchStrategy[list[Any]] = st.just(
    [("data", []), "copy", ("forward", []), ("backward", []), ("optimizer", [])]
)
"""What most steps are; without some of them in a row nothing would ever be noted."""
PIPELINE: list[Any] = [
    ("data", ["rows"]),
    *["inner", ("forward", ["inner"]), "inner", ("inference", [])],
    *["inner", ("backward", ["inner"]), "inner", ("optimizer", []), "inner"],
]
"""A step with rows in its phases and between them."""
LOOP = st.lists(
    st.one_of(USUAL, USUAL, st.just(PIPELINE), st.lists(PART, max_size=4)), min_size=1, max_size=8
)


def call_in_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


class Loop:
    """A loop that does what it is told, on a clock of its own."""

    def __init__(
        self, notes: type | None, monkeypatch: pytest.MonkeyPatch, *, on_device: bool = False
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(boundaries, "CompiledNotes", notes or Notes)
            self.clock = FakeClock(1_000)
            self.sink = MemorySink()
            ranges = (
                None if notes else Ranges(lambda name: None, lambda: None)
            )  # with ranges to open, nothing is noted
            self.recorder = Recorder(
                self.sink, ranges=ranges, clock=self.clock, is_measured=lambda step: step % 9 < 4
            )
            self.tracker = Tracker(self.recorder, clock=self.clock)
        self.notes = self.tracker.notes
        self.timer: DeviceTimer | None = None
        if on_device:
            self.timer = DeviceTimer(
                FakeDevice(self.clock), self.sink.appender("spans"), clock=self.clock
            )
            self.recorder.time_device(self.timer)
        self.told: list[Any] = []

    def run(self, parts: list[Any]) -> None:
        for part in parts:
            self.clock.advance(10)
            name, inner = (part, []) if isinstance(part, str) else part
            getattr(self, name.replace(" ", "_"))(
                *([inner] if inner or not isinstance(part, str) else [])
            )
        self.clock.advance(10)

    def _within(self, begin: Callable[[], Any], inner: list[Any], error: str | None = None) -> None:
        span = begin()
        self.run(inner)
        self.notes.end(span, error) if error is None else self.tracker.end(span, error)

    def data(self, inner: list[Any]) -> None:
        span = self.notes.begin_batch()
        self.run(inner)
        self.notes.end_batch(span, list(range(4)))

    def fetch(self, inner: list[Any]) -> None:
        span = self.tracker.begin_data(starts_epoch=True)
        self.run(inner)
        self.tracker.end_data(span, 0)

    def copy(self) -> None:
        self._within(self.notes.begin_copy, [])

    def reset(self) -> None:
        self._within(self.notes.begin_reset, [])

    def forward(self, inner: list[Any]) -> None:
        self._within(lambda: self.notes.begin_forward(with_gradients=True), inner)

    def inference(self, inner: list[Any]) -> None:
        self._within(lambda: self.notes.begin_forward(with_gradients=False), inner)

    def backward(self, inner: list[Any]) -> None:
        self._within(lambda: self.notes.begin_backward("torch", float(self.clock())), inner)

    def optimizer(self, inner: list[Any]) -> None:
        self._within(lambda: self.notes.begin_optimizer(1 + len(inner)), inner)

    def fails(self, inner: list[Any]) -> None:
        self._within(lambda: self.notes.begin_forward(with_gradients=True), inner, "ValueError")

    def aside(self, inner: list[Any]) -> None:
        self._within(lambda: self.tracker.begin_aside("evaluation"), inner)

    def checkpoint(self, inner: list[Any]) -> None:
        self._within(self.tracker.begin_checkpoint, inner)

    def own(self, inner: list[Any]) -> None:
        with self.recorder.phase("other", "own"):
            self.run(inner)

    def explicit_step(self, inner: list[Any]) -> None:
        self.tracker.begin_explicit_step()
        self.run(inner)
        self.tracker.end_explicit_step()

    def skipped(self) -> None:
        span = self.notes.begin_optimizer(9)
        self.notes.name_skipped(span)
        self.notes.end(span)

    def inner(self) -> None:
        self.recorder.keep_inner("allreduce", "exposed", self.clock() - 2, self.clock())

    def rows(self) -> None:
        now = self.clock()
        if self.recorder.recording:  # as whoever makes such rows asks
            step = self.recorder.step_now
            self.recorder.keep_rows([SpanRow(step, "data", "read", 1, "loader", now - 3, now)])

    def note_scale(self) -> None:
        self.notes.end(None)
        self.tracker.note_scale(2.0)

    def mark_step(self) -> None:
        self.tracker.mark_step()

    def another_thread(self) -> None:
        thread = threading.Thread(
            target=lambda: self.notes.end(self.notes.begin_forward(with_gradients=True)),
            name="another",
        )
        thread.start()
        thread.join()

    def late(self) -> None:
        """Have the writer's thread replay what waits, however short it has waited."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(boundaries, "LATE_NS", 0)
            call_in_thread(self.tracker.replay_late)

    def ask_inside(self) -> None:
        self.told.append(self.tracker.inside)

    def ask_loss(self) -> None:
        self.told.append(self.tracker.loss)

    def ask_waiting(self) -> None:
        self.told.append((self.tracker.waiting_samples, self.tracker.stepped))

    def finish(self) -> tuple[list[Any], list[Any], list[Any]]:
        self.tracker.finish()
        if self.timer is not None:
            self.timer.collect(final=True)
        return self.sink.rows["steps"], sorted(self.sink.rows["spans"], key=repr), self.told


@pytest.fixture(scope="session")
def compiled_notes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notes in C: the installed ones, else built here."""
    if boundaries.CompiledNotes is not Notes:
        return boundaries.CompiledNotes
    return compile_module(
        Path(notes_in_python.__file__).with_name("_notes.c"), tmp_path_factory.mktemp("notes")
    ).Notes


@pytest.fixture(params=["python", "compiled"])
def notes(request: pytest.FixtureRequest) -> Any:
    return Notes if request.param == "python" else request.getfixturevalue("compiled_notes")


STEP: list[Any] = [("data", []), "copy", ("forward", []), ("backward", []), ("optimizer", [])]


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
def test_what_is_noted_makes_the_rows_that_it_makes_at_once(
    notes: Any, monkeypatch: pytest.MonkeyPatch, *, on_device: bool
) -> None:
    @given(LOOP)
    @settings(max_examples=300, deadline=None)
    def check(loop: list[list[Any]]) -> None:
        noted, at_once = (Loop(kind, monkeypatch, on_device=on_device) for kind in (notes, None))
        for running in (noted, at_once):
            for step in [STEP, STEP, STEP, *loop, STEP]:
                running.run(step)
        assert noted.finish() == at_once.finish()
        if noted.timer is not None and at_once.timer is not None:
            assert len(noted.timer._free) == noted.timer.pool_size  # no event is lost

    check()


def test_compiled_notes_fail_at_import_if_a_field_of_spans_is_renamed() -> None:
    """Otherwise they would fill the wrong columns."""
    if boundaries.CompiledNotes is Notes:
        pytest.skip("no compiled notes are installed")
    program = (
        "import collections\n"
        "from profkit.instrument import rows\n"
        "fields = ['begin_ns' if name == 'start_ns' else name for name in rows.SpanRow._fields]\n"
        "rows.SpanRow = collections.namedtuple('SpanRow', fields)\n"
        "import profkit.instrument.tracking._notes\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert "SpanRow has no field 'start_ns', which _notes.c fills" in done.stderr


def test_a_usual_step_is_noted(notes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would compare nothing."""
    loop = Loop(notes, monkeypatch)
    for _ in range(4):
        loop.run(STEP)
    assert len(loop.notes) == 2 * 2 * len(STEP) + 1
    assert loop.tracker.stepped
    assert len(loop.notes) == 0
    assert [row[0] for row in loop.sink.rows["steps"]] == [0, 1, 2]


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("parts", [STEP, PIPELINE], ids=["usual", "pipeline"])
def test_a_few_short_steps_are_told_together(
    notes: Any, monkeypatch: pytest.MonkeyPatch, parts: list[Any], on_device: bool
) -> None:
    loop = Loop(notes, monkeypatch, on_device=on_device)
    told = []
    for step in range(10):
        loop.run(parts[:1])
        assert loop.recorder.step_now == step  # whatever is told, others see the step that runs
        told.append(len(loop.sink.rows.get("steps", [])))
        loop.run(parts[1:])
    # Steps 0 to 3 and 9 are measured, 4 to 8 are not. The first two are replayed on their own.
    assert told == [0, 1, 2, 2, 4, 4, 4, 4, 4, 9]


@pytest.mark.parametrize(
    ("step_ms", "together"), [(1, 16), (19, 10), (60, 3), (99, 2), (150, 1), (300, 1)]
)
def test_steps_that_wait_take_no_longer_together_than_a_killed_job_may_lose(
    notes: Any, monkeypatch: pytest.MonkeyPatch, step_ms: int, together: int
) -> None:
    loop = Loop(notes, monkeypatch)
    monkeypatch.setattr(loop.recorder, "_is_measured", lambda step: True)
    told = [0]
    for _ in range(60):
        loop.run(STEP[:1])
        told.append(len(loop.sink.rows.get("steps", [])))
        loop.clock.advance(step_ms * 1_000_000)
        loop.run(STEP[1:])
    assert max(after - before for before, after in itertools.pairwise(told)) == together


def test_a_row_of_another_thread_belongs_to_the_step_that_runs(
    notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(notes, monkeypatch)
    for _ in range(3):
        loop.run(STEP)

    def record() -> None:
        with loop.recorder.phase("other", "apart"):
            pass
        loop.recorder.keep_inner("allreduce", "exposed", 1, 2)

    call_in_thread(record)
    _, spans, _ = loop.finish()
    assert {row[0] for row in spans if row[2] in {"apart", "exposed"}} == {2}


@pytest.mark.parametrize("reason", ["a call between steps", "longer steps", "nested phases"])
def test_steps_are_told_one_by_one_where_somebody_waits_for_them(
    notes: Any, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    loop = Loop(notes, monkeypatch)
    called: list[int] = []
    if reason == "a call between steps":
        loop.recorder.at_border = called.append
    for step in range(4):
        loop.run(STEP[:1])
        assert len(loop.sink.rows.get("steps", [])) == step
        if reason == "longer steps":
            loop.clock.advance(LONGEST_TOGETHER_NS)
        recomputed: list[Any] = [("backward", [("forward", [])])]
        loop.run([*STEP[1:3], *recomputed, STEP[4]] if reason == "nested phases" else STEP[1:])
    assert called == ([1, 2, 3] if reason == "a call between steps" else [])


def test_steps_that_wait_while_the_loop_hangs_are_told_by_the_writer(
    notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(notes, monkeypatch)
    for _ in range(3):
        loop.run(STEP)
    loop.run(STEP[:3])
    noted = len(loop.notes)
    loop.clock.advance(LATE_NS // 2)
    loop.tracker.replay_late()
    assert len(loop.notes) == noted  # the loop will most likely do that soon itself
    loop.clock.advance(LATE_NS)
    call_in_thread(loop.tracker.replay_late)
    assert [row[0] for row in loop.sink.rows["steps"]] == [0, 1, 2]
    assert {row[0] for row in loop.sink.rows["spans"]} == {0, 1, 2}
    left = len(loop.notes)
    assert left == 2 * 3  # those of the open step
    loop.run(STEP[3:])
    assert len(loop.notes) == left + 2 * 2  # it goes on noting
    steps, spans, _ = loop.finish()
    assert [row[0] for row in steps] == [0, 1, 2, 3]
    assert sum(row[0] == 3 for row in spans) == len(STEP)


def test_no_row_is_lost_if_the_writer_replays_while_the_loop_runs(
    notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundaries, "LATE_NS", 0)
    loop, ended, count, told = Loop(notes, monkeypatch), threading.Event(), 2_000, 0

    def write() -> None:
        nonlocal told
        while not ended.is_set():
            before = loop.recorder.step_index
            loop.tracker.replay_late()
            told += loop.recorder.step_index > before

    writer = threading.Thread(target=write)
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        writer.start()
        for _ in range(count):
            loop.run(STEP)
    finally:
        ended.set()
        writer.join()
        sys.setswitchinterval(usual_s)
    steps, spans, _ = loop.finish()
    assert told, "the writer has replayed nothing"
    assert [row[0] for row in steps] == list(range(count))
    assert all(before[2] == after[1] for before, after in itertools.pairwise(steps))
    measured = sum(loop.recorder._is_measured(step) for step in range(count))
    assert len(spans) == measured * len(STEP)


def test_a_child_forked_while_the_writer_replays_does_not_wait_for_it(
    notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundaries, "LONGEST_WAIT_S", 600)
    loop = Loop(notes, monkeypatch)
    for _ in range(3):
        loop.run(STEP)
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with loop.tracker._boundaries._turn:
            held.set()
            forked.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if not child:
        signal.alarm(20)
        loop.run([*STEP, *STEP])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    forked.set()
    holder.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_forward_that_does_not_say_if_it_has_gradients_is_noted(
    notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library's callback before an evaluation may give nothing."""
    before, loop = FAILURES["borders"], Loop(notes, monkeypatch)
    for _ in range(3):
        loop.run(STEP[:1])
        span = loop.notes.begin_forward(with_gradients=None)
        loop.notes.end(span)
        loop.run(STEP[1:])
    loop.tracker.catch_up()
    assert [row[0] for row in loop.sink.rows["steps"]] == [0, 1]
    assert FAILURES["borders"] == before


def test_a_loop_that_never_fetches_again_does_not_note_for_ever(
    notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(notes, monkeypatch)
    for _ in range(2):
        loop.run(STEP)
    for _ in range(ROOM):
        loop.run(STEP[2:])
        assert len(loop.notes) <= ROOM
    steps, spans, _ = loop.finish()
    assert len(steps) == 2 + ROOM - MOST_ROUNDS - 1  # so many rounds show that none is fetched
    rounds = [1, MOST_ROUNDS + 2] + [1] * (len(steps) - 2)
    measured = [count for step, count in enumerate(rounds) if step % 9 < 4]
    assert sum(row[1] == "backward" for row in spans) == sum(measured)


def test_what_happens_in_long_steps_is_told_at_once(
    notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is killed in the middle of one loses no more than the last second."""
    loop = Loop(notes, monkeypatch)
    for _ in range(2):
        loop.run(STEP)
    loop.clock.advance(LONG_STEP_NS)
    loop.tracker.catch_up()  # the long step has begun among short ones
    for part in STEP:
        loop.run([part])
        assert len(loop.notes) == 0
    assert [row[1] for row in loop.sink.rows["spans"] if row[0] == 2] == [
        "data",
        "h2d",
        "forward",
        "backward",
        "optimizer",
    ]


def test_a_recorder_that_stops_closes_them(notes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a forked child, whose main thread has the number of its parent's."""
    loop = Loop(notes, monkeypatch)
    for _ in range(2):
        loop.run(STEP)
    loop.tracker.catch_up()
    loop.recorder.stop()
    loop.run(STEP[1:])
    assert len(loop.notes) == 0


def test_a_failure_while_telling_costs_its_own_row(
    notes: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    FAILURES.clear()
    loop = Loop(notes, monkeypatch)
    for _ in range(2):
        loop.run(STEP)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("planted")

    monkeypatch.setattr(loop.tracker, "begin_backward", fail)
    # A region of the job's own is not plain: the notes are replayed one by one.
    loop.run([("data", []), ("forward", [("own", [])]), ("backward", []), ("optimizer", [])])
    steps, spans, _ = loop.finish()
    assert len(steps) == 3
    assert [row[1] for row in spans if row[0] == 2 and row[3] == 0] == [
        "data",
        "forward",
        "optimizer",
    ]
    assert "planted" in caplog.text


def test_notes_go_with_their_tracker(notes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(notes, monkeypatch)
    loop.run(STEP)
    loop.run(STEP)
    gone = weakref.ref(loop.tracker)
    del loop
    gc.collect()
    assert gone() is None


class Fetcher:
    """Collates twice what it is asked for."""

    def __init__(self, collate: Callable[..., Any] | None) -> None:
        self.collate_fn = collate


def test_batches_made_in_the_loop_are_timed_in_c(
    compiled_notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows are those that `Loaders.keep` makes; the fetcher has its own function back."""
    loop = Loop(compiled_notes, monkeypatch)
    loop.run(STEP)
    loop.run(STEP)
    own = sorted
    fetcher = Fetcher(own)
    span = loop.tracker.begin_data()
    making = loop.notes.begin_fetch(fetcher)
    assert loop.notes.begin_fetch(Fetcher(own)) is None  # one inside another is part of it
    loop.clock.advance(50)
    assert fetcher.collate_fn is not None
    kept = fetcher.collate_fn
    assert kept([2, 1], reverse=True) == [2, 1]
    loop.clock.advance(30)
    loop.notes.end_fetch(making)
    assert fetcher.collate_fn is own
    assert kept([2, 1]) == [1, 2]  # whoever has kept ours has the fetcher's own in it
    loop.notes.end_batch(span, [[1, 2]])
    _, spans, _ = loop.finish()
    made = [row for row in spans if row[3] == 1]
    assert {row[2] for row in made} == {"read", "decode", "collate"}
    (collate,) = (row for row in made if row[2] == "collate")
    assert collate[6] - collate[5] == 30


class CountingMeter:
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.ended = 0

    def begin(self, fetcher: Any) -> str:
        return "made elsewhere"

    def end(self, making: str) -> None:
        self.ended += 1

    def drop(self, making: str) -> None:
        raise NotImplementedError


def test_batches_that_take_long_are_timed_with_their_waits_for_a_core(
    compiled_notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`LoopMeter` times them, until they are short again."""
    loop = Loop(compiled_notes, monkeypatch)
    monkeypatch.setattr(loop.recorder, "_is_measured", lambda step: True)
    loop.run(STEP)
    loop.run(STEP)
    meter = CountingMeter()
    loop.notes.measure_with(Meter(meter.begin, meter.end, meter.drop))
    making = loop.notes.begin_fetch(Fetcher(None))
    assert (
        loop.notes.begin_fetch(Fetcher(None)) is None
    )  # a batch inside another is part of it, and not the meter's
    loop.notes.drop_fetch(making)
    by_meter = []
    for took_ms in (1, 3, 3, 1, 1):
        span = loop.notes.begin_batch()
        making = loop.notes.begin_fetch(Fetcher(None))
        loop.clock.advance(took_ms * 1_000_000)
        loop.notes.end_fetch(making)
        loop.notes.end_batch(span, [1])
        loop.run(STEP[1:])
        by_meter.append(meter.ended)
    assert by_meter == [0, 0, 1, 2, 2]


def test_a_skipped_step_of_a_loop_that_is_not_noted_any_more(
    notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(notes, monkeypatch)
    loop.run(STEP)
    loop.run(STEP)
    span = loop.notes.begin_optimizer(1)
    loop.notes.close()
    loop.notes.name_skipped(span)
    loop.notes.end(span)
    assert [row[2] for row in loop.finish()[1]].count("skipped step") == 1


def test_what_cannot_be_told_does_not_come_again(
    notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it reach a region of the job's own, which has the tracker catch up."""
    FAILURES.clear()
    loop = Loop(notes, monkeypatch)
    loop.run(STEP)
    loop.run(STEP)
    with monkeypatch.context() as patch:
        patch.setattr(loop.tracker, "take_plain", lambda plain: 1 / 0)
        with loop.recorder.phase("other", "own"):
            assert len(loop.notes) == 0
    loop.run(STEP)
    loop.run(STEP)
    assert FAILURES["borders"] == 1
    assert len(loop.finish()[0]) == 3


@pytest.mark.parametrize("collate", [None, sorted])
def test_a_batch_that_raises_leaves_its_fetcher_as_it_was(
    compiled_notes: Any, monkeypatch: pytest.MonkeyPatch, collate: Any
) -> None:
    loop = Loop(compiled_notes, monkeypatch)
    loop.run(STEP)
    loop.run(STEP)
    fetcher = Fetcher(collate)
    span = loop.tracker.begin_data()
    loop.notes.drop_fetch(loop.notes.begin_fetch(fetcher))
    loop.tracker.end_data(span, 0, "ValueError")
    assert fetcher.collate_fn is collate
    assert all(row[3] == 0 for row in loop.finish()[1])


class Interrupting:
    """A batch that is interrupted while it is asked how large it is."""

    @property
    def shape(self) -> tuple[int, ...]:
        raise KeyboardInterrupt


def test_an_interrupt_while_a_batch_is_counted_is_the_jobs(
    notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(notes, monkeypatch)
    loop.run(STEP)
    loop.run(STEP)
    span = loop.notes.begin_batch()
    with pytest.raises(KeyboardInterrupt):
        loop.notes.end_batch(span, [Interrupting()])


def test_wrong_calls_of_the_compiled_notes_raise(compiled_notes: Any) -> None:
    for call in (compiled_notes, lambda: compiled_notes(1), lambda: compiled_notes(tracker=1)):
        with pytest.raises(TypeError):
            call()
    made = compiled_notes(None, FakeClock())
    for name in ("begin_forward", "begin_backward", "end", "end_batch", "open", "take_plain"):
        with pytest.raises(TypeError):
            getattr(made, name)()


def test_a_note_that_is_made_while_another_is_marked_finds_room(notes: Any) -> None:
    """A signal handler or a finalizer may make one."""
    taken: list[Any] = []

    class Reader:
        def catch_up(self) -> None:
            taken.extend(made.take())

    def mark() -> None:
        if len(made) == ROOM - 1 and not inner:
            inner.append(None)
            inner[0] = made.begin_reset()

    inner: list[Any] = []
    made = notes(Reader(), FakeClock(1))
    made.open(threading.get_ident(), mark, 0, False)
    regions = [made.begin_reset() for _ in range(ROOM)]
    assert len(made) <= ROOM
    assert sorted(note[3] for note in taken + made.take()) == sorted(regions + inner)


def test_notes_that_nobody_takes_are_full(notes: Any) -> None:
    class Reader:
        def catch_up(self) -> None:
            pass

    made = notes(Reader(), FakeClock(1))
    made.open(threading.get_ident(), None, 0, False)
    for _ in range(ROOM):
        made.begin_reset()
    with pytest.raises(OverflowError):
        made.begin_reset()
    assert len(made.take()) == ROOM


class Finalizing:
    """Calls a function when it is freed; in a cycle, only a garbage collection does that."""

    def __init__(self, finalize: Callable[[], object], *, in_cycle: bool = False) -> None:
        self.finalize = finalize
        self.own = self if in_cycle else None

    def __del__(self) -> None:
        self.finalize()


@contextmanager
def collection_after(allocations: int, finalize: Callable[[], object]) -> Iterator[None]:
    """Let a collection begin after so many allocations, as Python 3.10 and 3.11 do."""
    usual = gc.get_threshold()
    gc.collect()  # which leaves no tuple to be used again without an allocation
    gc.disable()
    Finalizing(finalize, in_cycle=True)
    gc.set_threshold(gc.get_count()[0] + allocations)
    gc.enable()
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _take_plain(made: Any) -> list[Any]:
    return [row for row, _, _ in made.take_plain(0, 0, "main", False)[0] if row[0] == "own"]


def _take(made: Any) -> list[Any]:
    return [row for note in made.take() if note[0] == "rows" for row in note[4]]


def _collect_while_taken(notes: Any, take: Callable[[Any], list[Any]], allocations: int) -> None:
    made, numbers = notes(None, FakeClock(1)), itertools.count()
    made.open(threading.get_ident(), None, 0, False)
    found: list[Any] = []

    def note() -> None:
        for _ in range(8):
            made.keep_rows([("own", next(numbers))])
            made.end(made.begin_reset())

    def finalize() -> None:
        note()
        if notes is not Notes:  # those in Python are taken by one caller at a time
            found.extend(_take(made))
            note()

    note()
    with collection_after(allocations, finalize):
        found += take(made)
    found += _take(made)
    assert sorted(found) == [("own", number) for number in range(next(numbers))]


@pytest.mark.parametrize("take", [_take, _take_plain])
def test_notes_come_once_if_a_collection_begins_while_they_are_taken(
    notes: Any, take: Callable[[Any], list[Any]]
) -> None:
    """Its finalizers make notes, and take all."""
    gc.freeze()  # or each collection looks at all modules
    for allocations in range(60):
        _collect_while_taken(notes, take, allocations)


def test_what_was_noted_may_note_when_it_is_freed(notes: Any) -> None:
    made = notes(None, FakeClock(1))
    made.open(threading.get_ident(), None, 0, False)

    def note() -> None:
        for number in range(3):
            made.keep_rows([number])

    made.end(made.begin_forward(with_gradients=Finalizing(note)))
    made.end(made.begin_reset())
    assert len(made.take_plain(0, 0, "main", False)[0]) == 2
    assert [what for *_, what in made.take()] == [[0], [1], [2]]


def test_a_batch_that_is_begun_while_another_is_read_is_part_of_it(compiled_notes: Any) -> None:
    class Rereading(Fetcher):
        @property
        def collate_fn(self) -> Any:
            if not begun:
                begun.append(None)
                begun[0] = made.begin_fetch(inner)
            return self.__dict__.get("own")

        @collate_fn.setter
        def collate_fn(self, collate: Any) -> None:
            self.__dict__["own"] = collate

    begun: list[Any] = [None]
    made, inner, outer = compiled_notes(None, FakeClock(1)), Fetcher(sorted), Rereading(sorted)
    made.open(threading.get_ident(), None, 0, False)
    begun.clear()
    assert made.begin_fetch(outer) is None
    made.end_fetch(begun[0])
    assert (inner.collate_fn, outer.collate_fn) == (sorted, sorted)


def test_notes_stay_while_another_thread_replays(
    notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundaries, "LONGEST_WAIT_S", 0.01)
    before, loop, usual = FAILURES["borders"], Loop(notes, monkeypatch), Loop(notes, monkeypatch)
    for running in (loop, usual):
        for _ in range(4):
            running.run(STEP)
    held, ended, noted = threading.Event(), threading.Event(), len(loop.notes)

    def hold() -> None:
        with loop.tracker._boundaries._turn:
            held.set()
            ended.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    loop.tracker.catch_up()
    assert len(loop.notes) == noted
    assert FAILURES["borders"] == before + 1  # it is reported
    ended.set()
    holder.join()
    assert loop.finish() == usual.finish()


def test_steps_keep_their_order_if_a_replay_is_interrupted(
    notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a finalizer or a signal handler whose report needs a replay as well."""
    loop, usual = Loop(notes, monkeypatch), Loop(notes, monkeypatch)
    take_plain = loop.tracker.take_plain
    interrupted = []

    def interrupt(plain: Any) -> None:
        interrupted.append(len(loop.notes))
        loop.tracker.catch_up()
        take_plain(plain)

    monkeypatch.setattr(loop.tracker, "take_plain", interrupt)
    for running in (loop, usual):
        for _ in range(20):
            running.run(STEP)
    assert loop.finish() == usual.finish()
    assert max(interrupted) > 2 * len(STEP)
