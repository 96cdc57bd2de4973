"""The recorder: steps tile the loop's time, phases belong to steps, forks stop it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.instrument.guard import FAILURES
from profkit.instrument.ranges import Ranges, nvtx_ranges
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import COLUMNS, SpanRow, StepRow
from profkit.schema import SCHEMAS
from profkit.testing import FakeClock, OpenStep
from profkit.vocab import Phase

if TYPE_CHECKING:
    from profkit.instrument.device import DeviceTimer

BEGIN_NS = 1_000


class Memory:
    """A sink that keeps what it is given, and can be told to refuse."""

    def __init__(self) -> None:
        self.full = False
        self.rows: dict[str, list[Any]] = {"steps": [], "spans": []}
        self.dropped: Counter[str] = Counter()

    def is_full(self) -> bool:
        return self.full

    def appender(self, table: str) -> Callable[[tuple[Any, ...]], None]:
        return self.rows.setdefault(table, []).append

    def drop(self, table: str, count: int = 1) -> None:
        self.dropped[table] += count

    @property
    def steps(self) -> list[StepRow]:
        return [StepRow(*row) for row in self.rows["steps"]]

    @property
    def spans(self) -> list[SpanRow]:
        return [SpanRow(*row) for row in self.rows["spans"]]


class Loop(NamedTuple):
    """A recorder with its clock and its sink."""

    recorder: Recorder
    clock: FakeClock
    sink: Memory

    def work(self, phase: Phase | str, ns: int, name: str = "") -> None:
        with self.recorder.phase(phase, name):
            self.clock.advance(ns)

    def fail(self, ns: int, error: BaseException) -> None:
        self.clock.advance(ns)
        raise error

    def train_step(self, samples: int = 4) -> None:
        with OpenStep(self.recorder, samples):
            self.work(Phase.FORWARD, 10)


def _loop(ranges: Ranges | None = None) -> Loop:
    clock, sink = FakeClock(BEGIN_NS), Memory()
    return Loop(Recorder(sink, ranges=ranges, clock=clock), clock, sink)


@pytest.fixture
def loop() -> Loop:
    return _loop()


@pytest.mark.parametrize("table", ["spans", "steps", "collectives", "samples"])
def test_rows_have_the_columns_of_the_contract(table: str) -> None:
    assert ["rank", *COLUMNS[table]] == SCHEMAS[table].names


def test_a_phase_is_a_row_with_its_times(loop: Loop) -> None:
    loop.clock.advance(5)
    with loop.recorder.phase(Phase.H2D) as region:
        loop.clock.advance(7)
        region.bytes = 640
    start = BEGIN_NS + 5
    assert loop.sink.spans == [
        SpanRow(0, "h2d", "h2d", 0, "MainThread", start, start + 7, None, None, 640, None)
    ]


def test_a_region_may_have_a_name_of_its_own(loop: Loop) -> None:
    loop.work("forward", 1, "backbone")
    assert [(row.phase, row.name) for row in loop.sink.spans] == [("forward", "backbone")]


def test_a_step_keeps_what_the_loop_says_of_it(loop: Loop) -> None:
    with OpenStep(loop.recorder, 8, epoch=3) as step:
        loop.clock.advance(50)
        step.loss = 0.25
        step.grad_scale = 1024.0
        step.sample_count = 6
    assert loop.sink.steps == [StepRow(0, BEGIN_NS, BEGIN_NS + 50, 6, 0.25, 1024.0, True, 3)]


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**9), st.booleans()), max_size=30)
)
def test_steps_tile_the_time_of_the_loop(pieces: list[tuple[int, int, bool]]) -> None:
    """Time between two steps, or in a step that raised, belongs to the step that ends next."""
    loop = _loop()
    for before, inside, raises in pieces:
        loop.clock.advance(before)
        with contextlib.suppress(ValueError), OpenStep(loop.recorder, 1):
            if raises:
                loop.fail(inside, ValueError())
            loop.clock.advance(inside)
    ended = [place for place, (_, _, raises) in enumerate(pieces) if not raises]
    rows = loop.sink.steps
    assert [row.step for row in rows] == list(range(len(ended)))
    assert [row.start_ns for row in rows] == [BEGIN_NS, *(row.end_ns for row in rows)][: len(rows)]
    covered = sum(before + inside for before, inside, _ in pieces[: ended[-1] + 1]) if ended else 0
    assert sum(row.end_ns - row.start_ns for row in rows) == covered


def test_what_lies_before_the_loop_begins_belongs_to_no_step(loop: Loop) -> None:
    loop.clock.advance(1_000_000)
    loop.recorder.begin()
    loop.train_step()
    assert loop.sink.steps[0].start_ns == BEGIN_NS + 1_000_000


def test_a_phase_belongs_to_the_step_that_ends_next(loop: Loop) -> None:
    loop.work(Phase.DATA, 1)
    loop.train_step()
    loop.work(Phase.DATA, 1)
    loop.train_step()
    assert [(row.phase, row.step) for row in loop.sink.spans] == [
        ("data", 0),
        ("forward", 0),
        ("data", 1),
        ("forward", 1),
    ]


def test_an_exception_is_recorded_by_its_class_and_goes_on(loop: Loop) -> None:
    class OutOfMemoryError(RuntimeError):
        pass

    error = OutOfMemoryError("2 GiB")
    with pytest.raises(OutOfMemoryError) as raised, loop.recorder.phase(Phase.BACKWARD):
        loop.fail(3, error)
    assert raised.value is error
    assert raised.value.__context__ is None
    assert [(row.phase, row.end_ns - row.start_ns, row.error) for row in loop.sink.spans] == [
        ("backward", 3, "OutOfMemoryError")
    ]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_error_closes_a_phase_too(loop: Loop, kind: type[BaseException]) -> None:
    with pytest.raises(kind), loop.recorder.phase(Phase.FORWARD):
        raise kind
    assert [row.error for row in loop.sink.spans] == [kind.__name__]


def test_a_step_whose_block_raises_is_no_row_and_the_next_one_is_whole(loop: Loop) -> None:
    with pytest.raises(ValueError, match="nan"), OpenStep(loop.recorder, 4):
        loop.fail(20, ValueError("nan"))
    assert loop.sink.steps == []
    loop.train_step()
    assert [(row.step, row.start_ns, row.end_ns) for row in loop.sink.steps] == [
        (0, BEGIN_NS, BEGIN_NS + 30)
    ]


def test_regions_know_how_deep_they_are(loop: Loop) -> None:
    with loop.recorder.phase(Phase.BACKWARD):
        loop.work(Phase.BACKWARD, 1, "block")
        with loop.recorder.phase(Phase.ALLREDUCE):
            loop.work(Phase.ALLREDUCE, 1, "bucket")
    loop.work(Phase.OPTIMIZER, 1)
    assert {row.name: row.depth for row in loop.sink.spans} == {
        "backward": 0,
        "block": 1,
        "allreduce": 1,
        "bucket": 2,
        "optimizer": 0,
    }


def test_a_region_that_raised_does_not_leave_the_next_one_deeper(loop: Loop) -> None:
    with (
        pytest.raises(ValueError, match="x"),
        loop.recorder.phase(Phase.FORWARD),
        loop.recorder.phase(Phase.FORWARD, "block"),
    ):
        raise ValueError("x")
    loop.work(Phase.BACKWARD, 1)
    assert [(row.name, row.depth, row.error) for row in loop.sink.spans] == [
        ("block", 1, "ValueError"),
        ("forward", 0, "ValueError"),
        ("backward", 0, None),
    ]


def test_each_thread_has_its_own_depth_and_its_name(loop: Loop) -> None:
    def load() -> None:
        with loop.recorder.phase(Phase.DATA):
            loop.work(Phase.DATA, 1, "decode")

    with loop.recorder.phase(Phase.FORWARD):
        thread = threading.Thread(target=load, name="loader-0")
        thread.start()
        thread.join()
    assert [(row.name, row.depth, row.thread) for row in loop.sink.spans] == [
        ("decode", 1, "loader-0"),
        ("data", 0, "loader-0"),
        ("forward", 0, "MainThread"),
    ]


def test_no_row_is_lost_between_threads() -> None:
    sink = Memory()
    recorder = Recorder(sink)

    def work() -> None:
        for _ in range(500):
            with recorder.phase(Phase.OTHER), recorder.phase(Phase.OTHER, "inside"):
                pass

    threads = [threading.Thread(target=work, name=f"worker-{number}") for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter((row.thread, row.depth) for row in sink.spans) == {
        (f"worker-{number}", depth): 500 for number in range(4) for depth in (0, 1)
    }


def test_after_stop_nothing_is_taken(loop: Loop) -> None:
    region = loop.recorder.phase(Phase.FORWARD)
    with region:
        loop.recorder.stop()
    loop.train_step()
    assert loop.sink.rows == {"steps": [], "spans": [], "samples": [], "events": []}
    assert loop.sink.dropped == {}


def test_a_forked_child_records_nothing_and_the_parent_goes_on(loop: Loop) -> None:
    read, write = os.pipe()
    with OpenStep(loop.recorder, 1), loop.recorder.phase(Phase.FORWARD):
        child = os.fork()
        if child == 0:
            loop.train_step()
            os.write(write, str(sum(map(len, loop.sink.rows.values()))).encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "0"
    assert os.waitpid(child, 0)[1] == 0
    loop.train_step()
    assert (len(loop.sink.steps), len(loop.sink.spans)) == (2, 2)


def test_a_sink_that_takes_no_more_is_left_alone_and_the_steps_are_counted(loop: Loop) -> None:
    loop.train_step()
    loop.sink.full = True
    for _ in range(3):
        loop.train_step()
    assert len(loop.sink.steps) == 1
    assert len(loop.sink.spans) == 2  # the step in which the trouble came was under way
    assert loop.sink.dropped["steps"] == 3


def test_after_a_pause_steps_are_recorded_again_with_their_own_numbers(loop: Loop) -> None:
    loop.train_step()
    loop.sink.full = True
    loop.train_step()
    loop.train_step()
    loop.sink.full = False
    loop.train_step()
    loop.train_step()
    last = loop.sink.steps[-1]
    assert (last.step, last.end_ns - last.start_ns, last.instrumented) == (4, 10, True)
    assert loop.sink.spans[-1].step == 4


def test_a_step_whose_phases_were_not_taken_does_not_count_as_measured(loop: Loop) -> None:
    """Else all of it would show as unknown."""
    loop.sink.full = True
    loop.train_step()
    loop.sink.full = False
    loop.train_step()
    loop.train_step()
    measured = {row.step for row in loop.sink.steps if row.instrumented}
    assert measured <= {row.step for row in loop.sink.spans}
    assert 2 in measured


def _raise(*args: object) -> None:
    raise RuntimeError("the driver is gone")


def test_what_raises_at_a_phases_border_does_not_reach_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        mark = hold = staticmethod(_raise)

    FAILURES.clear()
    loop = _loop(Ranges(push=_raise, pop=_raise))
    loop.recorder.time_device(cast("DeviceTimer", Broken()))
    for _ in range(3):
        loop.train_step()
    assert set(FAILURES) == {"ranges", "device events", "spans"}
    assert len(caplog.records) == 3
    assert [row.step for row in loop.sink.steps] == [0, 1, 2]
    loop.recorder.device = None
    loop.train_step()
    assert {row.depth for row in loop.sink.spans} == {0}


def test_ranges_open_and_close_in_the_order_of_the_regions() -> None:
    calls: list[str] = []
    loop = _loop(Ranges(push=calls.append, pop=lambda: calls.append("pop")))
    with contextlib.suppress(ValueError), loop.recorder.phase(Phase.BACKWARD):
        loop.work(Phase.ALLREDUCE, 1, "bucket 0")
        with loop.recorder.phase(Phase.ALLREDUCE, "bucket 1"):
            raise ValueError
    assert calls == ["backward", "bucket 0", "pop", "bucket 1", "pop", "pop"]


def test_each_step_has_a_range_around_its_phases() -> None:
    steps: list[int | None] = []
    loop = _loop(Ranges(lambda name: None, lambda: None, steps.append))
    loop.recorder.begin()  # what came before belongs to no step
    loop.train_step()
    loop.train_step()
    loop.recorder.stop()
    assert steps == [0, 1, 2, None]


@pytest.mark.parametrize(("is_child", "closed"), [(False, [None]), (True, [])])
def test_a_forked_child_closes_no_range(
    is_child: bool, closed: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of a tool may have been held when the process forked."""
    steps: list[int | None] = []
    loop = _loop(Ranges(lambda name: None, lambda: None, steps.append))
    if is_child:
        monkeypatch.setattr(os, "getpid", lambda: -1)
    loop.recorder.stop()
    assert steps == closed


def test_ranges_stay_balanced_over_a_stop() -> None:
    calls: list[str] = []
    loop = _loop(Ranges(push=calls.append, pop=lambda: calls.append("pop")))
    with loop.recorder.phase(Phase.FORWARD):
        loop.recorder.stop()
        loop.work(Phase.FORWARD, 1)
    loop.work(Phase.BACKWARD, 1)
    assert len([call for call in calls if call == "pop"]) * 2 == len(calls)


def test_phases_are_ranges_only_if_a_tool_listens() -> None:
    """Calls that nobody hears would keep short steps from being noted in C."""
    if "NVTX_INJECTION64_PATH" not in os.environ:
        assert nvtx_ranges() is None
