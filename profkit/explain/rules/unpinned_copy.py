"""Batches are copied to the device from memory that is not pinned."""

from __future__ import annotations

from profkit.explain.rules.base import Case, Finding, cost, from_to, grew, knobs_for, share_of_gap
from profkit.text import percent
from profkit.vocab import Phase

_REMEDY = "pin the batches (pin_memory=True, use_shared_memory in Paddle) and copy them with non_blocking=True"


def find(case: Case) -> Finding | None:
    """From the copies' names in kernel windows; where there are none, from the setting."""
    ledger = case.ledger
    row = ledger.find(Phase.H2D.value)
    windows = (case.before.windows, case.after.windows)
    before, after = (each.pageable_share if each else None for each in windows)
    pin = [knob for knob in knobs_for(case, Phase.H2D.value) if knob.startswith("pin")]
    if (
        row is None
        or not grew(row, ledger)
        or not (pin if after is None else after > (before or 0.0))
    ):
        return None
    seen = (
        f"{percent(after, 0)} of the copies' time is from pageable memory, {percent(before or 0.0, 0)} in the base"
        if after is not None
        else "no kernels were captured that would show it"
    )
    evidence = "; ".join(
        [f"copies to the device went from {from_to(row, ledger)} a step", seen, *pin]
    )
    return Finding("unpinned_copy", cost(row, ledger), share_of_gap(row, ledger), evidence, _REMEDY)
