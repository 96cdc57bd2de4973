"""The causes of a gain: the same rules, asked about the two runs the other way round.

What made the target faster is what the base has, and the target has not. Costs stay those of a step
of the base's batch, and sentences keep the order of time, from base to target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from profkit.explain.claims import find_all, turn_cells
from profkit.explain.ledger import Ledger, Row
from profkit.explain.rules.base import Case, Cause, Rule, grew
from profkit.frame.estimate import negate


def find_gains(case: Case, rules: Iterable[Rule]) -> Iterator[Cause]:
    """Yield what costs the target less than the base, the largest first.

    What has no cost cannot be a gain. One without an interval counts only if the target is surely
    faster: nothing else says that it is no chance.
    """
    turned = turn(case)
    is_faster = grew(turned.ledger.total, turned.ledger)
    for cause in find_all(turned, rules):
        cost_ns = cause.cost_ns
        if cost_ns is not None and (is_faster or cost_ns.low is not None):
            yield dataclasses.replace(cause, is_gain=True, remedy="")


def turn(case: Case) -> Case:
    """Return the case with base and target in each other's place."""
    return Case(
        base_name=case.target_name,
        target_name=case.base_name,
        base=case.target,
        target=case.base,
        ledger=turn_ledger(case.ledger),
        before=case.after,
        after=case.before,
        cells=turn_cells(case.cells),
    )


def turn_ledger(ledger: Ledger) -> Ledger:
    """Return the ledger with its sides in each other's place.

    Rows are turned and not estimated again, so that a gain has the interval that the page shows.
    The differences keep the order of time.
    """
    return dataclasses.replace(
        ledger,
        base=ledger.target,
        target=ledger.base,
        total=_turn_row(ledger.total),
        rows=tuple(map(_turn_row, ledger.rows)),
        beside=tuple(map(_turn_row, ledger.beside)),
        turned=not ledger.turned,
    )


def _turn_row(row: Row) -> Row:
    return dataclasses.replace(
        row,
        base=row.target,
        target=row.base,
        delta=negate(row.delta),
        exact=-row.exact,
        inside=tuple(map(_turn_row, row.inside)),
    )
