"""Samples cannot be read: they cost time and are not trained on."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.explain.evidence import Evidence
from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    cost,
    here,
    is_material,
    other_side,
    share_of,
    shift,
)
from profkit.frame.selection import PARTIAL_BATCH
from profkit.text import percent, plural
from profkit.trace.reader import events_of
from profkit.vocab import EventKind

MIN_ADDED_SHORT_SHARE = 0.05
"""Short batches count if their share of the steps exceeds the base's by at least this."""

_REMEDY = (
    "find and replace the files (the report names the first), or take them off the list before "
    "training: each is tried again in every epoch"
)


def find(case: Case) -> Cause | None:
    """Use what loaders report of single samples, and batches that are short in the target.

    The cost is the whole difference, if the target surely takes longer.
    """
    ledger, before, after = case.ledger, case.before, case.after
    unreadable = after.figure(count_bad_samples) - before.figure(count_bad_samples)
    base_share = before.figure(share_of_short_steps)
    short_share = after.figure(share_of_short_steps)
    words = []
    if unreadable > 0:
        more = plural(unreadable, "sample")
        words.append(f"{more} more than in the {other_side(ledger)} could not be read")
    if short_share - base_share >= MIN_ADDED_SHORT_SHARE:
        words.append(
            f"batches are short in {percent(short_share)} of the steps, "
            f"{percent(base_share)} in the {other_side(ledger)}"
        )
    if not words:
        return None
    short_ns = 0.0
    if ledger.per_sample:  # the ledger excludes the steps of short batches, which waited
        short_ns = after.figure(short_steps_add_ns) - before.figure(short_steps_add_ns)
    whole = shift(cost(ledger.total, ledger), short_ns * ledger.samples_per_step)
    price = share = None
    if whole.low is not None and whole.low > 0 and is_material(whole.value, ledger):
        price, share = whole, share_of(whole.value, ledger)
    evidence = here(ledger) + "; ".join(words)
    return Cause("bad_samples", price, share, evidence, _REMEDY, specific=Specific.COUNT)


def count_bad_samples(evidence: Evidence) -> int:
    """Return the number of samples that loaders reported as unreadable."""
    return int(events_of(evidence.trace.events, EventKind.BAD_SAMPLE).num_rows)


def share_of_short_steps(evidence: Evidence) -> float:
    """Return the share of the training steps that had fewer samples than usual.

    The last step of an epoch takes what is left, which depends on the batch size alone.
    """
    short = evidence.costs.selection.sampled(PARTIAL_BATCH)
    if not len(short) or not evidence.costs.steps:
        return 0.0
    steps = evidence.trace.steps
    number, place = np.unique(steps["step"].to_numpy(), return_inverse=True)
    epoch = np.full(len(number), -1, dtype=np.int64)
    np.maximum.at(epoch, place, steps["epoch"].fill_null(-1).to_numpy())
    is_last = np.append(np.diff(epoch) != 0, True)
    count = len(np.setdiff1d(short, number[is_last]))
    return count / (count + evidence.costs.steps)


def short_steps_add_ns(evidence: Evidence) -> float:
    """Return how much longer a sample takes on a GPU if the steps of short batches count, too."""
    costs, steps = evidence.costs, evidence.trace.steps
    short = costs.selection.sampled(PARTIAL_BATCH)
    if not len(short) or not (costs.steps and costs.samples_known):
        return 0.0
    counted = pa.array([*evidence.used.tolist(), *short.tolist()], pa.int64())
    rows = steps.filter(pc.is_in(steps["step"], counted))
    wall_ns = pc.sum(rows["end_ns"]).as_py() - pc.sum(rows["start_ns"]).as_py()
    sample_ns = wall_ns / pc.sum(rows["sample_count"]).as_py()
    return float(sample_ns - costs.wall_ns.sum() / costs.samples.sum())
