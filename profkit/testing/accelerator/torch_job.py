"""A training job in PyTorch on simulated accelerators, recorded by profkit's own hooks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from profkit.instrument.frameworks.base import load_framework
from profkit.testing.accelerator.devices import MOST_PENDING, AcceleratorError, Device, Event
from profkit.testing.accelerator.hosts import BEGIN_NS, Host, World
from profkit.testing.accelerator.nccl import Channel, Communicator, Link
from profkit.testing.accelerator.recordings import BEGIN_REALTIME_NS, Recording
from profkit.testing.accelerator.torch_fakes import SimulatedTorch, on_cuda
from profkit.testing.accelerator.torch_groups import NcclGroup
from profkit.testing.accelerator.torch_parts import Batches, Optimizer, make_loader, make_model
from profkit.trace import RunManifest
from profkit.vocab import RunState

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
    fault: Fault | None = None


@dataclass
class Rank:
    """One rank of a running job: what its loop works with."""

    job: Job
    device: Device
    torch: SimulatedTorch
    channel: Channel | None
    recording: Recording | None
    size: int

    @property
    def host(self) -> Host:
        return self.device.host

    def make_model(self) -> Any:
        """Return the job's model, distributed if there are several ranks."""
        job = self.job
        model = make_model(self.device, job.layers, kernels=job.kernels, elements=job.elements)
        if self.channel is None:
            return model
        group = NcclGroup(self.device.number, self.size, self.channel)
        cap = job.bucket_layers * job.elements * 4 / 2**20
        return DistributedDataParallel(model, process_group=group, bucket_cap_mb=cap)

    def make_optimizer(self, model: Any) -> Optimizer:
        return Optimizer(model.parameters(), self.device, self.job.optimizer_ns)

    def batches(self, count: int | None = None) -> Iterator[torch.Tensor]:
        """Return torch's own loader of the job's batches, for all of its steps."""
        job = self.job
        if count is None:
            count = job.steps * job.micro_batches
        made = Batches(self.device, count, job.batch_size, job.data_ns, worker=job.worker)
        return iter(make_loader(made))

    def copy(self, batch: torch.Tensor) -> torch.Tensor:
        """Copy a batch to the device, from pinned memory if the job has its batches there."""
        batch.is_pinned_here = self.job.pinned  # type: ignore[attr-defined]  # see `Tensor.to`
        self.torch.copy_ns = self.job.copy_ns
        return batch.to("cuda", non_blocking=True)


Loop = Callable[[Rank], None]
"""Trains as one rank."""


def train(rank: Rank) -> None:
    """Train the usual way: copy, forward, backward, step, and read the loss."""
    job, model = rank.job, rank.make_model()
    optimizer = rank.make_optimizer(model)
    for number, batch in enumerate(rank.batches()):
        is_last = (number + 1) % job.micro_batches == 0
        quiet = job.no_sync and not is_last
        with model.no_sync() if quiet else contextlib.nullcontext():
            loss = on_cuda(model(rank.copy(batch)).sum())
            loss.backward()
        if not is_last:
            continue
        optimizer.step()
        step = (number + 1) // job.micro_batches
        if job.loss_every and step % job.loss_every == 0:
            loss.item()
    torch.cuda.synchronize()


@dataclass(frozen=True)
class Finished:
    """A job that has ended: its run, if it was recorded, and when each rank's loop ended."""

    run: Path | None
    ended_ns: tuple[int, ...]


def run_job(
    folder: Path, jobs: Job | Sequence[Job], *, loop: Loop = train, name: str = "run"
) -> Path:
    """Train with one job per rank, and return the run's folder."""
    run = folder / name
    run_ranks(jobs, loop, run)
    return run


def run_ranks(jobs: Job | Sequence[Job], loop: Loop = train, run: Path | None = None) -> Finished:
    """Train with one job per rank, recorded by profkit if a run's folder is given."""
    jobs = [jobs] if isinstance(jobs, Job) else list(jobs)
    world = World(len(jobs))
    ranks: list[Rank] = []
    simulated = SimulatedTorch(lambda: ranks[world.current.number].device)
    communicator = Communicator(len(jobs), jobs[0].link)
    with simulated.installed():
        for host, job in zip(world.hosts, jobs, strict=True):
            ranks.append(_make_rank(host, job, simulated, communicator, recorded=run is not None))
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
    manifest = _manifest([rank.job for rank in ranks])
    dataclasses.replace(manifest, state=RunState.COMPLETE, ended_ns=ended_ns).write(run)


def _make_rank(
    host: Host,
    job: Job,
    simulated: SimulatedTorch,
    communicator: Communicator,
    *,
    recorded: bool,
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
    recording = None
    if recorded:
        recording = Recording(load_framework("torch"), device, largest_pool=job.largest_pool)
        host.enter, host.leave = recording.hooks.enter, recording.hooks.leave
    return Rank(job, device, simulated, channel, recording, communicator.size)


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


def _manifest(jobs: Sequence[Job]) -> RunManifest:
    config = {
        "precision": "fp32",
        "device": "cuda:0",
        "batch_size": jobs[0].batch_size,
        "world_size": len(jobs),
        "warmup": 5,
    }
    return RunManifest(
        workload="simulated",
        framework="torch",
        world_size=len(jobs),
        created_ns=BEGIN_REALTIME_NS,
        config=config,
        profkit_version="0",
        environment={"system": "simulated"},
    )
