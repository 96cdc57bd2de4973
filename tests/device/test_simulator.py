"""The simulated accelerator behaves as the documentation says that a real one does."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest

from profkit.trace import Trace
from tests.accelerator.devices import AcceleratorError, Device, Event, Stream
from tests.accelerator.hosts import BEGIN_NS, Deadlock, Host, World
from tests.accelerator.jobs import MS, Job, run_ranks
from tests.accelerator.moments import Moment
from tests.accelerator.nccl import Channel, Communicator, Link
from tests.accelerator.torch_job import TorchRank, train


@pytest.fixture
def device() -> Device:
    return Device(Host(), launch_ns=10)


def test_streams_run_behind_the_host(device: Device) -> None:
    ends = [device.launch(1_000) for _ in range(3)]
    assert device.host() == BEGIN_NS + 30
    assert [end.ns for end in ends] == [BEGIN_NS + 10 + 1_000 * n for n in (1, 2, 3)]


def test_a_pageable_copy_waits_and_a_pinned_one_does_not(device: Device) -> None:
    device.copy(1_000, waits=False)
    assert device.host() == BEGIN_NS + 10
    device.copy(1_000, waits=True)
    assert device.host() == BEGIN_NS + 2_010


def test_events_are_reached_when_earlier_work_is_done(device: Device) -> None:
    first, second = Event(device), Event(device)
    first.record()
    device.launch(5_000_000)
    second.record()
    assert first.query()
    assert not second.query()
    with pytest.raises(AcceleratorError, match="not ready"):
        first.elapsed_time(second)
    second.synchronize()
    assert first.elapsed_time(second) == pytest.approx(5.00001)


def test_streams_overlap_unless_they_share_one_queue(device: Device) -> None:
    other = Stream(device)
    device.launch(1_000)
    device.launch(1_000)
    assert other.put(10).ns == BEGIN_NS + 30
    device.launch(1_000)
    device.connections = 1
    assert other.put(10).ns == BEGIN_NS + 2_020, "the third kernel has begun"


def test_a_capture_records_and_a_query_from_another_thread_invalidates_it(device: Device) -> None:
    event = Event(device)
    event.record()
    device.begin_capture()
    device.launch(1_000)
    assert device.stream.tail.ns == 0, "nothing has run"
    work = device.end_capture()
    device.replay(work)
    assert device.stream.tail.ns == device.host() + 1_000
    device.begin_capture()

    def ask() -> None:
        with pytest.raises(AcceleratorError, match="capturing"):
            event.query()

    device.host.run_writer(ask)
    with pytest.raises(AcceleratorError, match="previous error"):
        device.end_capture()


def test_a_capture_of_one_thread_does_not_concern_another(device: Device) -> None:
    event = Event(device)
    event.record()
    device.begin_capture("thread_local")
    device.host.run_writer(event.query)
    assert device.end_capture() == ()


def test_a_collective_waits_for_the_last_rank() -> None:
    world = World(2)
    communicator = Communicator(2, Link(latency_ns=100))
    ends: list[Moment] = []

    def program(host: Host) -> None:
        device = Device(host, launch_ns=0)
        channel = Channel(device, communicator)
        device.launch(1_000 * (1 + host.number))
        ends.append(channel.enqueue(0))
        assert host() == BEGIN_NS, "a call only enqueues"
        channel.join()
        device.synchronize()

    world.run([program, program])
    assert [end.ns for end in ends] == [BEGIN_NS + 2_100] * 2
    assert [host.ns for host in world.hosts] == [BEGIN_NS + 2_100] * 2


def test_ranks_that_wait_for_each_other_forever_are_an_error() -> None:
    world, communicator = World(2), Communicator(2, Link())

    def program(host: Host) -> None:
        if host.number == 0:
            channel = Channel(Device(host), communicator)
            host.wait_for(channel.enqueue(0))

    with pytest.raises(Deadlock):
        world.run([program, program])


def test_a_step_of_ddp_takes_what_its_parameters_say(tmp_path: Path) -> None:
    """Four buckets of 30 ms; the first is ready when a quarter of the backward is done."""
    link = Link(latency_ns=30 * MS, bytes_per_s=1e15)
    job = Job(steps=12, optimizer_ns=5 * MS, copy_ns=MS, link=link)
    run_ranks(TorchRank, [job, job], train, tmp_path / "run")
    trace = Trace.open(tmp_path / "run")
    steps = trace.steps.filter(pc.greater(trace.steps["step"], 2))
    took = pc.subtract(steps["end_ns"], steps["start_ns"]).to_pylist()
    truth = (1 + 20 + 10 + 4 * 30 + 5) * MS
    assert took == pytest.approx([truth] * len(took), rel=0.01)
