"""The scenarios: jobs on simulated accelerators, and what is true of them.

One table. A scenario without `base` is compared with `compute_bound`, or with one rank of its own
job if it has several.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.accelerator.jobs import MS, Fault, Job, Loop, Rank
from tests.accelerator.nccl import Link
from tests.accelerator.paddle_job import OldPaddleRank, PaddleRank
from tests.accelerator.paddle_job import train as train_paddle
from tests.accelerator.torch_job import TorchRank, train
from tests.device import loops
from tests.device.truths import Truth, alone, exchanging, launched, mean

US = 1_000


@dataclass(frozen=True)
class Cause:
    """A cause of the gap to the base: its kind, the phase that it names, and its cost in ns."""

    kind: str
    phase: str = ""
    cost: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """A job, one `Job` per rank, with the truth of each rank's mean step."""

    name: str
    jobs: tuple[Job, ...]
    truths: tuple[Truth, ...]
    loop: Loop = train
    says_missing: bool = False
    """True if device times are missing: screens may refuse figures, with the reason."""
    kind: type[Rank] = TorchRank
    dropped: int = 0
    """Number of batches on which the job does not train."""
    causes: tuple[Cause, ...] = ()
    """What `explain` must name, compared with the base; it must name nothing else that matters."""
    hidden_input: float = 0.0
    """Wait for batches under the device's work, in ns per step."""

    @property
    def samples(self) -> int:
        """Samples of a rank's step."""
        return self.jobs[0].batch_size * self.jobs[0].micro_batches

    @property
    def faultless(self) -> tuple[Job, ...]:
        return tuple(dataclasses.replace(job, fault=None) for job in self.jobs)


def one(name: str, truth: Truth | None = None, loop: Loop = train, **options: Any) -> Scenario:
    """A scenario of one rank."""
    extra = {
        key: options.pop(key)
        for key in ("says_missing", "hidden_input", "dropped", "causes")
        if key in options
    }
    job = Job(**options)
    truth = truth or alone(job)
    if truth.data:
        extra.setdefault("causes", (Cause("input_bound", "read", truth.data),))
    elif truth.other:
        extra["causes"] = (Cause(f"{name}_in_training", cost=truth.other),)
    return Scenario(name, (job,), (truth,), loop, **extra)


def many(
    name: str,
    ranks: int,
    late: dict[str, Any] | None = None,
    says_missing: bool = False,
    ends_shared: bool = False,
    **options: Any,
) -> Scenario:
    """A scenario of ranks with equal jobs, but for the last one if it is late."""
    job = Job(**options)
    jobs = [job] * ranks
    if late:
        jobs[-1] = dataclasses.replace(job, **late)
    truths = exchanging(jobs, ends_shared=ends_shared)
    gap = mean(truths).step - alone(job).step
    causes = [Cause("exposed_communication", cost=gap)]
    if late and "_in_" in name:
        last, usual = truths[-1].parts, truths[0].parts
        phase = max(set(last) - {"allreduce"}, key=lambda part: last[part] - usual[part])
        cause = Cause("late_rank", phase, last[phase] - usual[phase])
        causes = [cause, dataclasses.replace(causes[0], cost=gap - cause.cost)]
    return Scenario(name, tuple(jobs), truths, says_missing=says_missing, causes=tuple(causes))


def layers(forward_ms: float, backward_ms: float, count: int = 4) -> tuple[tuple[int, int], ...]:
    return ((round(forward_ms * MS), round(backward_ms * MS)),) * count


def link(ms: float, gigabytes_per_s: float = 1e6) -> Link:
    return Link(latency_ns=round(ms * MS), bytes_per_s=gigabytes_per_s * 1e9)


