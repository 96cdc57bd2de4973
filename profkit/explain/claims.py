"""Causes as claims on the cells of a gap: each cell is given to the most specific one.

Cells are disjoint, so nothing is counted twice, and no cause costs more than its cells. What no
rule claims is told as the cell itself (`named.py`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

from profkit.explain.cells import Cell, Cells, refine
from profkit.explain.ledger import Ledger
from profkit.explain.named import EXCHANGE, is_clear_cell, name_cells
from profkit.explain.policy import POLICY
from profkit.explain.rules.base import (
    Case,
    Cause,
    Rule,
    Specific,
    is_clear,
    share_of,
    shift,
)
from profkit.frame.estimate import negate
from profkit.frame.exposed import TRANSFER
from profkit.text import duration


def find_all(case: Case, rules: Iterable[Rule]) -> tuple[Cause, ...]:
    """Return the causes of what the target takes longer, the costliest first."""
    found = []
    for rule in rules:
        cause = rule(case)
        if cause is not None and is_certain(cause, case.ledger):
            found.append(cause)
    causes = list(allocate(found, case))
    return tuple(sorted(causes, key=lambda each: -each.cost_ns.value if each.cost_ns else 0.0))


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

    One that follows from times alone is not certain in rows that the machine may have changed. One
    that was counted needs no gap that is sure.
    """
    is_time = cause.specific is Specific.TIME
    if is_time and cause.rows and ledger.unsure_rows.issuperset(cause.rows):
        return False
    if cause.cost_ns is None or cause.cost_ns.low is None:
        return True
    if cause.specific >= Specific.COUNT:
        return cause.cost_ns.low > 0
    return is_clear(cause.cost_ns, ledger, is_recorded=cause.specific is Specific.SETTING)


def allocate(found: Sequence[Cause], case: Case) -> Iterator[Cause]:
    """Yield each cause with what is left of its cells; drop those that others mostly explain.

    Then the cells of which nobody took most are yielded by their own name.
    """
    ledger, step = case.ledger, case.ledger.samples_per_step
    cells = [cell for cell in case.cells.all if cell.ns > 0]
    left = [cell.ns * step for cell in cells]
    taken_apart: set[str] = set()
    order = sorted(found, key=lambda each: (-each.specific, -_cost_of(each)))
    for cause in order:
        if cause.cost_ns is None or cause.apart:
            if cause.cost_ns is None or cause.apart not in taken_apart:
                yield cause
            taken_apart.add(cause.apart)
            continue
        mine = [place for place, cell in enumerate(cells) if covers(cause, cell)]
        held = sum(cells[place].ns * step for place in mine)
        free = sum(left[place] for place in mine)
        cost = cause.cost_ns.value
        if not cause.rows and held < cost:
            taken = min(cost, free)  # measured by itself: it costs that also if other work hid it
            kept: Cause | None = cause
        else:
            taken = min(cost, free)
            kept = _with_cost(cause, taken, ledger, is_taken=free < held)
        if kept is None:
            continue
        for place in mine:
            left[place] -= taken * left[place] / (free or math.inf)
        yield kept
    yield from _name_rest(case, cells, left)


def covers(cause: Cause, cell: Cell) -> bool:
    """Return true if a cause can make a cell."""
    if cause.rows and cell.row not in cause.rows:
        return False
    if cause.ranks is not None and cause.ranks != cell.ranks:
        return False
    if cause.needs_processor and cell.is_blocked:
        return False
    return not (cell.is_counted and (cause.needs_processor or cause.is_steady))


def _cost_of(cause: Cause) -> float:
    if cause.cost_ns is None:
        return 0.0
    return cause.cost_ns.value


def _with_cost(cause: Cause, ns: float, ledger: Ledger, *, is_taken: bool) -> Cause | None:
    """Return a cause that costs so much; `None` if that is less than half of its claim."""
    whole = cause.cost_ns
    if whole is None or ns < POLICY.place_share * whole.value:
        return None
    owed = whole.value - ns
    if owed <= POLICY.material_share * whole.value:
        return cause
    cost_ns = shift(whole, -owed)
    if cost_ns.low is not None:  # what is left of a cost is no gain
        cost_ns = dataclasses.replace(cost_ns, low=max(0.0, cost_ns.low))
    why = "what it can affect does not hold"
    if is_taken:
        why = "other causes explain"
    return dataclasses.replace(
        cause,
        cost_ns=cost_ns,
        share_of_gap=share_of(cost_ns.value, ledger),
        evidence=f"{cause.evidence}; {why} {duration(owed)} of it",
    )


def _name_rest(case: Case, cells: Sequence[Cell], left: Sequence[float]) -> Iterator[Cause]:
    """Yield the cells that are open by their own names, those of a rank as one."""
    step = case.ledger.samples_per_step
    groups: dict[object, list[tuple[Cell, float]]] = {}
    for cell, free in zip(cells, left, strict=True):
        is_open = free >= POLICY.place_share * cell.ns * step
        if is_open and is_clear_cell(cell, case):
            groups.setdefault(cell.ranks or id(cell), []).append((cell, free))
    for group in groups.values():
        found = [cell for cell, _ in group]
        if found[0].ranks:
            found += _caught_up(found[0].ranks, case)
        free = math.fsum(ns for _, ns in group)
        free += step * sum(min(0.0, cell.ns) for cell in found)
        if not case.cells.is_material(free / step):
            continue
        named = name_cells(found, case)
        if named is not None:
            kept = _with_cost(named, min(free, _cost_of(named)), case.ledger, is_taken=True)
            if kept is not None:
                yield kept


def _caught_up(ranks: tuple[int, ...], case: Case) -> Iterator[Cell]:
    """Yield in what late ranks catch up, and what is waited less in the exchange."""
    for cell in case.cells.all:
        if cell.ns >= 0 or not cell.is_sure:
            continue
        if cell.ranks == ranks:
            yield cell
        elif cell.row == EXCHANGE:
            yield from _waits_less(cell, case)


def _waits_less(cell: Cell, case: Case) -> Iterator[Cell]:
    """Yield the part of a shorter exchange in which ranks wait less."""
    row = case.ledger.find(cell.row)
    inside = {part.name: part.delta.value for part in row.inside} if row is not None else {}
    less_ns = cell.ns - min(0.0, inside.get(TRANSFER, 0.0))
    if less_ns < 0:
        yield refine(cell, less_ns)[0]


def turn_cells(cells: Cells) -> Cells:
    """Return the cells of the gap in the other direction."""
    turned = []
    for cell in cells.all:
        delta = negate(cell.delta)
        turned.append(
            dataclasses.replace(cell, delta=delta, exact=-cell.exact, moved_ns=-cell.moved_ns)
        )
    return dataclasses.replace(cells, all=tuple(turned), whole=negate(cells.whole))
