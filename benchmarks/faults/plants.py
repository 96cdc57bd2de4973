"""The injected faults: how each changes a healthy job, and the source of the true cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fault:
    """A pair of jobs that differ in `change`.

    `causes` holds, for each injected fault, the kinds of causes that name it correctly. A healthy
    pair has none.

    `truth` says where the job's own clock has the true cost. `planted` is the injected time per
    step, on the rank with the most. Names of parts mean how much more they take together than in
    the healthy twin, on the mean of the ranks. `step` means the whole step, and `samples` the
    time for as many samples as a step of the healthy twin has. With `all`, steps that begin an
    epoch count as well. `None` is for a fault that wastes steps and makes none of them longer.
    """

    name: str
    causes: tuple[tuple[str, ...], ...]
    change: Mapping[str, Any]
    truth: str | None = "step"
    words: tuple[str, ...] = ()
    """Words, one of which the reported cause must contain in addition to its kind."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """Options of both twins."""
    ranks: int = 1
    framework: str = "torch"
    kernels: bool = False
    """If true, both twins capture their operators in some steps."""
    needs_gpu: bool = False
    needs_administrator: str = ""
    """A manual preparation on a GPU machine, or one that needs more rights than a job has."""

    @property
    def healthy(self) -> bool:
        return not self.causes


COMPUTE = "forward backward"
"""Phases that an injected operator makes longer; the loader's wait differs between twins anyway."""