BASE = one("compute_bound")
_JOB = BASE.jobs[0]
_SMALL: dict[str, Any] = {
    "layers": ((20 * US, 40 * US),) * 4,
    "copy_ns": 10 * US,
    "optimizer_ns": 20 * US,
}
_LAUNCHED: dict[str, Any] = {**_SMALL, "kernels": 40, "launch_ns": 10 * US}
_SKIPS = 4
_SKIPPED_NS = alone(_JOB, optimizer=_JOB.optimizer_ns * (1 - 1 / _SKIPS)).step / _SKIPS
_FAULTS = {
    "event_cannot_be_made": Fault("create", 12),
    "event_cannot_be_recorded_once": Fault("record", 101),
    "event_cannot_be_recorded_ever": Fault("record", 101, 10**9),
    "query_fails_once": Fault("query", 60),
    "query_of_an_anchor_fails": Fault("query", 0),
    "event_can_never_be_made": Fault("create", 0, 10**9),
    "query_fails_from_the_start": Fault("query", 0, 10**9),
    "query_fails_ever": Fault("query", 60, 10**9),
    "elapsed_time_fails_once": Fault("elapsed_time", 60),
    "elapsed_time_fails_ever": Fault("elapsed_time", 60, 10**9),
}


def _too_much_at_20(number: int) -> int:
    return 1 << 40 if number == 20 else 1 << 20


def _alone_cases() -> list[Scenario]:
    return [
        BASE,
        one("compute_bound_large_kernels", layers=layers(30, 60, 2), optimizer_ns=2 * MS),
        one("many_layers", layers=layers(0.5, 1, 40)),
        one("launch_bound", launched(Job(**_LAUNCHED)), **_LAUNCHED),
        one(
            "fewer_launches",
            launched(Job(**{**_LAUNCHED, "kernels": 20})),
            **{**_LAUNCHED, "kernels": 20},
        ),
        one("input_bound", data_ns=40 * MS),
        one("input_bound_little", data_ns=4 * MS),
        one("input_bound_with_worker", data_ns=100 * MS, worker=True),
        one("input_hidden_by_worker", data_ns=30 * MS, worker=True),
        one(
            "input_hidden_by_device",
            alone(_JOB),
            loops.with_late_wait,
            data_ns=30 * MS,
            hidden_input=30 * MS,
        ),
        one("copy_pageable", pinned=False, copy_ns=15 * MS),
        one("copy_pinned", copy_ns=15 * MS),
        one(
            "copy_overlapped",
            alone(_JOB, h2d=0.0),
            loops.with_prefetch,
            copy_ns=15 * MS,
        ),
        one("loss_in_forward", loop=loops.with_loss_in_forward),
        one("loss_every_5_steps", loss_every=5),
        one("loss_never", loss_every=0, most_pending=10),
        one("scaler_without_skips", loop=loops.with_scaler(10**6)),
        one(
            "scaler_skips",
            alone(_JOB, optimizer=_JOB.optimizer_ns * (1 - 1 / _SKIPS)),
            loops.with_scaler(_SKIPS),
            causes=(Cause("skipped_amp_steps", cost=_SKIPPED_NS),),
        ),
        one(
            "evaluation",
            alone(_JOB, other=2 * (1 + 20) * MS / 5),
            loops.with_evaluation(5, 2),
        ),
        one("checkpoint", alone(_JOB, other=8 * MS), loops.with_checkpoint(5, 40 * MS)),
        one("accumulation", micro_batches=4),
        one("compiled", loop=loops.with_compiled_model),
        one("out_of_memory_once", loop=loops.with_too_little_memory(_too_much_at_20), dropped=1),
        one("control_steps", control_steps=True),
        one("own_stream", loop=loops.with_own_stream),
        one("graphs", loop=loops.with_graphs(2)),
        one("graph_captured_while_the_writer_looks", loop=loops.with_graphs(2, 700 * MS)),
        one("clock_fast", drift=4e-5, steps=200),
        one("clock_slow", drift=-4e-5, steps=200),
    ]


