"""The variants of the suite: the jobs with injected faults, and their healthy pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fault import Fault, healthy
from plants import PLANTED
from second_clicks import CLICKS_FAULTS
from second_healthy import HEALTHY_2
from second_metric import METRIC_FAULTS
from second_plants import shape_of
from second_translate import TRANSLATE_FAULTS

_HEALTHY: tuple[Fault, ...] = (
    healthy("loader_of_one_worker", {}),
    healthy("loader_in_the_loop", {"workers": 0}),
    healthy("two_workers", {"workers": 2}),
    healthy("slow_disk", {"read_ms": 4.0}),
    healthy("short_epochs", {"epoch_steps": 20}),
    healthy("checkpoints", {"checkpoint_every": 10}),
    healthy("evaluation", {"evaluate_every": 10}),
    healthy("kernels", {}, kernels=True),
    healthy("accumulation", {"accumulate": 2, "batch": 4}),
    healthy("scaler", {"scaler": True}),
    healthy("two_ranks", {}, ranks=2),
    healthy("two_ranks_in_the_loop", {"workers": 0}, ranks=2),
    healthy("two_ranks_slow_link", {"delay_ms": 5.0}, ranks=2),
    healthy("two_ranks_small_buckets", {"bucket_mb": 0.02}, ranks=2),
    healthy("four_ranks", {}, ranks=4),
    healthy("four_ranks_slow_link", {"delay_ms": 5.0}, ranks=4),
    healthy("paddle", {}, framework="paddle"),
    healthy("paddle_in_the_loop", {"workers": 0}, framework="paddle"),
    healthy("paddle_slow_disk", {"read_ms": 4.0}, framework="paddle"),
    healthy("paddle_checkpoints", {"checkpoint_every": 10}, framework="paddle"),
    healthy("paddle_two_ranks", {}, ranks=2, framework="paddle"),
    healthy("paddle_four_ranks", {}, ranks=4, framework="paddle"),
)

FAULTS: tuple[Fault, ...] = (*PLANTED, *_HEALTHY)
FAULTS_2: tuple[Fault, ...] = (
    *TRANSLATE_FAULTS,
    *METRIC_FAULTS,
    *CLICKS_FAULTS,
    *HEALTHY_2,
)

DEVELOPMENT, HELD_OUT, HELD_OUT_2 = "development", "held-out", "held-out-2"
SHAPES: Mapping[str, Mapping[str, Any]] = {
    DEVELOPMENT: {},
    HELD_OUT: {"seed": 7, "batch": 6, "width": 20, "image": 48, "steps": 200},
}
"""The job that the first suite is planted in, and another one that no rule was looked at with."""

VARIANTS = (*SHAPES, HELD_OUT_2)

RANKS: Mapping[int, Mapping[str, Any]] = {1: {}, 2: {"workers": 0}, 4: {"workers": 0, "batch": 2}}
"""Options of jobs with several ranks, whose processes must fit on two cores."""

_AMOUNTS = ("read_ms", "late_ms", "delay_ms", "broken_ms", "drift_ms")
HELD_OUT_AMOUNT = 1.3


def options_of(fault: Fault, *, planted: bool, variant: str) -> dict[str, Any]:
    """Return the options of a twin's job."""
    if variant == HELD_OUT_2:
        return {**shape_of(fault), **fault.base, **(fault.change if planted else {})}
    given = {
        **SHAPES[variant],
        **RANKS[fault.ranks],
        **fault.base,
        **(fault.change if planted else {}),
    }
    if variant == HELD_OUT:
        given |= {name: given[name] * HELD_OUT_AMOUNT for name in _AMOUNTS if name in given}
    return given


def faults_of(variant: str) -> tuple[Fault, ...]:
    """Return the faults and healthy pairs of a variant."""
    return FAULTS_2 if variant == HELD_OUT_2 else FAULTS


def named(names: list[str], variant: str = DEVELOPMENT) -> tuple[Fault, ...]:
    """Return the variant's faults with these names, or all of them."""
    known = {fault.name: fault for fault in faults_of(variant)}
    missing = [name for name in names if name not in known]
    if missing:
        raise SystemExit(f"no such fault: {', '.join(missing)} (there are: {', '.join(known)})")
    return tuple(known[name] for name in names) if names else faults_of(variant)
