"""The way from one run's time to the other's: each row of the ledger begins where the one before it ended."""

from __future__ import annotations

from dataclasses import dataclass

from profkit.explain.ledger import Ledger, Row


@dataclass(frozen=True)
class Drop:
    """A row of a waterfall, in ns of a step of the base's batch. `row` is the ledger's, `depth` is 1 where it is a part of the one above."""

    name: str
    row: Row
    start_ns: float
    end_ns: float
    depth: int = 0
    kind: str = "row"
    """`base` and `target` for the totals at both ends, `overlapped` for what is in no sum."""


def waterfall(ledger: Ledger) -> tuple[Drop, ...]:
    """From the base's total through the differences to the target's; parts of a row lie within it."""
    factor = ledger.samples_per_step
    at = ledger.total.base.value * factor
    drops = [Drop("base", ledger.total, 0.0, at, kind="base")]
    for row in ledger.rows:
        drops.append(Drop(row.name, row, at, at + row.delta.value * factor))
        inner = at
        for part in row.inside:
            drops.append(Drop(part.name, part, inner, inner + part.delta.value * factor, depth=1))
            inner += part.delta.value * factor
        at += row.delta.value * factor
    drops.append(
        Drop("target", ledger.total, 0.0, ledger.total.target.value * factor, kind="target")
    )
    return (*drops, *(Drop(row.name, row, 0.0, 0.0, kind="overlapped") for row in ledger.beside))
