"""Events of torch are recorded on the stream in use, also if it is known from before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from profkit.instrument.captures import Captures
from profkit.instrument.device import DeviceTimer
from profkit.instrument.frameworks.pytorch.device import MOST_STREAMS, CudaDevice
from profkit.instrument.frameworks.pytorch.windows import tears_down_safely
from profkit.instrument.rows import Event, Row, SpanRow
from tests.accelerator.devices import Device
from tests.accelerator.hosts import Host
from tests.accelerator.torch_fakes import SimulatedTorch

MS = 1_000_000


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device(Host(), launch_ns=10)
    with SimulatedTorch(lambda: made).installed():
        yield made


def recorded(cuda: CudaDevice) -> Event:
    event = cuda.make_event()
    event.record()
    return event


def test_an_event_waits_for_its_own_stream(device: Device) -> None:
    cuda, side = CudaDevice(), torch.cuda.Stream()
    for _ in range(2):  # the second time, both streams are known
        with torch.cuda.stream(side):
            device.launch(5 * MS)
            late = recorded(cuda)
        soon = recorded(cuda)
        assert soon.done()
        assert not late.done()
        device.host.work(6 * MS)
        assert late.done()


def test_of_two_events_of_a_stream_only_the_later_one_is_asked(device: Device) -> None:
    asked: list[Event] = []
    device.event_fault = lambda event, operation: (
        asked.append(event) if operation == "query" else None  # type: ignore[arg-type]
    )
    rows: list[Row] = []
    cuda, side = CudaDevice(), torch.cuda.Stream()
    timer = DeviceTimer(cuda, rows.append, clock=device.host, captures=Captures())
    for stream in (None, side):
        start = timer.mark()
        device.launch(5 * MS)
        with torch.cuda.stream(stream):
            end = timer.mark()
        timer.hold(SpanRow(0, "forward", "forward", 0, "MainThread", 0, 1), start, end)
    device.host.work(20 * MS)
    timer.collect()
    assert len(rows) == 2
    known = {id(event.cuda) for event in timer._free}  # type: ignore[attr-defined]
    assert len([event for event in asked if id(event) in known]) == 1 + 2


def test_a_job_with_ever_new_streams_fills_no_memory(device: Device) -> None:
    cuda = CudaDevice()
    for _ in range(3 * MOST_STREAMS):
        with torch.cuda.stream(torch.cuda.Stream()):
            device.launch(MS)
            assert not recorded(cuda).done()
    assert len(cuda.mark_streams()) <= MOST_STREAMS


def test_all_streams_that_were_used_are_marked(device: Device) -> None:
    cuda, side = CudaDevice(), torch.cuda.Stream()
    assert cuda.mark_streams() == [], "no stream is known yet"
    recorded(cuda)
    with torch.cuda.stream(side):
        recorded(cuda)
        device.launch(5 * MS)
    marks = cuda.mark_streams()
    assert [mark.done() for mark in marks] == [True, False]
    device.host.work(6 * MS)
    assert all(mark.done() for mark in marks)


def test_a_stream_of_another_library_may_be_gone_and_is_not_marked(device: Device) -> None:
    cuda, foreign = CudaDevice(), torch.cuda.Stream()
    foreign.stream_id = 0x7F00_0010  # its address
    with torch.cuda.stream(foreign):
        device.launch(5 * MS)
        assert not recorded(cuda).done()
    assert cuda.mark_streams() == []


def test_a_stream_that_captures_is_not_marked(device: Device) -> None:
    cuda = CudaDevice()
    recorded(cuda)
    device.begin_capture()
    assert cuda.mark_streams() == []
    device.launch(MS)
    assert len(device.end_capture()) == 1


@pytest.mark.parametrize(
    ("cuda", "has_graphs", "is_safe"),
    [
        ("13.0", False, True),
        ("12.6", False, True),
        ("12.10", False, True),
        ("13.0", True, False),
        ("12.4", False, False),
        ("11.8", False, False),
        (None, False, False),
    ],
)
def test_cupti_is_torn_down_where_that_is_safe(
    cuda: str | None, has_graphs: bool, is_safe: bool
) -> None:
    captures = Captures()
    if has_graphs:
        captures.begin()
        captures.end()
    assert tears_down_safely(cuda, captures) is is_safe
