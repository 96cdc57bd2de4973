"""The faults of the second held-out suite, with the true cause of each.

They were written by somebody who has not read the rules. A cause is right if it is of one of the
kinds. `OTHER` stands for every kind without a definite meaning on the day of writing; such a cause
must say one of the words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fault import Fault

OTHER = "other"
NAMED = frozenset(
    [
        "input_bound",
        "input_stalls",
        "slow_windows",
        "worker_start",
        "overlapped_reader",
        "loader_contention",
        "thread_oversubscription",
        "host_busy",
        "unpinned_copy",
        "late_rank",
        "exposed_communication",
        "tiny_buckets",
        "huge_bucket",
        "accumulation_without_no_sync",
        "syncbn_cost",
        "launch_bound",
        "layout_copies",
        "sync_stalls",
        "amp_without_effect",
        "optimizer_unfused",
        "evaluation_in_training",
        "checkpoint_in_training",
        "garbage_pauses",
        "drift",
        "skipped_amp_steps",
        "bad_samples",
        "published_mismatch",
        "log_integrity",
    ]
)
"""Kinds that had a definite meaning when the faults were written."""

TRANSLATE, METRIC, CLICKS = "job_translate", "job_metric", "job_clicks"
_SHAPES: Mapping[str, Mapping[str, Any]] = {
    TRANSLATE: {"accumulate": 2, "layers": 1, "batch": 8, "width": 64},
    METRIC: {"batch": 16, "width": 32, "layers": 2, "workers": 1},
    CLICKS: {"batch": 32, "width": 384, "layers": 2},
}


def shape_of(fault: Fault) -> Mapping[str, Any]:
    """Return the healthy options of a fault's job. Two ranks leave no core for workers."""
    return {**_SHAPES[fault.job], **({"workers": 0} if fault.ranks > 1 else {})}


def fault(  # a row of the table
    name: str,
    says: str,
    change: Mapping[str, Any],
    kinds: str,
    truth: str | None,
    words: tuple[str, ...] = (),
    *,
    job: str = TRANSLATE,
    ranks: int = 1,
    base: Mapping[str, Any] | None = None,
    noise: str = "",
    kernels: bool = False,
    must: str = "",
) -> Fault:
    return Fault(
        f"{job.removeprefix('job_')}_{name}",
        (tuple(kinds.split()),),
        change,
        truth,
        words,
        base=base or {},
        ranks=ranks,
        framework="paddle" if job == CLICKS else "torch",
        kernels=kernels,
        job=job,
        noise=noise,
        says=says,
        must=must,
    )


ALL_COMPUTE = "forward backward clip optimizer"
"""Phases that a fault in the numbers or the size of the model makes longer."""

BEFORE_STEP_WORDS = (
    "between backward and",
    "between the backward",
    "backward and the optimizer",
    "before the optimizer",
    "after backward",
    "after the backward",
    "from backward to optimizer",
)
AFTER_STEP_WORDS = (
    "after the optimizer",
    "after optimizer",
    "after the step",
    "between steps",
    "between two steps",
    "between optimizer",
    "optimizer and the next",
    "from optimizer to",
)
MODEL_WORDS = ("parameter", "model grew", "larger model", "bigger model", "model size")
DISK_WORDS = ("fsync", "disk", "written", "writes", "blocked", "log", *AFTER_STEP_WORDS)
FLOAT64_WORDS = ("float64", "double", "precision", "dtype")
RECOMPUTE_WORDS = (
    "recomput",
    "activation checkpoint",
    "activation_checkpointing",
    "forward again",
    "forward twice",
)
LOCK_WORDS = ("interpreter", "GIL", "Python thread")
ITEM_WORDS = (".item", "item()", "reads", "values read", *BEFORE_STEP_WORDS)


def late(place: str, rank: int, *, noise: str = "", job: str = METRIC) -> Fault:
    said = {
        "before_batch": ("data", "input", "batch", "outside all phases"),
        "forward": ("forward",),
        "backward": ("backward",),
        "before_step": (*BEFORE_STEP_WORDS, "optimizer", "outside all phases"),
    }
    return fault(
        f"rank_{rank}_late_{place}{'_in_noise' if noise else ''}",
        f"rank {rank} sleeps: {place}".replace("_", " "),
        {"late_rank": rank, "late_place": place, "late_ms": 25.0 if noise else 12.0},
        "late_rank",
        "planted",
        said[place],
        job=job,
        ranks=2,
        noise=noise,
        must=f"rank {rank}'s",
    )
