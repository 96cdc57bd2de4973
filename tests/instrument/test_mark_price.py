"""What marking a boundary on the device costs is measured in the loop itself."""

from __future__ import annotations

import time

from profkit.instrument.device import DeviceTimer
from profkit.instrument.mark_price import TIMED
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.rows import SampleRow
from profkit.testing import FakeClock, FakeDevice
from profkit.testing.fakes import FakeEvent
from profkit.vocab import MARK_COST

SLOW_S = 0.0005


class SlowDevice(FakeDevice):
    """A device whose driver takes long to record an event, and longer to make one."""

    def make_event(self) -> FakeEvent:
        time.sleep(10 * SLOW_S)
        return SlowEvent(self)


class SlowEvent(FakeEvent):
    def record(self) -> None:
        time.sleep(SLOW_S)
        super().record()


def _recorder() -> tuple[Recorder, MemorySink, DeviceTimer]:
    clock, sink = FakeClock(), MemorySink()
    device = SlowDevice(clock)
    samples = sink.appender("samples")
    timer = DeviceTimer(device, sink.appender("spans"), clock=clock, samples=samples)
    return Recorder(sink, device=timer, clock=clock), sink, timer


def _train(recorder: Recorder, timer: DeviceTimer, marks: int) -> None:
    for _ in range(marks // 2):
        with recorder.phase("forward"):
            pass
        timer.collect()


def _prices(sink: MemorySink) -> list[float]:
    rows = [SampleRow(*row) for row in sink.rows["samples"]]
    return [row.value for row in rows if row.metric == MARK_COST]


def test_the_price_is_that_of_marks_that_make_no_event() -> None:
    recorder, sink, timer = _recorder()
    _train(recorder, timer, TIMED + 10)
    (price,) = _prices(sink)
    assert SLOW_S * 1e9 <= price < 10 * SLOW_S * 1e9


def test_marks_are_timed_only_as_long_as_needed() -> None:
    recorder, sink, timer = _recorder()
    timed = recorder.marker
    _train(recorder, timer, TIMED - 10)
    assert recorder.marker is timed
    assert not _prices(sink)
    _train(recorder, timer, 40)
    assert recorder.marker is not timed
    assert len(_prices(sink)) == 1


def test_a_run_on_a_device_that_fails_has_no_price() -> None:
    recorder, sink, timer = _recorder()
    timer._device.is_capturing = lambda: True  # type: ignore[method-assign]
    _train(recorder, timer, 3 * TIMED)
    assert not _prices(sink)
