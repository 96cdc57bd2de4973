"""A setting differs that can affect the row that grew most."""

from __future__ import annotations

from profkit.analysis.config_join import NOT_SAID
from profkit.explain.rules.base import Case, Cause, from_to, grew, knobs_for

_SIZES = {"world_size", "gpus", "batch_size", "global_batch_size"}
"""The settings that a comparison is about; its caveats name them."""


def find(case: Case) -> Cause | None:
    ledger = case.ledger
    row = max(ledger.rows, key=lambda each: each.delta.value, default=None)
    if row is None or not grew(row, ledger) or not grew(ledger.total, ledger):
        return None
    knobs = [knob for knob in knobs_for(case, row.name) if knob.split()[0] not in _SIZES]
    knobs = [knob for knob in knobs if NOT_SAID not in knob]  # nobody knows if it differs
    if not knobs:
        return None
    evidence = (
        f"{row.name} went from {from_to(row, ledger)} per step, and these settings differ that "
        f"can affect it: {', '.join(knobs)}"
    )
    remedy = f"run the target again with the base's {knobs[0].split()[0]}"
    return Cause.from_row("setting_changed", row, ledger, evidence, remedy)
