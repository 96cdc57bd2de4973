"""A setting differs that can affect the row which grew most."""

from __future__ import annotations

from profkit.explain.rules.base import Case, Finding, cost, from_to, grew, knobs_for, share_of_gap

_SIZES = {"world_size", "gpus", "batch_size", "global_batch_size"}
"""These are what a comparison is about, and stand in its caveats."""


def find(case: Case) -> Finding | None:
    ledger = case.ledger
    row = max(ledger.rows, key=lambda each: each.delta.value, default=None)
    if row is None or not grew(row, ledger) or not grew(ledger.total, ledger):
        return None
    knobs = [knob for knob in knobs_for(case, row.name) if knob.split()[0] not in _SIZES]
    if not knobs:
        return None
    evidence = f"{row.name} went from {from_to(row, ledger)} a step, and these settings differ that can affect it: {', '.join(knobs)}"
    return Finding(
        "setting_changed",
        cost(row, ledger),
        share_of_gap(row, ledger),
        evidence,
        f"run the target again with the base's {knobs[0].split()[0]}",
    )
