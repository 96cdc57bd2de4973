"""Loader workers start again at each epoch, and its first step waits for them."""

from __future__ import annotations

from profkit.analysis.selection import EPOCH_START
from profkit.explain.rules.base import Case, Finding, all_of, is_material, shift, significantly_more
from profkit.text import duration, plural

_REMEDY = "keep the workers over epochs (persistent_workers=True), or make epochs longer"


def find(case: Case) -> Finding | None:
    """The steps that begin an epoch stand apart from the ledger's rows, so this cost is no part of the gap."""
    after = case.after.epoch_start_ns
    if after is None or case.after.loader is None or not case.after.loader.workers:
        return None
    before = case.before.epoch_start_ns
    known = before.value if before is not None else 0.0
    if not is_material(after.value - known, case.ledger) or not significantly_more(before, after):
        return None
    starts = len(case.after.costs.selection.which[EPOCH_START])
    each = after.value * (starts + case.after.costs.steps) / starts
    beside = "the base has none" if before is None else f"the base's cost {duration(known)} a step"
    evidence = f"{plural(starts, 'epoch')} begin with a wait for input that is {duration(each)} longer than usual: {duration(after.value)} a step, were they averaged in; {beside}"
    return Finding(
        "worker_start", shift(after, -known), None, evidence, _REMEDY, takes=all_of("input_stalls")
    )
