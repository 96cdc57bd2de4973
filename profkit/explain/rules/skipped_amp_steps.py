"""Gradients overflow, and steps are computed whose update is skipped."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.explain.evidence import Evidence
from profkit.explain.rules.base import Case, Cause, here, other_side
from profkit.frame.estimate import Estimate, as_floats
from profkit.text import percent
from profkit.trace.sampled import step_levels
from profkit.vocab import SKIPPED_STEP

MIN_ADDED_SKIPPED_SHARE = 0.02
"""A scaler that searches for its scale skips a few steps; this share more is lost work."""

_REMEDY = (
    "look for what overflows (loss scale, learning rate, a division); bf16 needs no scaler. These "
    "steps train nothing and count as throughput"
)


def find(case: Case) -> Cause | None:
    """Compare the shares of skipped steps.

    Their time is no part of the gap: a skipped step takes as long as others, and is lost.
    """
    before, after = case.before.figure(skipped_share), case.after.figure(skipped_share)
    if after < before + MIN_ADDED_SKIPPED_SHARE:
        return None
    ledger = case.ledger
    lost = (after - before) * ledger.total.target.value * ledger.samples_per_step
    evidence = (
        f"{here(ledger)}"
        f"{percent(after)} of the steps had infinities or NaN in their gradients, and updated "
        f"nothing; {percent(before)} in the {other_side(ledger)}"
    )
    return Cause("skipped_amp_steps", Estimate(lost), None, evidence, _REMEDY)


def skipped_share(evidence: Evidence) -> float:
    """Return the share of steps without an update because gradients were not finite."""
    if not len(evidence.used):
        return 0.0
    trace = evidence.trace
    named = evidence.select_used(trace.spans.filter(pc.equal(trace.spans["name"], SKIPPED_STEP)))
    seen_share = named.num_rows / evidence.costs.ranks / len(evidence.used)
    lowered = share_of_lowered_scales(trace.steps, evidence.costs.selection.level)
    return float(max(seen_share, lowered))


def share_of_lowered_scales(steps: pa.Table, level: int) -> float:
    """Return the share of steps at which the gradient scaler lowered its scale.

    It does so after each overflow. If a fused optimizer skips such a step, no span shows it. Of a
    thinned run, these are the steps of its sample whose next step is in it, too.
    """
    if level:
        steps = steps.filter(pa.array(step_levels(steps["step"].to_numpy()) >= level))
    steps = steps.sort_by([("rank", "ascending"), ("step", "ascending")])
    scale, rank = as_floats(steps["grad_scale"]), steps["rank"].to_numpy()
    follows = np.diff(rank) == 0
    if level:
        follows &= np.diff(steps["step"].to_numpy()) == 1
    of_steps = int(follows.sum()) if level else steps.num_rows
    return int(((np.diff(scale) < 0) & follows).sum()) / max(1, of_steps)
