"""Device times through a fake device: pooled, in order, never waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from profkit.instrument.buckets import EXPOSED, BucketLog
from profkit.instrument.captures import Captures
from profkit.instrument.device import ANCHOR_TRIES, DeviceTimer
from profkit.instrument.guard import Patches
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.rows import CollectiveRow, SpanRow
from profkit.testing import FakeClock, FakeDevice
from profkit.testing.fakes import FakeEvent
from profkit.vocab import MissingTime


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def _setup(
    clock: FakeClock, **options: Any
) -> tuple[FakeDevice, MemorySink, DeviceTimer, Recorder]:
    device, sink = FakeDevice(clock), MemorySink()
    timer = DeviceTimer(device, sink.appender("spans"), clock=clock, **options)
    return device, sink, timer, Recorder(sink, device=timer, clock=clock)


def _spans(sink: MemorySink) -> list[SpanRow]:
    return [SpanRow(*row) for row in sink.rows["spans"]]


def _phase(recorder: Recorder, name: str, work: Callable[[], None]) -> None:
    with recorder.phase(name):
        work()


def test_a_row_waits_until_the_device_has_passed_it(clock: FakeClock) -> None:
    device, sink, timer, recorder = _setup(clock)
    timer.collect()
    _phase(recorder, "forward", lambda: device.launch(1_000_000))
    timer.collect()
    assert sink.rows["spans"] == []
    clock.advance(1_000_001)
    timer.collect()
    assert len(sink.rows["spans"]) == 1


def test_device_times_stand_on_the_hosts_clock(clock: FakeClock) -> None:
    device, sink, timer, recorder = _setup(clock)
    timer.collect()
    start = clock()
    _phase(recorder, "forward", lambda: device.launch(3_000_000))
    _phase(recorder, "backward", lambda: device.launch(6_000_000))
    clock.advance(20_000_000)
    timer.collect()
    forward, backward = _spans(sink)
    assert (forward.device_start_ns, forward.device_end_ns) == (start, start + 3_000_000)
    assert (backward.device_start_ns, backward.device_end_ns) == (
        start + 3_000_000,
        start + 9_000_000,
    )
    assert backward.end_ns == start, "the host had left it long before"


def test_rows_come_in_the_order_of_the_loop(clock: FakeClock) -> None:
    device, sink, timer, recorder = _setup(clock)
    for number in range(50):
        _phase(recorder, f"region {number}", lambda: device.launch(1_000))
        clock.advance(700)
        timer.collect()
    clock.advance(1_000_000)
    timer.collect()
    assert [row.phase for row in _spans(sink)] == [f"region {number}" for number in range(50)]


def test_events_are_used_again(clock: FakeClock) -> None:
    device, _, timer, recorder = _setup(clock)
    for _ in range(1_000):
        _phase(recorder, "forward", lambda: device.launch(100))
        clock.advance(1_000)
        timer.collect()
    assert timer.pool_size == len(device.made) <= 4


def test_an_exhausted_pool_costs_device_times_and_nothing_else(clock: FakeClock) -> None:
    device, sink, timer, recorder = _setup(clock, largest_pool=3)
    for _ in range(5):
        _phase(recorder, "forward", lambda: device.launch(1_000_000))
    clock.advance(1_000_000_000)
    timer.collect()
    assert len(sink.rows["spans"]) == 5
    assert timer.missing[MissingTime.POOL] == 7
    assert [row.device_end_ns is None for row in _spans(sink)] == [False, True, True, True, True]


def test_the_pool_lasts_for_two_steps_of_a_thousand_modules_of_fsdp(clock: FakeClock) -> None:
    _, _, timer, _ = _setup(clock)
    collectives = 3_000  # each module gathers its weights twice, and reduces its gradients once
    marks = [timer.mark() for _ in range(2 * 2 * collectives)]
    assert None not in marks
    assert not timer.missing


def test_the_last_rows_are_written_even_if_the_device_never_gets_there(clock: FakeClock) -> None:
    device, sink, timer, recorder = _setup(clock)
    timer.collect()
    _phase(recorder, "forward", lambda: device.launch(10**15))
    timer.collect(final=True)
    (row,) = _spans(sink)
    assert row.device_start_ns is None
    assert row.device_end_ns is None


def test_without_an_anchor_rows_wait_a_while_and_then_have_no_device_times(
    clock: FakeClock,
) -> None:
    device, sink, timer, recorder = _setup(clock)
    device.idle_answers = False
    _phase(recorder, "forward", lambda: device.launch(10))
    clock.advance(100)
    for _ in range(ANCHOR_TRIES - 1):
        timer.collect()
    assert not sink.rows["spans"], "the first try may have been too slow"
    timer.collect()
    (row,) = _spans(sink)
    assert (row.device_start_ns, row.device_end_ns) == (None, None)
    assert timer.missing == {MissingTime.NO_ANCHOR: 1}
    device.idle_answers = True
    _phase(recorder, "forward", lambda: device.launch(10))
    clock.advance(100)
    timer.collect()
    assert _spans(sink)[1].device_end_ns is not None


def test_a_late_first_anchor_loses_no_device_time(clock: FakeClock) -> None:
    device, sink, timer, recorder = _setup(clock)
    device.idle_answers = False
    _phase(recorder, "forward", lambda: device.launch(10))
    clock.advance(100)
    timer.collect()
    device.idle_answers = True
    timer.collect()
    assert [row.device_end_ns for row in _spans(sink)] == [clock() - 90]
    assert not timer.missing


@pytest.mark.parametrize("method", ["done", "ns_since"])
@pytest.mark.parametrize("broken", range(8))
def test_an_event_that_fails_costs_one_row_its_device_times(
    clock: FakeClock, broken: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, sink, timer, recorder = _setup(clock)

    def fail(self: FakeEvent, *args: object) -> Any:
        if self is device.made[broken]:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return original(self, *args)

    original = getattr(FakeEvent, method)
    timer.collect()
    for _ in range(4):
        _phase(recorder, "forward", lambda: device.launch(10))
    monkeypatch.setattr(FakeEvent, method, fail)
    clock.advance(1_000)
    timer.collect()
    without = [row.device_end_ns is None for row in _spans(sink)]
    assert without == [number == broken // 2 for number in range(4)]
    assert timer.missing == {MissingTime.FAILED: 1}


def test_no_event_is_recorded_while_the_stream_captures_a_graph(clock: FakeClock) -> None:
    device, sink, timer, recorder = _setup(clock)
    timer.collect()
    device.captures = True
    _phase(recorder, "forward", lambda: device.launch(10))
    device.captures = False
    _phase(recorder, "backward", lambda: device.launch(10))
    clock.advance(1_000)
    timer.collect()
    assert [row.device_end_ns is None for row in _spans(sink)] == [True, False]
    assert timer.missing == {MissingTime.CAPTURE: 2}


def test_the_device_is_not_asked_while_any_thread_captures(clock: FakeClock) -> None:
    captures = Captures()
    device, sink, timer, recorder = _setup(clock, captures=captures)
    timer.collect()
    _phase(recorder, "forward", lambda: device.launch(10))
    clock.advance(1_000)
    captures.begin()
    timer.collect()
    assert not sink.rows["spans"]
    captures.end()
    timer.collect()
    assert [row.device_end_ns is None for row in _spans(sink)] == [False]


def test_no_anchor_is_taken_while_any_thread_captures(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures, asked = Captures(), []
    _, _, timer, _ = _setup(clock, captures=captures)
    original = FakeDevice.reach_idle_event

    def reach(device: FakeDevice, given: FakeClock) -> Any:
        asked.append(captures.open)
        return original(device, given)

    monkeypatch.setattr(FakeDevice, "reach_idle_event", reach)
    captures.begin()
    timer.collect()
    captures.end()
    timer.collect()
    assert asked == [0]


def test_a_run_that_ends_inside_a_capture_asks_nothing(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = Captures()
    device, sink, timer, recorder = _setup(clock, captures=captures)
    timer.collect()
    _phase(recorder, "forward", lambda: device.launch(10))
    captures.begin()
    monkeypatch.setattr(FakeEvent, "done", lambda self: pytest.fail("asked during a capture"))
    timer.collect(final=True)
    assert [row.device_end_ns for row in _spans(sink)] == [None]
    assert timer.missing == {MissingTime.CAPTURE: 1}


def test_captures_of_a_graph_class_are_counted_until_they_end_or_fail() -> None:
    class Graph:
        def capture_begin(self, mode: str) -> str:
            if mode == "bad":
                raise RuntimeError("a capture is open already")
            return mode

        def capture_end(self) -> None:
            raise RuntimeError("the capture was invalidated")

    captures, patches = Captures(), Patches()
    captures.watch(patches, Graph)
    graph = Graph()
    assert graph.capture_begin("global") == "global"
    assert captures.open == 1
    with pytest.raises(RuntimeError, match="open already"):
        graph.capture_begin("bad")
    assert captures.open == 1
    with pytest.raises(RuntimeError, match="invalidated"):
        graph.capture_end()
    assert captures.open == 0
    patches.undo()
    graph.capture_begin("global")
    assert captures.open == 0


def test_missing_times_are_written_down_when_their_number_changes(clock: FakeClock) -> None:
    rows: list[Any] = []
    device, _sink, timer, recorder = _setup(clock, events=rows.append, largest_pool=1)
    timer.collect()
    _phase(recorder, "forward", lambda: device.launch(10))
    timer.collect()
    timer.collect()
    assert [(row.name, row.value) for row in rows] == [("all events in use", 1.0)]


class NcclRank:
    """One rank over NCCL: futures are complete when the exchange is launched."""

    def __init__(self, clock: FakeClock, backend: str = "nccl") -> None:
        self.clock, self.sink = clock, MemorySink()
        self.device = FakeDevice(clock)
        self.timer = DeviceTimer(
            self.device, self.sink.appender("spans"), clock=clock, captures=Captures()
        )
        self.recorder = Recorder(self.sink, device=self.timer, clock=clock)
        self.log = BucketLog(
            self.recorder, self.sink.appender("collectives"), "0", 8, backend, clock=clock
        )
        self.link_ns = 0
        self.timer.collect()

    def backward(self, buckets: int, compute_ns: int, transfer_ns: int) -> None:
        """Launch a backward whose buckets go out one by one, and let the device finish."""
        with self.recorder.phase("backward"):
            for index in range(buckets):
                self.clock.advance(1_000)
                self.device.launch(compute_ns)
                bucket = self.log.launched(index, 1 << 20, "float32")
                computed = self.device.busy_until_ns
                self.link_ns = max(self.link_ns, computed) + transfer_ns
                self.device.busy_until_ns = self.link_ns  # the future's own stream
                self.log.done(bucket)
                self.device.busy_until_ns = computed
            self.device.busy_until_ns = max(self.device.busy_until_ns, self.link_ns)
            self.log.end_of_backward()
        self.clock.advance(self.device.busy_until_ns)
        self.recorder.end_step(self.clock(), 1)
        self.timer.collect()

    def exposed(self) -> list[int]:
        """Return the device time of each exposed wait."""
        found = []
        for row in _spans(self.sink):
            if row.name == EXPOSED:
                assert row.device_start_ns is not None
                assert row.device_end_ns is not None
                found.append(row.device_end_ns - row.device_start_ns)
        return found


@pytest.mark.parametrize(
    ("buckets", "compute_ns", "transfer_ns", "exposed_ns"),
    [
        (4, 15_000_000, 30_000_000, 75_000_000),
        (4, 30_000_000, 10_000_000, 10_000_000),
        (1, 10_000_000, 40_000_000, 40_000_000),
        (25, 1_000_000, 2_000_000, 26_000_000),
    ],
)
def test_the_exposed_exchange_over_nccl_is_device_time(
    clock: FakeClock, buckets: int, compute_ns: int, transfer_ns: int, exposed_ns: int
) -> None:
    rank = NcclRank(clock)
    for _ in range(3):
        rank.backward(buckets, compute_ns, transfer_ns)
    *_, first, second = rank.exposed()
    assert (first, second) == (exposed_ns, exposed_ns)
    rows = [CollectiveRow(*row) for row in rank.sink.rows["collectives"]][-buckets:]
    assert [row.end_ns - row.start_ns for row in rows] == [transfer_ns] * buckets
    waited = [row.start_ns - (row.ready_ns or 0) for row in rows]
    queued = max(transfer_ns - compute_ns, 0)
    assert waited == [number * queued for number in range(buckets)]


def test_events_come_back_to_the_pool_after_an_exchange(clock: FakeClock) -> None:
    rank = NcclRank(clock)
    rank.backward(4, 100, 200)
    rank.backward(4, 100, 200)
    made = rank.timer.pool_size
    for _ in range(50):
        rank.backward(4, 100, 200)
    assert rank.timer.pool_size == made


def test_without_a_device_nccl_is_unmeasured_and_not_timed_by_the_host(clock: FakeClock) -> None:
    sink = MemorySink()
    said: list[str] = []
    recorder = Recorder(sink, clock=clock)
    log = BucketLog(
        recorder,
        sink.appender("collectives"),
        "0",
        8,
        "nccl",
        clock=clock,
        unmeasured=said.append,
    )
    log.done(log.launched(0, 100, "float32"))
    log.end_of_backward()
    assert not sink.rows.get("collectives")
    assert not sink.rows.get("spans")
    assert said == ["gradient exchange over nccl without device times"]


def test_a_clock_that_drifts_is_caught_by_the_next_anchor(clock: FakeClock) -> None:
    device, sink, timer, recorder = _setup(clock)
    timer.collect()
    clock.advance(11_000_000_000)
    device.offset_ns += 400_000
    timer.collect()
    start = clock()
    _phase(recorder, "forward", lambda: device.launch(2_000))
    clock.advance(10_000)
    timer.collect()
    assert _spans(sink)[-1].device_end_ns == start + 2_000
