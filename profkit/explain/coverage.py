"""The part of the gap that the causes explain, and the row that holds most of the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profkit.analysis.config_join import ANY, COMPUTE, NOT_SAID
from profkit.explain.ledger import Row, Verdict
from profkit.explain.rules.base import (
    EXCHANGE,
    Case,
    Cause,
    Specific,
    grew,
    is_material,
    share_of,
    trains_on_host,
)
from profkit.explain.turned import turn
from profkit.frame.costs import DATA, REST
from profkit.frame.device_times import is_own
from profkit.frame.notices import is_log
from profkit.frame.phases import UNKNOWN
from profkit.vocab import Phase

_ON_HOST = (Phase.OTHER.value, UNKNOWN)
"""The rows that are the host's time also where a device computes."""


@dataclass(frozen=True)
class Coverage:
    """The shares of a gap that the causes explain together, and that a row holds besides."""

    share: float
    is_bound: bool
    """True if the causes can overlap, or one is only possible: they explain at most this share."""
    row: str = ""
    """The row with the largest part that no cause explains; empty if no row stands out."""
    row_share: float | None = None
    settings: tuple[str, ...] = ()
    """The settings that differ and can affect that row."""
    lacks_lines: bool = False
    """True if sampled lines of code would show more of that row, and a side has none."""


def cover(case: Case, causes: Sequence[Cause]) -> Coverage | None:
    """Return what the causes explain of a sure gap, in the direction of the gap."""
    verdict = case.ledger.verdict
    if verdict not in (Verdict.REGRESSION, Verdict.IMPROVEMENT):
        return None
    is_gain = verdict is Verdict.IMPROVEMENT
    counted = []
    for cause in causes:
        if cause.is_gain == is_gain and cause.share_of_gap is not None and cause.cost_ns:
            counted.append(cause)
    share = math.fsum(cause.share_of_gap or 0.0 for cause in counted)
    named = [name for cause in counted for name in cause.rows]
    is_bound = len(set(named)) < len(named)
    for cause in counted:
        is_alone = len(counted) == 1 or bool(cause.rows)
        # A setting is only possible, nothing divides the rest of a log, and a wait in one may pass
        # while the device works.
        is_possible = cause.specific is Specific.SETTING or REST in cause.rows
        may_be_hidden = DATA in cause.rows and is_log(case.after.trace)
        is_bound = is_bound or not is_alone or is_possible or may_be_hidden

    if len(case.ledger.rows) == 1 and not counted:
        return Coverage(share, is_bound, settings=tuple(_settings(case, case.ledger.rows[0].name)))
    if len(case.ledger.rows) == 1 or not all(cause.rows for cause in counted):
        return Coverage(share, is_bound)
    ledger = turn(case).ledger if is_gain else case.ledger
    rest, most_ns = None, 0.0
    for row in ledger.rows:
        left_ns = _left_ns(row, counted, ledger.samples_per_step)
        if grew(row, ledger) and is_material(left_ns, ledger) and left_ns > most_ns:
            rest, most_ns = row, left_ns
    if rest is None:
        return Coverage(share, is_bound)
    settings = tuple(_settings(case, rest.name))
    row_share, lacks_lines = share_of(most_ns, ledger), _lacks_lines(case, rest.name)
    return Coverage(share, is_bound, rest.name, row_share, settings, lacks_lines)


def _lacks_lines(case: Case, row: str) -> bool:
    """Return true if a row is the host's time, and the lines of a side were not sampled."""
    is_of_host = row in _ON_HOST or (row in COMPUTE and trains_on_host(case))
    before, after = case.before, case.after
    if not is_of_host or not (is_own(before.trace) and is_own(after.trace)):
        return False
    return before.code is None or after.code is None


def _left_ns(row: Row, counted: Sequence[Cause], factor: float) -> float:
    """Return how much of a row no cause explains, in ns per step.

    A cause in several rows may be in any of them, so nothing is left of these.
    """
    left_ns = row.delta.value * factor
    for cause in counted:
        if row.name in cause.rows and cause.cost_ns is not None:
            left_ns -= cause.cost_ns.value
            if len(cause.rows) > 1:
                left_ns = 0.0
    return left_ns


def _settings(case: Case, row: str) -> Iterator[str]:
    """Yield the settings that both runs recorded, that differ, and that can affect a row.

    `rest` is all that has no row of its own. The samples of all ranks follow from those of one.
    """
    names = {each.name for each in case.ledger.differences}
    on_host = trains_on_host(case)
    rows = [row]
    if row == REST:
        rows += [Phase.H2D.value, Phase.FORWARD.value, Phase.OPTIMIZER.value, *EXCHANGE]
        if case.ledger.find(DATA) is None:
            rows.append(DATA)
    for each in case.ledger.differences:
        follows = each.name == "global_batch_size" and {"world_size", "batch_size"} & names
        can_affect = ANY in each.rows.replace(",", " ").split()
        for name in rows:
            can_affect = can_affect or each.can_affect(name, on_host=on_host)
        if can_affect and not follows and NOT_SAID not in {each.base, each.target}:
            yield f"{each.name} {each.base} -> {each.target}"