def _broken_cases() -> list[Scenario]:
    """Device times that are missing, in part or altogether."""
    cases = [
        one("pool_exhausted", largest_pool=24, says_missing=True),
        one("one_queue", connections=1, says_missing=True),
        one("no_idle_stream", idle_delay_ns=10 * MS, says_missing=True),
    ]
    for name, fault in _FAULTS.items():
        cases.append(one(name, fault=fault, says_missing=True))
    return cases


def _exchange_cases() -> list[Scenario]:
    small: dict[str, Any] = {"elements": 256, "layers": layers(1, 2, 20)}
    return [
        many("two_ranks_overlapped", 2, link=link(4)),
        many("two_ranks_tail", 2, link=link(30)),
        many("eight_ranks_overlapped", 8, link=link(4)),
        many("eight_ranks_tail", 8, link=link(30)),
        many("late_in_input", 2, {"data_ns": 20 * MS}, link=link(4)),
        many("late_in_copy", 2, {"copy_ns": 21 * MS}, link=link(4)),
        many("late_in_forward", 2, {"layers": layers(10, 10)}, link=link(4)),
        many("late_in_forward_with_tail", 2, {"layers": layers(10, 10)}, link=link(30)),
        many("late_in_backward", 2, {"layers": layers(5, 15)}, link=link(4)),
        many("late_in_optimizer", 2, {"optimizer_ns": 25 * MS}, link=link(4)),
        many("late_of_eight_in_forward", 8, {"layers": layers(10, 10)}, link=link(4)),
        many("slow_link", 2, elements=250_000, link=link(0.1, 0.025)),
        many("tiny_buckets", 2, link=link(5), **small),
        many("huge_bucket", 2, link=link(20), bucket_layers=4),
        many("two_buckets", 2, link=link(12), bucket_layers=2),
        many("accumulation_with_no_sync", 2, link=link(30), micro_batches=3, no_sync=True),
        many("accumulation_without_no_sync", 2, link=link(30), micro_batches=3),
        many("control_steps_of_ranks", 2, link=link(30), control_steps=True),
        many("input_bound_ranks", 2, data_ns=40 * MS, link=link(4)),
        many("one_rank_without_anchors", 2, {"idle_delay_ns": 10 * MS}, True, link=link(9)),
        many("ranks_without_anchors", 2, None, True, link=link(9), idle_delay_ns=10 * MS),
        many("one_rank_with_one_queue", 2, {"connections": 1}, True, link=link(9)),
        many("clocks_drift_apart", 2, {"drift": 4e-5}, link=link(30), drift=-4e-5, steps=100),
    ]


def _paddle_cases() -> list[Scenario]:
    late = {"layers": layers(10, 10)}
    # The loop waits for a thread of Paddle's loader, so no piece of the wait is timed.
    waited = (Cause("input_bound", cost=40 * MS),)
    cases = [
        one("compute_bound"),
        one("input_bound", data_ns=40 * MS, causes=waited),
        one("accumulation", micro_batches=4),
        many("two_ranks_overlapped", 2, link=link(4)),
        many("two_ranks_tail", 2, link=link(30)),
        many("eight_ranks_tail", 8, link=link(30)),
        many("late_in_forward", 2, late, link=link(4), ends_shared=True),
        many("late_in_forward_with_tail", 2, late, link=link(30), ends_shared=True),
        many("accumulation_with_no_sync", 2, link=link(30), micro_batches=3, no_sync=True),
        many("huge_bucket", 2, link=link(20), bucket_layers=4),
    ]
    old = [
        one("compute_bound", says_missing=True),
        many("two_ranks_tail", 2, None, True, link=link(30)),
    ]
    found = []
    for name, kind, those in (
        ("paddle", PaddleRank, cases),
        ("paddle_2.6", OldPaddleRank, old),
    ):
        for case in those:
            changes: dict[str, Any] = {"kind": kind, "loop": train_paddle}
            found.append(dataclasses.replace(case, name=f"{name}_{case.name}", **changes))
    return found


SCENARIOS: Sequence[Scenario] = (
    *_alone_cases(),
    *_broken_cases(),
    *_exchange_cases(),
    *_paddle_cases(),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
