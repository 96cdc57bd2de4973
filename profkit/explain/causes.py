"""Ask all rules for causes, and settle what each costs besides the others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

from profkit.explain.ledger import Ledger
from profkit.explain.rules.base import (
    SETTING_CHANGED,
    Case,
    Cause,
    Rule,
    is_clear,
    share_of,
    shift,
)
from profkit.text import duration

FROM_TIMES = frozenset({"exposed_communication", "input_bound", "time_outside_phases"})
"""The causes whose evidence may be no more than the times of phases."""

COUNTED = frozenset(
    {
        *("accumulation_without_no_sync", "checkpoint_in_training", "evaluation_in_training"),
        *("garbage_pauses", "huge_bucket", "sync_stalls", "syncbn_cost", "tiny_buckets"),
        "unpinned_copy",
    }
)
"""The causes whose evidence is a count or a kind of work, which no slow machine adds.

Causes that follow from the times of phases alone are none of them.
"""

RECORDED = frozenset({SETTING_CHANGED, "amp_without_effect"})
"""The causes whose evidence is a setting that differs."""

LAST = frozenset({SETTING_CHANGED, "slow_line"})
"""The causes that yield to all others in the same rows."""

MOSTLY_EXPLAINED_SHARE = 0.5
"""A cause is dropped if other causes explain at least this share of its cost."""


def find_all(case: Case, rules: Iterable[Rule]) -> tuple[Cause, ...]:
    """Return the causes that the rules find, the costliest first."""
    found = []
    for rule in rules:
        cause = rule(case)
        if cause is not None and is_certain(cause, case.ledger):
            found.append(cause)
    settled = settle(found, case.ledger)
    return tuple(sorted(settled, key=lambda each: -each.cost_ns.value if each.cost_ns else 0.0))


def rank(causes: Sequence[Cause], *, falls: bool) -> list[Cause]:
    """Return the causes of a gap, first the one whose removal gives most.

    What has no cost comes last; before it, what has the direction of the gap is first. A rank that
    is no longer late may uncover what others hid behind it, so a removal can give less than the
    cost. Without a replay of each cause, the costs decide.
    """
    removable = [each for each in causes if each.cost_ns is not None and not each.is_gain]
    is_replayed = all(each.without_ns is not None for each in removable)

    def place(cause: Cause) -> tuple[bool, bool, float]:
        step = 0.0
        if is_replayed and cause.without_ns is not None:
            step = cause.without_ns.value
        return cause.cost_ns is None, cause.is_gain != falls, step

    return sorted(causes, key=place)


def is_certain(cause: Cause, ledger: Ledger) -> bool:
    """Return true if a cause has no cost, no interval, or one that is clear of zero.

    One that follows from times alone is not certain in rows that the machine may have changed.
    """
    if cause.kind in FROM_TIMES and cause.rows and ledger.unsure_rows.issuperset(cause.rows):
        return False
    if cause.cost_ns is None or cause.cost_ns.low is None:
        return True
    if cause.kind in COUNTED:
        return cause.cost_ns.low > 0
    return is_clear(cause.cost_ns, ledger, is_recorded=cause.kind in RECORDED)


def settle(found: Sequence[Cause], ledger: Ledger) -> Iterator[Cause]:
    """Yield each cause less what others explain; drop those that are mostly explained."""
    settled: list[Cause] = []
    for cause in found:
        if cause.kind not in LAST:
            owed = 0.0
            others = [other for other in found if other is not cause]
            for other in others:
                if other.cost_ns is not None:
                    owed += min(other.cost_ns.value, other.takes.get(cause.kind, 0.0))
            settled += _less(less_open(cause, others, ledger), owed, ledger)
    yield from settled
    if any(SETTING_CHANGED in other.takes for other in settled):
        return
    for cause in found:
        if cause.kind in LAST:
            others = [other for other in settled if other.kind not in cause.less]
            owed = math.fsum(_cost_in(cause.rows, other, ledger) for other in others)
            yield from _less(cause, owed, ledger)


def less_open(cause: Cause, others: Iterable[Cause], ledger: Ledger) -> Cause:
    """Return a cause less what others explain of the part of its cost that is open to them."""
    if not cause.open_ns:
        return cause
    owed = 0.0
    for other in others:
        if other.kind not in LAST and other.kind not in cause.takes:
            owed += _cost_in(cause.rows, other, ledger)
    return _without(cause, min(owed, cause.open_ns), ledger)


def _less(cause: Cause, owed: float, ledger: Ledger) -> Iterator[Cause]:
    """Yield a cause less what others explain of it, unless that is most of it."""
    if cause.cost_ns is None or owed < MOSTLY_EXPLAINED_SHARE * cause.cost_ns.value or not owed:
        yield _without(cause, owed, ledger)


def _without(cause: Cause, owed: float, ledger: Ledger) -> Cause:
    """Return a cause with its cost less what others explain of it."""
    if cause.cost_ns is None or not owed:
        return cause
    cost_ns = shift(cause.cost_ns, -owed)
    if cost_ns.low is not None:  # what is left of a cost is no gain
        cost_ns = dataclasses.replace(cost_ns, low=max(0.0, cost_ns.low))
    return dataclasses.replace(
        cause,
        cost_ns=cost_ns,
        share_of_gap=None if cause.is_outside else share_of(cost_ns.value, ledger),
        evidence=f"{cause.evidence}; other causes explain {duration(owed)} of it",
    )


def _cost_in(rows: Sequence[str], cause: Cause, ledger: Ledger) -> float:
    """Return how much of a cause's cost is in some rows: all of it, if its rows are not known.

    A cause in several rows costs in each of them what it grew by.
    """
    if cause.cost_ns is None:
        return 0.0
    if not rows or not cause.rows:
        return cause.cost_ns.value
    growth = {}
    for name in cause.rows:
        row = ledger.find(name)
        growth[name] = max(0.0, row.delta.value) if row is not None else 0.0
    whole = math.fsum(growth.values())
    if not whole:
        return cause.cost_ns.value if set(rows) & set(cause.rows) else 0.0
    return cause.cost_ns.value * math.fsum(growth.get(name, 0.0) for name in rows) / whole
