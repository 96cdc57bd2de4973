"""Device times through a fake device: pooled, in order, never waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from profkit.instrument.device import DeviceTimer
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.rows import SpanRow
from profkit.testing import FakeClock, FakeDevice


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
    assert timer.unmarked == 7
    assert [row.device_end_ns is None for row in _spans(sink)] == [False, True, True, True, True]


def test_the_last_rows_are_written_even_if_the_device_never_gets_there(clock: FakeClock) -> None:
    device, sink, timer, recorder = _setup(clock)
    timer.collect()
    _phase(recorder, "forward", lambda: device.launch(10**15))
    timer.collect(final=True)
    (row,) = _spans(sink)
    assert row.device_start_ns is None
    assert row.device_end_ns is None


def test_without_an_anchor_there_are_no_device_times(clock: FakeClock) -> None:
    device, sink, timer, recorder = _setup(clock)
    device.idle_answers = False
    _phase(recorder, "forward", lambda: device.launch(10))
    clock.advance(100)
    timer.collect()
    (row,) = _spans(sink)
    assert (row.device_start_ns, row.device_end_ns) == (None, None)
    device.idle_answers = True
    _phase(recorder, "forward", lambda: device.launch(10))
    clock.advance(100)
    timer.collect()
    assert _spans(sink)[1].device_end_ns is not None


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