def _single(kind: str | tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return ((kind,) if isinstance(kind, str) else kind,)


def _late(phase: str, *, rank: int = 1, ms: float = 10.0) -> Mapping[str, Any]:
    return {"late_rank": rank, "late_phase": phase, "late_ms": ms}


_INPUT_CHANGES: tuple[Fault, ...] = (
    Fault("slow_read", _single("input_bound"), {"read_ms": 4.0}, "data", ("read",)),
    Fault("slow_decode", _single("input_bound"), {"blurs": 80}, "data", ("decode",)),
    Fault("zero_workers", _single("input_bound"), {"workers": 0}, "data", base={"read_ms": 0.6}),
    Fault(
        "slow_read_on_two_ranks",
        _single("input_bound"),
        {"read_ms": 4.0},
        "step",
        ("read",),
        base={"workers": 1},
        ranks=2,
    ),
    Fault(
        "workers_restart_each_epoch",
        _single(("worker_start", "input_stalls")),
        {"persistent": False},
        "all data",
        base={"epoch_steps": 8, "workers": 3},
    ),
    Fault(
        "too_many_workers",
        _single("loader_contention"),
        {"workers": 6},
        base={"polling": 0.15, "placed": False},
    ),
    Fault(
        "cache_cold_epochs",
        _single("input_bound"),
        {"cached": False},
        "data",
        ("read",),
        base={"read_ms": 3.0, "cached": True, "epoch_steps": 20, "workers": 0},
    ),
    Fault("truncated_samples", _single("bad_samples"), {"broken_ms": 40.0}, "samples"),
)

_RANKS: tuple[Fault, ...] = (
    Fault(
        "late_in_input", _single("late_rank"), _late("input"), "planted", ("data", "input"), ranks=2
    ),
    Fault(
        "late_in_forward", _single("late_rank"), _late("forward"), "planted", ("forward",), ranks=2
    ),
    Fault(
        "late_in_backward",
        _single("late_rank"),
        _late("backward"),
        "planted",
        ("backward",),
        ranks=2,
    ),
    Fault(
        "late_in_forward_of_four",
        _single("late_rank"),
        _late("forward", rank=2, ms=20.0),
        "planted",
        ("forward",),
        ranks=4,
    ),
    Fault("slow_link", _single("exposed_communication"), {"delay_ms": 12.0}, "backward", ranks=2),
    Fault(
        "tiny_buckets",
        _single("tiny_buckets"),
        {"bucket_mb": 0.0001},
        "backward",
        base={"tensors": 40, "delay_ms": 0.3},
        ranks=2,
    ),
    Fault(
        "one_huge_bucket",
        _single("huge_bucket"),
        {"bucket_mb": 100.0},
        "backward",
        base={"bucket_mb": 0.1, "link_mb_s": 20.0, "batch": 16},
        ranks=2,
    ),
    Fault(
        "accumulation_without_no_sync",
        _single(("accumulation_without_no_sync", "unsynced_accumulation")),
        {"no_sync": False},
        "backward",
        base={"accumulate": 4, "delay_ms": 4.0, "batch": 4},
        ranks=2,
    ),
)

_HOST: tuple[Fault, ...] = (
    Fault("tiny_operators", _single("launch_bound"), {"slices": 200}, COMPUTE, kernels=True),
    Fault("layout_copies", _single("layout_copies"), {"round_trips": 24}, COMPUTE, kernels=True),
    Fault(
        "unfused_optimizer",
        _single("optimizer_unfused"),
        {"optimizer": "loop"},
        "optimizer",
        base={"tensors": 150},
        kernels=True,
    ),
    Fault(
        "amp_without_effect",
        _single("amp_without_effect"),
        {"autocast": True},
        COMPUTE,
        base={"batch": 2, "width": 8, "workers": 0},
        kernels=True,
    ),
    Fault(
        "thread_oversubscription",
        _single("thread_oversubscription"),
        {"threads": 4},
        base={"batch": 16, "placed": False},
    ),
    Fault("garbage_pauses", _single("garbage_pauses"), {"garbage_every": 3}, "planted"),
    Fault(
        "checkpoint_every_ten_steps",
        _single(("checkpoint_in_training", "evaluation_in_training")),
        {"checkpoint_every": 10},
        "planted",
    ),
    Fault(
        "evaluation_in_training",
        _single("evaluation_in_training"),
        {"evaluate_every": 10},
        "planted",
    ),
    Fault("drift", _single("drift"), {"drift_ms": 0.1}, "planted"),
    Fault(
        "skipped_steps",
        _single("skipped_amp_steps"),
        {"overflow_every": 4},
        None,
        base={"scaler": True},
    ),
)

_PADDLE: tuple[Fault, ...] = (
    Fault(
        "paddle_slow_read",
        _single("input_bound"),
        {"read_ms": 4.0},
        "data",
        ("read",),
        framework="paddle",
    ),
    Fault(
        "paddle_slow_decode",
        _single("input_bound"),
        {"blurs": 120},
        "data",
        ("decode",),
        framework="paddle",
    ),
    Fault(
        "paddle_tiny_operators",
        _single("launch_bound"),
        {"slices": 400},
        COMPUTE,
        framework="paddle",
        kernels=True,
    ),
    Fault(
        "paddle_garbage_pauses",
        _single("garbage_pauses"),
        {"garbage_every": 3},
        "planted",
        framework="paddle",
    ),
    Fault(
        "paddle_evaluation",
        _single("evaluation_in_training"),
        {"evaluate_every": 10},
        "planted",
        framework="paddle",
    ),
    Fault(
        "paddle_checkpoint",
        _single(("checkpoint_in_training", "evaluation_in_training")),
        {"checkpoint_every": 10},
        "planted",
        framework="paddle",
    ),
    Fault(
        "paddle_late_in_forward",
        _single("late_rank"),
        _late("forward", ms=12.0),
        "planted",
        ("forward",),
        ranks=2,
        framework="paddle",
    ),
    Fault(
        "paddle_late_in_input",
        _single("late_rank"),
        _late("input", ms=60.0),
        "step",
        ("data", "input"),
        ranks=2,
        framework="paddle",
    ),
)

_TOGETHER: tuple[Fault, ...] = (
    Fault(
        "slow_read_and_garbage",
        (("input_bound",), ("garbage_pauses",)),
        {"read_ms": 4.0, "garbage_every": 3},
    ),
    Fault(
        "late_forward_and_checkpoint",
        (("late_rank",), ("checkpoint_in_training", "evaluation_in_training")),
        {**_late("forward"), "checkpoint_every": 10},
        ranks=2,
    ),
    Fault(
        "slow_link_and_slow_decode",
        (("exposed_communication",), ("input_bound",)),
        {"delay_ms": 12.0, "blurs": 10},
        ranks=2,
    ),
    Fault(
        "evaluation_and_unfused_optimizer",
        (("evaluation_in_training",), ("optimizer_unfused",)),
        {"evaluate_every": 10, "optimizer": "loop"},
        base={"tensors": 150},
        kernels=True,
    ),
)

_GPU: tuple[Fault, ...] = (
    Fault("item_syncs", _single("sync_stalls"), {"item_syncs": 8}, kernels=True, needs_gpu=True),
    Fault(
        "pageable_copies",
        _single("unpinned_copy"),
        {"pin": False},
        base={"image": 224, "batch": 64},
        kernels=True,
        needs_gpu=True,
    ),
    Fault(
        "gpu_layout_copies",
        _single("layout_copies"),
        {"round_trips": 8},
        base={"image": 128, "batch": 64},
        kernels=True,
        needs_gpu=True,
    ),
    Fault(
        "clock_throttling",
        _single(("drift", "throttling")),
        {},
        needs_gpu=True,
        needs_administrator="lower the clocks of the second run: nvidia-smi --lock-gpu-clocks",
    ),
)


def _healthy(
    name: str,
    base: Mapping[str, Any],
    *,
    ranks: int = 1,
    framework: str = "torch",
    kernels: bool = False,
) -> Fault:
    return Fault(
        f"healthy_{name}",
        (),
        {"seed": 1_000},
        None,
        base=base,
        ranks=ranks,
        framework=framework,
        kernels=kernels,
    )


_HEALTHY: tuple[Fault, ...] = (
    _healthy("loader_of_one_worker", {}),
    _healthy("loader_in_the_loop", {"workers": 0}),
    _healthy("two_workers", {"workers": 2}),
    _healthy("slow_disk", {"read_ms": 4.0}),
    _healthy("short_epochs", {"epoch_steps": 20}),
    _healthy("checkpoints", {"checkpoint_every": 10}),
    _healthy("evaluation", {"evaluate_every": 10}),
    _healthy("kernels", {}, kernels=True),
    _healthy("accumulation", {"accumulate": 2, "batch": 4}),
    _healthy("scaler", {"scaler": True}),
    _healthy("two_ranks", {}, ranks=2),
    _healthy("two_ranks_in_the_loop", {"workers": 0}, ranks=2),
    _healthy("two_ranks_slow_link", {"delay_ms": 5.0}, ranks=2),
    _healthy("two_ranks_small_buckets", {"bucket_mb": 0.02}, ranks=2),
    _healthy("four_ranks", {}, ranks=4),
    _healthy("four_ranks_slow_link", {"delay_ms": 5.0}, ranks=4),
    _healthy("paddle", {}, framework="paddle"),
    _healthy("paddle_in_the_loop", {"workers": 0}, framework="paddle"),
    _healthy("paddle_slow_disk", {"read_ms": 4.0}, framework="paddle"),
    _healthy("paddle_checkpoints", {"checkpoint_every": 10}, framework="paddle"),
    _healthy("paddle_two_ranks", {}, ranks=2, framework="paddle"),
    _healthy("paddle_four_ranks", {}, ranks=4, framework="paddle"),
)

FAULTS: tuple[Fault, ...] = (
    *_INPUT_CHANGES,
    *_RANKS,
    *_HOST,
    *_PADDLE,
    *_TOGETHER,
    *_GPU,
    *_HEALTHY,
)

DEVELOPMENT, HELD_OUT = "development", "held-out"
SHAPES: Mapping[str, Mapping[str, Any]] = {
    DEVELOPMENT: {},
    HELD_OUT: {"seed": 7, "batch": 6, "width": 20, "image": 48, "steps": 200},
}
"""The job that all faults are planted in, and another one that no rule was looked at with."""

RANKS: Mapping[int, Mapping[str, Any]] = {1: {}, 2: {"workers": 0}, 4: {"workers": 0, "batch": 2}}
"""Options of jobs with several ranks, whose processes must fit on two cores."""

_AMOUNTS = ("read_ms", "late_ms", "delay_ms", "broken_ms", "drift_ms")
HELD_OUT_AMOUNT = 1.3


def options_of(fault: Fault, *, planted: bool, variant: str) -> dict[str, Any]:
    """Return the options of a twin's job."""
    given = {
        **SHAPES[variant],
        **RANKS[fault.ranks],
        **fault.base,
        **(fault.change if planted else {}),
    }
    if variant == HELD_OUT:
        given |= {name: given[name] * HELD_OUT_AMOUNT for name in _AMOUNTS if name in given}
    return given


def named(names: list[str]) -> tuple[Fault, ...]:
    """Return the faults with these names, or all faults."""
    known = {fault.name: fault for fault in FAULTS}
    missing = [name for name in names if name not in known]
    if missing:
        raise SystemExit(f"no such fault: {', '.join(missing)} (there are: {', '.join(known)})")
    return tuple(known[name] for name in names) if names else FAULTS


def as_words(fault: Fault) -> str:
    """Return the change as it was written."""
    return (
        ", ".join(f"{name} {value}" for name, value in fault.change.items())
        or fault.needs_administrator
    )
