"""Jobs on simulated accelerators: their parameters, their ranks, and how they are run."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from profkit.instrument.blocks import off_blocks
from profkit.instrument.frameworks.base import load_framework
from profkit.trace import RunManifest
from profkit.vocab import RunState
from tests.accelerator.devices import MOST_PENDING, AcceleratorError, Device, Event
from tests.accelerator.hosts import BEGIN_NS, Host, World
from tests.accelerator.nccl import Channel, Communicator, Link
from tests.accelerator.recordings import BEGIN_REALTIME_NS, Recording
from tests.accelerator.replacing import recorded_by

MS = 1_000_000


@dataclass(frozen=True)
class Fault:
    """An operation on events that fails: the calls number `first` to `first + count` of it."""

    operation: str
    first: int
    count: int = 1


@dataclass(frozen=True)
class Job:
    """The parameters of one rank's job; the truth of a scenario is computed from these alone."""

    steps: int = 60
    batch_size: int = 32
    layers: tuple[tuple[int, int], ...] = ((5 * MS, 10 * MS),) * 4
    """Time forward and backward of each layer."""
    kernels: int = 1
    """Kernels of a layer in each direction."""
    elements: int = 1024
    """Elements of a layer's weight, which are four bytes each."""
    optimizer_ns: int = 5 * MS
    copy_ns: int = 1 * MS
    pinned: bool = True
    data_ns: int = 0
    worker: bool = False
    """True if a worker makes the batches, and not the loop."""
    launch_ns: int = 5_000
    loss_every: int = 1
    """Steps between two readings of the loss; 0 is never."""
    micro_batches: int = 1
    no_sync: bool = False
    """True if only the last micro-batch exchanges gradients."""
    link: Link = field(default_factory=lambda: Link(latency_ns=1 * MS, bytes_per_s=1e15))
    bucket_layers: int = 1
    drift: float = 0.0
    connections: int = 8
    most_pending: int = MOST_PENDING
    idle_delay_ns: int = 0
    largest_pool: int = 4_096
    control_steps: bool = False
    """True if profkit records nothing in some steps, to measure its own cost."""
    fault: Fault | None = None


class Simulated(Protocol):
    """The names of a framework that stand in for those of a device."""

    copy_ns: int

    def installed(self) -> contextlib.AbstractContextManager[None]:
        """Replace the names until the block ends."""


@dataclass
class Rank:
    """One rank of a running job: what its loop works with. Each framework has its own kind."""

    framework: ClassVar[str]
    job: Job
    device: Device
    simulated: Simulated
    channel: Channel | None
    recording: Recording | None
    size: int

    @property
    def host(self) -> Host:
        return self.device.host

    @classmethod
    def simulate(cls, device: Callable[[], Device]) -> Simulated:
        """Return the framework's names for the device of the rank whose turn it is."""
        raise NotImplementedError


Loop = Callable[[Any], None]
"""Trains as one rank, which is its argument."""


@dataclass(frozen=True)
class Finished:
    """A job that has ended: its run, if it was recorded, and when each rank's loop ended."""

    run: Path | None
    ended_ns: tuple[int, ...]


def run_ranks(
    kind: type[Rank], jobs: Sequence[Job], loop: Loop, run: Path | None = None
) -> Finished:
    """Train with one job per rank, recorded by profkit if a run's folder is given."""
    world = World(len(jobs))
    ranks: list[Rank] = []
    simulated = kind.simulate(lambda: ranks[world.current.number].device)
    communicator = Communicator(len(jobs), jobs[0].link)
    load_framework(kind.framework)
    # The clock is that of the rank whose turn it is.
    with simulated.installed(), recorded_by(lambda: world.current()):  # noqa: PLW0108  # see above
        for host, job in zip(world.hosts, jobs, strict=True):
            rank = _make_rank(kind, host, job, simulated, communicator)
            ranks.append(rank)
            if run is not None:
                _record(rank)
        world.run([functools.partial(_train_rank, loop, rank) for rank in ranks])
        ended_ns = tuple(host.ns for host in world.hosts)
        if run is not None:
            _write_run(run, world, ranks)
    return Finished(run, ended_ns)


def _write_run(run: Path, world: World, ranks: Sequence[Rank]) -> None:
    run.mkdir(parents=True)
    for rank in ranks:
        world.current = rank.host
        if rank.recording is not None:
            rank.recording.write(run, len(ranks))
    ended_ns = BEGIN_REALTIME_NS + max(rank.host.ns for rank in ranks) - BEGIN_NS
    config = {
        "precision": "fp32",
        "device": "cuda:0",
        "batch_size": ranks[0].job.batch_size,
        "world_size": len(ranks),
        "warmup": 5,
    }
    RunManifest(
        workload="simulated",
        framework=ranks[0].framework,
        state=RunState.COMPLETE,
        world_size=len(ranks),
        created_ns=BEGIN_REALTIME_NS,
        ended_ns=ended_ns,
        config=config,
        profkit_version="0",
        environment={"system": "simulated"},
    ).write(run)


def _make_rank(
    kind: type[Rank], host: Host, job: Job, simulated: Simulated, communicator: Communicator
) -> Rank:
    device = Device(
        host,
        host.number,
        drift=job.drift,
        connections=job.connections,
        launch_ns=job.launch_ns,
        most_pending=job.most_pending,
        idle_delay_ns=job.idle_delay_ns,
        event_fault=_make_fault(job.fault) if job.fault else None,
    )
    channel = None
    if communicator.size > 1:
        channel = Channel(device, communicator)
        device.end_of_backward = channel.join
    return kind(job, device, simulated, channel, None, communicator.size)


def _record(rank: Rank) -> None:
    """Install profkit's hooks, which are there in the rank's turn only."""
    framework = load_framework(rank.framework)
    rank.recording = Recording(
        framework,
        rank.device,
        largest_pool=rank.job.largest_pool,
        is_measured=off_blocks() if rank.job.control_steps else lambda step: True,
    )
    rank.host.enter, rank.host.leave = rank.recording.hooks.enter, rank.recording.hooks.leave


def _make_fault(fault: Fault) -> Callable[[Event, str], None]:
    """Return a function that raises at the calls that the fault names."""
    calls = itertools.count()

    def meet(event: Event, operation: str) -> None:
        if operation == fault.operation and 0 <= next(calls) - fault.first < fault.count:
            raise AcceleratorError(
                f"CUDA error: an illegal memory access was encountered: {operation}"
            )

    return meet


def _train_rank(loop: Loop, rank: Rank, host: Host) -> None:
    loop(rank)
    if rank.recording is not None:
        rank.recording.finish()
