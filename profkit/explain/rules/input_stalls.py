"""A few steps wait long for input, such as when a new file or shard is opened."""

from __future__ import annotations

import numpy as np

from profkit.explain.rules._input import is_crowded_out
from profkit.explain.rules.base import Case, Cause, grew, here, input_is_hidden
from profkit.frame.costs import INPUT
from profkit.frame.device_times import is_own
from profkit.frame.estimate import Estimate
from profkit.text import duration, percent, plural

STALL_RATIO = 5.0
"""A step stalls if it waits more than this many times as long as usual."""

MAX_STALLED_SHARE = 0.25
"""If more than this share of the steps stalls, the input is slow as such."""

MIN_SHARE_OF_INPUT = 0.5
"""Stalls are reported if they make at least this share of what input adds."""

MIN_INPUT_SHARE_OF_GAP = 0.25
"""Stalls are reported if input makes at least this share of the gap."""

_REMEDY = (
    "see which steps stall and what their batches need: a new file or shard, a slow sample, a full "
    "cache; batches that are made ahead (num_workers, prefetch_factor) even out short stalls"
)
_REMEDY_IF_IMPORTED = (
    "keep workers and their batches over epochs (persistent_workers, or one loader for all "
    "epochs), and see which steps stall"
)


def find(case: Case) -> Cause | None:
    ledger, target = case.ledger, case.ledger.target
    row, gap = ledger.find(INPUT), ledger.total.delta.value
    if row is None or not grew(ledger.total, ledger):
        return None
    if row.delta.value < MIN_INPUT_SHARE_OF_GAP * gap:
        return None
    if input_is_hidden(case) or is_crowded_out(case):
        return None
    waits = target.parts[INPUT] / target.ranks
    usual = float(np.median(waits))
    stalled = waits > STALL_RATIO * max(usual, row.base.value * ledger.samples_per_step)
    stalled_ns = float((waits[stalled] - usual).sum()) * target.ranks
    added = stalled_ns / float(target.samples.sum())
    if not stalled.any() or stalled.mean() > MAX_STALLED_SHARE:
        return None
    if added < MIN_SHARE_OF_INPUT * row.delta.value:
        return None
    verb = "adds"
    if ledger.turned:
        verb = "takes less"
    evidence = (
        f"{here(ledger)}{plural(int(stalled.sum()), 'step')} of {target.steps:,} wait "
        f"{duration(float(waits[stalled].mean()))} for input, the others {duration(usual)}; "
        f"these stalls are {percent(added / row.delta.value, 0)} of what input {verb}"
    )
    cost_ns = Estimate(added * ledger.samples_per_step)
    # The rows of profkit's own runs exclude the first steps of epochs, in which workers start.
    remedy = _REMEDY if is_own(case.after.trace) else _REMEDY_IF_IMPORTED
    return Cause("input_stalls", cost_ns, added / gap, evidence, remedy, rows=(INPUT,))
