"""Gradients overflow, and steps are computed whose update is skipped."""

from __future__ import annotations

from profkit.analysis.estimate import Estimate
from profkit.explain.rules.base import Case, Finding
from profkit.text import percent

MORE = 0.02
"""A scaler that looks for its scale skips a few steps; more than this share of them is lost work."""

_REMEDY = "look for what overflows (loss scale, learning rate, a division); bf16 needs no scaler. These steps train nothing and count as throughput"


def find(case: Case) -> Finding | None:
    """What is skipped is no part of the gap: the step takes its time all the same, and is lost."""
    before, after = case.before.skipped_share, case.after.skipped_share
    if after < before + MORE:
        return None
    ledger = case.ledger
    evidence = f"{percent(after)} of the steps found infinities or NaN in their gradients, and updated nothing; {percent(before)} in the base"
    return Finding(
        "skipped_amp_steps",
        Estimate((after - before) * ledger.total.target.value * ledger.samples_per_step),
        None,
        evidence,
        _REMEDY,
    )
