"""A device that does not go on is told from one that does, and from a driver that is silent."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from profkit.clock import now_ns
from profkit.hangs.status import FOLDER, Status, read_statuses
from profkit.instrument.captures import Captures
from profkit.instrument.device import DeviceTimer
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.rows import Event
from profkit.instrument.tracking.tracker import Tracker
from profkit.rank import Rank
from profkit.run.lookout.device_look import ANSWER_S, DeviceLook
from profkit.run.lookout.lookout import Lookout
from profkit.testing import FakeClock, FakeDevice

SECOND = 1_000_000_000
LIMIT_S = 1.2
ROWS: list[Any] = []


class Silent(FakeDevice):
    """A driver that does not answer until it is let."""

    asked = 0

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.let = threading.Event()

    def mark_streams(self) -> list[Event]:
        self.asked += 1
        self.let.wait()
        return super().mark_streams()


def made(device: FakeDevice, captures: Captures | None = None) -> DeviceTimer:
    return DeviceTimer(device, ROWS.append, clock=device.clock, captures=captures or Captures())


def test_a_device_at_work_that_was_launched_before_is_behind() -> None:
    clock = FakeClock()
    device = FakeDevice(clock)
    timer, look = made(device), DeviceLook(clock)
    device.launch(20 * SECOND)
    assert look.behind_s(timer) == 0
    clock.advance(7 * SECOND)
    device.launch(100 * SECOND)  # what comes later does not matter
    assert look.behind_s(timer) == 7
    clock.advance(14 * SECOND)
    assert look.behind_s(timer) == 0  # it has gone on, and is at the later work
    clock.advance(3 * SECOND)
    assert look.behind_s(timer) == 3
    look.forget()
    assert look.behind_s(timer) == 0


def test_a_device_that_goes_on_is_not_behind() -> None:
    clock = FakeClock()
    device = FakeDevice(clock)
    timer, look = made(device), DeviceLook(clock)
    for _ in range(10):
        device.launch(SECOND // 2)
        assert look.behind_s(timer) == 0
        clock.advance(SECOND)


def test_nothing_is_known_without_a_device_or_during_a_capture() -> None:
    clock, captures = FakeClock(), Captures()
    device = FakeDevice(clock)
    look = DeviceLook(clock)
    assert look.behind_s(None) is None
    captures.begin()
    assert look.behind_s(made(device, captures)) is None
    assert not device.made


def test_a_capture_that_begins_later_is_not_disturbed() -> None:
    clock, captures = FakeClock(), Captures()
    device = FakeDevice(clock)
    timer, look = made(device, captures), DeviceLook(clock)
    assert look.behind_s(timer) == 0
    captures.begin()
    clock.advance(SECOND)
    asked = len(device.made)
    assert look.behind_s(timer) is None
    assert len(device.made) == asked


def test_a_driver_that_does_not_answer_holds_up_nothing() -> None:
    clock = FakeClock()
    device = Silent(clock)
    timer, look = made(device), DeviceLook(clock)
    began = time.monotonic()
    assert look.behind_s(timer) is None
    assert look.behind_s(timer) is None
    assert time.monotonic() - began < 50 * ANSWER_S
    assert device.asked == 1
    device.let.set()


@pytest.mark.parametrize("launched_s", [0, 60])
def test_a_thread_that_spins_shows_life_unless_its_device_is_behind(
    tmp_path: Path, launched_s: int
) -> None:
    recorder = Recorder(MemorySink())
    device = FakeDevice(now_ns)  # type: ignore[arg-type]  # a clock that goes by itself
    recorder.time_device(DeviceTimer(device, ROWS.append, captures=Captures()))
    lookout = Lookout(tmp_path, Tracker(recorder), LIMIT_S)
    lookout.start(Rank(0, 1), lambda: None)
    for _ in range(3):
        recorder.end_step(recorder.clock(), 4)
    device.launch(launched_s * SECOND)
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        pass
    (status,) = read_statuses(tmp_path / FOLDER)
    lookout.stop()
    assert isinstance(status, Status)
    assert status.device_behind_s is not None
    idle_s = (status.written_ns - status.alive_ns) / 1e9
    assert (status.device_behind_s > LIMIT_S / 4) == bool(launched_s)
    assert (idle_s > LIMIT_S / 2) == bool(launched_s)
