"""Settings differ that can affect the row that grew most."""

from __future__ import annotations

from collections.abc import Sequence

from profkit.analysis.config_join import NOT_SAID, Difference
from profkit.explain.ledger import Ledger, Row, Verdict, judge, sum_rows
from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    describe_difference,
    from_to,
    grew,
    trains_on_host,
)

_SIZES = {"world_size", "gpus", "batch_size", "global_batch_size"}
"""The settings that a comparison is about; its caveats name them."""

_SAYS_LESS = {
    "parameters_fingerprint": ("parameters_count", "parameters_bytes"),
    "parameters_bytes": ("parameters_count", "precision"),
    "modules_count": ("model", "parameters_count"),
}
"""Settings that say no more than others, if one of these differs as well."""

MOST_NAMED = 6


def find(case: Case) -> Cause | None:
    """Return what all rows cost that grew and that the same settings can affect."""
    ledger = case.ledger
    top = max(ledger.rows, key=lambda each: each.delta.value, default=None)
    if top is None or not grew(top, ledger) or not _may_have_grown(ledger):
        return None
    knobs = _knobs(case, top)
    is_batch = not knobs
    if is_batch and case.base.world_size == case.target.world_size and ledger.per_sample:
        # What a step takes whatever its batch is less per sample in a larger one.
        knobs = [each for each in _stated(ledger) if each.name == "batch_size"]
    if not knobs:
        return None
    names, base_ns, on_host = [], ledger.total.base.value, trains_on_host(case)
    for row in ledger.rows:
        is_affected = any(knob.can_affect(row.name, on_host=on_host) for knob in knobs)
        if (is_affected or is_batch) and judge(row.delta, base_ns) is Verdict.REGRESSION:
            names.append(row.name)
    row, named = top, top.name
    if len(names) > 1:
        named = f"{', '.join(names[:-1])} and {names[-1]} together"
        row = sum_rows(ledger, named, names)
    words = ", ".join(map(describe_difference, knobs[:MOST_NAMED]))
    if len(knobs) > MOST_NAMED:
        words += f", and {len(knobs) - MOST_NAMED} more"
    evidence = (
        f"{named} went from {from_to(row, ledger)} per step, and these settings differ that "
        f"can affect it: {words}"
    )
    remedy = f"run the target again with the base's {knobs[0].name}"
    return Cause.from_row(
        "setting_changed",
        row,
        ledger,
        evidence,
        remedy,
        detail=knobs[0].name,
        specific=Specific.SETTING,
    )


def _may_have_grown(ledger: Ledger) -> bool:
    """Return true unless the whole step has stayed as it was, or is shorter."""
    total = ledger.total
    is_unclear = judge(total.delta, total.base.value) is Verdict.CANNOT_JUDGE
    return grew(total, ledger) or (is_unclear and total.delta.value > 0)


def _stated(ledger: Ledger) -> list[Difference]:
    """Return the differences that both runs state: of the others, nobody knows if they differ."""
    return [each for each in ledger.differences if NOT_SAID not in {each.base, each.target}]


def _knobs(case: Case, row: Row) -> Sequence[Difference]:
    """Return the settings that both runs state, that differ, and that can affect a row."""
    found, on_host = [], trains_on_host(case)
    for each in _stated(case.ledger):
        if each.name not in _SIZES and each.can_affect(row.name, on_host=on_host):
            found.append(each)
    named = {each.name for each in found}
    return [each for each in found if named.isdisjoint(_SAYS_LESS.get(each.name, ()))]
