"""Batches are copied to the device from memory that is not pinned."""

from __future__ import annotations

from profkit.explain.rules.base import Case, Cause, from_to, grew, here, knobs_for, other_side
from profkit.text import percent
from profkit.vocab import Phase

_REMEDY = (
    "pin the batches (pin_memory=True, use_shared_memory in Paddle) and copy them with "
    "non_blocking=True"
)


def find(case: Case) -> Cause | None:
    """Use the names of the copies in kernel windows; without windows, use the setting."""
    ledger, windows = case.ledger, case.after.windows
    row = ledger.find(Phase.H2D.value)
    if row is None or not grew(row, ledger):
        return None
    settings = [knob for knob in knobs_for(case, Phase.H2D.value) if knob.startswith("pin")]
    if windows is not None and windows.pageable_share is not None:
        known = 0.0
        if case.before.windows is not None:
            known = case.before.windows.pageable_share or 0.0
        if windows.pageable_share <= known:
            return None
        seen = (
            f"{here(ledger)}"
            f"{percent(windows.pageable_share, 0)} of the copies' time is from pageable memory, "
            f"{percent(known, 0)} in the {other_side(ledger)}"
        )
    elif settings:
        seen = "no kernels were captured that would show it"
    else:
        return None
    words = [f"copies to the device went from {from_to(row, ledger)} per step", seen, *settings]
    return Cause.from_row("unpinned_copy", row, ledger, "; ".join(words), _REMEDY)
