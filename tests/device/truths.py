"""The truth of a scenario, in closed form from its parameters.

Nothing here asks the simulator or profkit. All times are ns per step of one rank, as its device
spends them: the phases, the data and the exchange as far as the device was idle meanwhile.

Each formula neglects the launches (5 us) unless they are what the scenario is about.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from tests.accelerator.jobs import Job


@dataclass(frozen=True)
class Truth:
    """One rank's mean step. `unknown` is idle time that belongs to no phase."""

    data: float = 0.0
    h2d: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    allreduce: float = 0.0
    optimizer: float = 0.0
    other: float = 0.0
    unknown: float = 0.0
    waiting: float = 0.0
    """The part of `allreduce` in which no data moves, because a rank is late."""

    @property
    def step(self) -> float:
        return float(sum(self.parts.values()))

    @property
    def idle(self) -> float:
        """Time in which the device computes and copies nothing."""
        return self.data + self.allreduce + self.other + self.unknown

    @property
    def parts(self) -> dict[str, float]:
        parts = dataclasses.asdict(self)
        del parts["waiting"]
        return parts


def alone(job: Job, **changes: float) -> Truth:
    """One rank that waits for its batch and reads its loss, so that nothing overlaps."""
    times = alone_ns(job)
    return dataclasses.replace(times, **changes)


def alone_ns(job: Job) -> Truth:
    forward, backward = (sum(times) for times in zip(*job.layers, strict=True))
    micro = job.micro_batches
    return Truth(
        data=micro * waited_input(job),
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
    return float(max(0, job.data_ns - forward - backward - job.copy_ns - job.optimizer_ns))


def launched(job: Job) -> Truth:
    """One rank whose launches take longer than its kernels: the host decides the times."""
    launches = len(job.layers) * job.kernels * job.launch_ns
    return Truth(
        data=waited_input(job),
        h2d=job.launch_ns + job.copy_ns,
        forward=launches - job.copy_ns,
        backward=launches,
        optimizer=job.launch_ns + job.optimizer_ns,
    )


def exchanging(jobs: Sequence[Job], *, ends_shared: bool = False) -> tuple[Truth, ...]:
    """Ranks of DDP over NCCL that read their loss.

    With the end of the last step's exchange at 0, rank r begins a backward with an exchange at s_r,
    and bucket i of n is ready there at s_r + i * b_r. Buckets are reduced in order, each in the
    time l, when the last rank has it. So bucket i begins to move at

        T_i = max over j <= i of (max over r of (s_r + j * b_r) + (i - j) * l)

    and the exchange ends at T_n + l. After a rank's own last gradient it is exposed. Data moves
    there in the overlap with [T_i, T_i + l]; the rest is waiting. Without `no_sync` each
    micro-batch exchanges, and ranks start the next one together.

    With `ends_shared`, as in Paddle, only the exchange's end is seen. Then a rank counts as waiting
    until the last one is ready for the last bucket, at max over r of (s_r + n * b_r), and only what
    is after it as transfer.
    """
    count = jobs[0].micro_batches
    exposed, moving = [0.0] * len(jobs), [0.0] * len(jobs)
    at = [float(job.optimizer_ns) for job in jobs]
    singles = [alone_ns(dataclasses.replace(job, micro_batches=1)) for job in jobs]
    for micro in range(1, count + 1):
        starts = []
        for rank, one in enumerate(singles):
            starts.append(at[rank] + one.data + one.h2d + one.forward)
            at[rank] = starts[rank] + one.backward
        if jobs[0].no_sync and micro < count:
            continue
        moves = transfers(jobs, starts)
        end = moves[-1][1]
        if ends_shared:
            moves = [(max(at), end)]
        for rank, last_gradient in enumerate(at):
            exposed[rank] += end - last_gradient
            for begin, done in moves:
                moving[rank] += max(0.0, done - max(begin, last_gradient))
        at = [end] * len(jobs)
    truths = []
    for job, whole, moved in zip(jobs, exposed, moving, strict=True):
        truths.append(dataclasses.replace(alone_ns(job), allreduce=whole, waiting=whole - moved))
    return tuple(truths)


def transfers(jobs: Sequence[Job], starts: Sequence[float]) -> list[tuple[float, float]]:
    """When each bucket's data moves, if the ranks begin their backwards at these times."""
    first = jobs[0]
    buckets = len(first.layers) // first.bucket_layers
    size = 4 * first.elements * first.bucket_layers
    link_ns = first.link.latency_ns + size * 1e9 / first.link.bytes_per_s
    ready = []
    for number in range(1, buckets + 1):
        times = []
        for job, start in zip(jobs, starts, strict=True):
            times.append(start + number * job.bucket_layers * job.layers[0][1])
        ready.append(max(times))
    moves = []
    for last in range(buckets):
        begin = max(ready[each] + (last - each) * link_ns for each in range(last + 1))
        moves.append((begin, begin + link_ns))
    return moves


def mean(truths: Sequence[Truth]) -> Truth:
    """The mean over the ranks, as a run's screens show it."""
    values = {}
    for field in dataclasses.fields(Truth):
        values[field.name] = sum(getattr(each, field.name) for each in truths) / len(truths)
    return Truth(**values)


def factors(base: Truth, run: Truth) -> dict[str, float]:
    """The factors of a run's efficiency, as a step's time is stacked up from its parts."""
    stages = []
    for truth in (base, run):
        computing = truth.step - truth.data - truth.allreduce
        with_input = computing + truth.data
        stages.append((computing, with_input, with_input + truth.waiting, truth.step))
    before, after = stages
    found = {"efficiency": before[-1] / after[-1], "computation": before[0] / after[0]}
    for place, name in enumerate(("data", "load balance", "exposed communication"), 1):
        growth = [stage[place] / stage[place - 1] for stage in (before, after)]
        found[name] = growth[0] / growth[1]
    return found
