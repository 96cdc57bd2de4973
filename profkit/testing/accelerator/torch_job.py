"""A training job in PyTorch on simulated accelerators, recorded by profkit's own hooks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from profkit.instrument.frameworks.base import load_framework
from profkit.testing.accelerator.devices import Device
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
class Job:
    """The parameters of a job; the truth of a scenario is computed from these alone."""

    steps: int = 40
    batch_size: int = 32
    layers: tuple[tuple[int, int], ...] = ((5 * MS, 10 * MS),) * 4
    kernels_per_layer: int = 1
    elements_per_layer: int = 1024
    optimizer_ns: int = 5 * MS
    copy_ns: int = 1 * MS
    pinned: bool = True
    data_ns: int = 0
    launch_ns: int = 5_000
    read_loss: bool = True
    link: Link = field(default_factory=lambda: Link(latency_ns=1 * MS, bytes_per_s=1e12))
    bucket_elements: int = 1024
    drift: float = 0.0
    connections: int = 8
    largest_pool: int = 4_096


@dataclass
class Rank:
    """One rank of a running job: what its loop works with."""

    job: Job
    device: Device
    torch: SimulatedTorch
    channel: Channel | None
    recording: Recording
    size: int

    def make_model(self) -> Any:
        """Return the job's model, distributed if there are several ranks."""
        job = self.job
        model = make_model(
            self.device,
            job.layers,
            kernels=job.kernels_per_layer,
            elements=job.elements_per_layer,
        )
        if self.channel is None:
            return model
        group = NcclGroup(self.device.number, self.size, self.channel)
        cap = job.bucket_elements * 4 / 2**20
        return DistributedDataParallel(model, process_group=group, bucket_cap_mb=cap)


Loop = Callable[[Rank], None]
"""Trains as one rank."""


def train(rank: Rank) -> None:
    """Train the usual way: copy, forward, backward, step, and read the loss."""
    job, device = rank.job, rank.device
    model = rank.make_model()
    optimizer = Optimizer(model.parameters(), device, job.optimizer_ns)
    batches = Batches(device, job.steps, job.batch_size, lambda index: job.data_ns)
    for batch in make_loader(batches):
        batch.is_pinned_here = job.pinned
        rank.torch.copy_ns = job.copy_ns
        inputs = batch.to("cuda", non_blocking=True)
        loss = on_cuda(model(inputs).sum())
        loss.backward()
        optimizer.step()
        if job.read_loss:
            loss.item()


def run_job(
    folder: Path, jobs: Job | Sequence[Job], *, loop: Loop = train, name: str = "run"
) -> Path:
    """Train with one job per rank, and return the run's folder."""
    jobs = [jobs] if isinstance(jobs, Job) else list(jobs)
    run = folder / name
    run.mkdir(parents=True)
    world = World(len(jobs))
    manifest = _manifest(jobs)
    manifest.write(run)
    ranks: list[Rank] = []
    simulated = SimulatedTorch(lambda: ranks[world.current.number].device)
    communicator = Communicator(len(jobs), jobs[0].link)
    with simulated.installed():
        for host, job in zip(world.hosts, jobs, strict=True):
            ranks.append(_make_rank(host, job, simulated, communicator))
        world.run([functools.partial(_train_rank, loop, rank) for rank in ranks])
        for rank in ranks:
            world.current = rank.device.host
            rank.recording.write(run, len(jobs))
    ended_ns = BEGIN_REALTIME_NS + max(host.ns for host in world.hosts) - BEGIN_NS
    dataclasses.replace(manifest, state=RunState.COMPLETE, ended_ns=ended_ns).write(run)
    return run


def _make_rank(host: Host, job: Job, simulated: SimulatedTorch, communicator: Communicator) -> Rank:
    device = Device(
        host, host.number, drift=job.drift, connections=job.connections, launch_ns=job.launch_ns
    )
    channel = None
    if communicator.size > 1:
        channel = Channel(device, communicator)
        device.end_of_backward = channel.join
    recording = Recording(load_framework("torch"), device, largest_pool=job.largest_pool)
    host.enter, host.leave = recording.hooks.enter, recording.hooks.leave
    return Rank(job, device, simulated, channel, recording, communicator.size)


def _train_rank(loop: Loop, rank: Rank, host: Host) -> None:
    loop(rank)
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
