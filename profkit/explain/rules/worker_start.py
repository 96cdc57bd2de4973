"""Loader workers start again at each epoch, and its first step waits for them."""

from __future__ import annotations

import numpy as np

from profkit.explain.evidence import Evidence
from profkit.explain.evidence_counters import estimate_mean
from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    here,
    is_material,
    other_side,
    shift,
    significantly_more,
)
from profkit.frame.estimate import Estimate, Floats, Ints, scale
from profkit.frame.run_frame import frame_of
from profkit.frame.selection import EPOCH_START
from profkit.text import duration, plural
from profkit.vocab import USED, Phase

_REMEDY = "keep the workers over epochs (persistent_workers=True), or make epochs longer"
_REMEDY_IF_KEPT = (
    "the workers are kept already (persistent_workers): see what an epoch's first batch needs, "
    "such as a shuffle or opening files, or make epochs longer"
)


def find(case: Case) -> Cause | None:
    """Compare how long the first steps of epochs wait.

    The rows of the ledger exclude these steps, so the cost is no part of the gap.
    """
    after = case.after.figure(epoch_start_ns)
    if after is None or case.after.loader is None or not case.after.loader.workers:
        return None
    before = case.before.figure(epoch_start_ns)
    known, in_base = 0.0, f"the {other_side(case.ledger)} has none"
    if before is not None:
        known, in_base = (
            before.value,
            f"the {other_side(case.ledger)}'s cost {duration(before.value)} per step",
        )
    if not is_material(after.value - known, case.ledger) or not significantly_more(before, after):
        return None
    starts, used = case.after.in_all[EPOCH_START], case.after.in_all[USED]
    each = after.value * (starts + used) / starts
    evidence = (
        f"{here(case.ledger)}"
        f"{plural(starts, 'epoch')} began with a wait for data that is {duration(each)} longer "
        f"than usual, {duration(after.value)} per step if averaged over all steps; {in_base}"
    )
    is_kept = case.target.config.get("persistent_workers") is True
    remedy = _REMEDY_IF_KEPT if is_kept else _REMEDY
    return Cause(
        "worker_start", shift(after, -known), None, evidence, remedy, specific=Specific.COUNT
    )


def epoch_start_ns(evidence: Evidence) -> Estimate | None:
    """Return what the first step of an epoch waits beyond a usual one, spread over all steps.

    The result is `None` without a later epoch.
    """
    starts = evidence.costs.selection.which.get(EPOCH_START)
    if starts is None or not len(starts) or not evidence.costs.steps:
        return None
    waits = _input_ns(evidence, starts)
    usual = _input_ns(evidence, evidence.used)
    counts = evidence.in_all
    share = counts[EPOCH_START] / (counts[EPOCH_START] + counts[USED])
    return scale(estimate_mean(waits - usual.mean()), share)


def _input_ns(evidence: Evidence, steps: Ints) -> Floats:
    """Return the wait for data of each of these steps."""
    times = frame_of(evidence.trace).times(steps)
    if Phase.DATA.value not in times.names:
        return np.zeros(len(steps))
    return np.asarray(times.parts[times.names.index(Phase.DATA.value)])
