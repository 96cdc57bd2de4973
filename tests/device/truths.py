"""The truth of a scenario, in closed form from its parameters.

Nothing here asks the simulator or profkit. All times are ns per step of one rank, as its device
spends them: the phases, the input and the exchange as far as the device was idle meanwhile.

Each formula neglects the launches (5 us) unless they are what the scenario is about.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from profkit.testing.accelerator.torch_job import Job


@dataclass(frozen=True)
class Truth:
    """One rank's mean step. `unknown` is idle time that belongs to no phase."""

    input: float = 0.0
    h2d: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    allreduce: float = 0.0
    optimizer: float = 0.0
    other: float = 0.0
    unknown: float = 0.0

    @property
    def step(self) -> float:
        return sum(self.parts.values())

    @property
    def idle(self) -> float:
        """Time in which the device computes and copies nothing."""
        return self.input + self.allreduce + self.other + self.unknown

    @property
    def parts(self) -> dict[str, float]:
        return dataclasses.asdict(self)


def alone(job: Job, **changes: float) -> Truth:
    """One rank that waits for its batch and reads its loss, so that nothing overlaps."""
    times = alone_ns(job)
    return dataclasses.replace(times, **changes)


def alone_ns(job: Job) -> Truth:
    forward, backward = (sum(times) for times in zip(*job.layers, strict=True))
    micro = job.micro_batches
    return Truth(
        input=micro * waited_input(job),
        h2d=micro * job.copy_ns,
        forward=micro * forward,
        backward=micro * backward,
        optimizer=job.optimizer_ns,
    )


def waited_input(job: Job) -> float:
    """A worker makes a batch while the device computes; the loop waits for the rest."""
    if not job.worker:
        return job.data_ns
    forward, backward = (sum(times) for times in zip(*job.layers, strict=True))
    return max(0, job.data_ns - forward - backward - job.copy_ns - job.optimizer_ns)


def launched(job: Job) -> Truth:
    """One rank whose launches take longer than its kernels: the host decides the times."""
    launches = len(job.layers) * job.kernels * job.launch_ns
    return Truth(
        input=waited_input(job),
        h2d=job.launch_ns + job.copy_ns,
        forward=launches - job.copy_ns,
        backward=launches,
        optimizer=job.launch_ns + job.optimizer_ns,
    )


def exchanging(jobs: Sequence[Job]) -> tuple[Truth, ...]:
    """Ranks of DDP over NCCL that read their loss.

    With the end of the last step's exchange at 0, rank r begins its last backward at s_r, and
    bucket i of n is ready there at s_r + i * b_r. Buckets are reduced in order, each when the last
    rank has it, in the time l. So the exchange ends at

        max over i of (max over r of (s_r + i * b_r) + (n - i + 1) * l)

    and what lies after a rank's own last gradient is exposed. Without `no_sync` each micro-batch
    exchanges, and ranks then start the next micro-batch together.
    """
    exposed = [0.0] * len(jobs)
    offsets = [float(job.optimizer_ns) for job in jobs]
    singles = [alone_ns(dataclasses.replace(job, micro_batches=1)) for job in jobs]
    for micro in range(jobs[0].micro_batches):
        for rank, one in enumerate(singles):
            offsets[rank] += one.input + one.h2d + one.forward
        is_last = micro == jobs[0].micro_batches - 1
        if jobs[0].no_sync and not is_last:
            for rank, one in enumerate(singles):
                offsets[rank] += one.backward
            continue
        end = end_of_exchange(jobs, offsets)
        for rank, one in enumerate(singles):
            exposed[rank] += end - offsets[rank] - one.backward
            offsets[rank] = end
    truths = []
    for job, waited in zip(jobs, exposed, strict=True):
        truths.append(dataclasses.replace(alone_ns(job), allreduce=waited))
    return tuple(truths)


def end_of_exchange(jobs: Sequence[Job], starts: Sequence[float]) -> float:
    first = jobs[0]
    buckets = len(first.layers) // first.bucket_layers
    size = 4 * first.elements * first.bucket_layers
    link_ns = first.link.latency_ns + size * 1e9 / first.link.bytes_per_s
    ends = []
    for number in range(1, buckets + 1):
        ready = []
        for job, start in zip(jobs, starts, strict=True):
            ready.append(start + number * job.bucket_layers * job.layers[0][1])
        ends.append(max(ready) + (buckets - number + 1) * link_ns)
    return max(ends)


def mean(truths: Sequence[Truth]) -> Truth:
    """The mean over the ranks, as a run's screens show it."""
    values = {}
    for name in truths[0].parts:
        values[name] = sum(truth.parts[name] for truth in truths) / len(truths)
    return Truth(**values)
