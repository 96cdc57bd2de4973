"""The way from one run's time to the other's, row by row."""

from __future__ import annotations

from dataclasses import dataclass

from profkit.explain.ledger import Ledger, Row


@dataclass(frozen=True)
class Drop:
    """A row of a waterfall, in ns of a step of the base's batch."""

    name: str
    row: Row
    """The row of the ledger."""
    start_ns: float
    end_ns: float
    depth: int = 0
    """1 for a part of the row above, otherwise 0."""
    kind: str = "row"
    """`base` and `target` for the totals at both ends, `overlapped` for what is in no sum."""


def waterfall(ledger: Ledger) -> tuple[Drop, ...]:
    """Return the drops from the base's total to the target's.

    Each begins at the end of the one before it; the parts of a row are within it.
    """
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
    end_ns = ledger.total.target.value * factor
    drops.append(Drop("target", ledger.total, 0.0, end_ns, kind="target"))
    for row in ledger.beside:
        drops.append(Drop(row.name, row, 0.0, 0.0, kind="overlapped"))
    return tuple(drops)
