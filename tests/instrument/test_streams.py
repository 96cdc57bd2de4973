"""A stream of torch is known again by its device and its handle."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("torch")

from profkit.instrument.frameworks.pytorch.device import (  # torch
    MOST_STREAMS,
    StreamEvent,
    Streams,
)


@dataclass
class Stream:
    handle: int
    stream_id: int


@dataclass
class Driver:
    """The streams of a process, of which each device has a current one."""

    device: int = 0
    current: dict[int, Stream] = field(default_factory=dict)
    asked: int = 0
    """How often torch made an object of the current stream."""

    def streams(self) -> Streams:
        return Streams(lambda: self.device, lambda device: self.current[device].handle, self.ask)

    def ask(self) -> Stream:
        self.asked += 1
        return self.current[self.device]


class Recorded:
    """An event that remembers on which streams it was recorded."""

    def __init__(self) -> None:
        self.on: list[Any] = []

    def record(self, stream: Any) -> None:
        self.on.append(stream)


def test_an_event_is_recorded_on_the_stream_that_is_current() -> None:
    first, second, other = Stream(0, 0), Stream(8, 35), Stream(0, 0)
    driver, event = Driver(current={0: first, 1: other}), Recorded()
    ours = StreamEvent(event, driver.streams())
    ours.record()
    driver.current[0] = second
    ours.record()
    driver.device = 1  # its default stream has the same handle
    ours.record()
    driver.device, driver.current[0] = 0, first
    ours.record()
    assert [id(stream) for stream in event.on] == list(map(id, (first, second, other, first)))
    assert driver.asked == 3


def test_streams_that_a_job_makes_forever_are_forgotten() -> None:
    driver = Driver(current={0: Stream(0, 0)})
    streams = driver.streams()
    ours = StreamEvent(Recorded(), streams)
    for handle in itertools.islice(itertools.count(8, 8), 3 * MOST_STREAMS):
        driver.current[0] = Stream(handle, 35)
        ours.record()
    assert len(streams.known) <= MOST_STREAMS


def test_only_streams_of_torch_are_used_later() -> None:
    driver = Driver()
    streams = driver.streams()
    mine = [Stream(0, 0), Stream(8, 35)]
    for stream in (*mine, Stream(16, 94_123_456)):
        driver.current[0] = stream
        streams.find()
    assert streams.used() == mine
