"""How and where a cell's time is spent, as far as the runs recorded it.

What is missing is left open. Each source speaks of the cell's own row, ranks and steps: a line of
the job's code, a place between phases, a piece of a batch, an operator, or a kind of collective.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.explain.cell_how import (
    Doings,
    Sides,
    added_by_line,
    added_in_workers,
    divide_by_how,
    waits_for_workers,
)
from profkit.explain.cell_steps import When
from profkit.explain.cells import Cell, Cells, refine, split
from profkit.explain.evidence import Evidence
from profkit.explain.kernel_ledger import KernelLedger
from profkit.explain.ledger import Ledger
from profkit.explain.policy import POLICY
from profkit.explain.rank_times import EXCHANGE
from profkit.explain.sampled_lines import find_lines
from profkit.frame.columns import durations, names_and_codes, rows_of_steps
from profkit.frame.costs import DATA
from profkit.frame.device_times import rows_of_ranks
from profkit.frame.estimate import Ints
from profkit.frame.gaps import unknown_places
from profkit.frame.phases import UNKNOWN
from profkit.text import significant
from profkit.vocab import Phase

QUEUE = "queue"
"""The piece of a batch that is not its making: it lies ready."""


def locate(
    cells: Cells,
    ledger: Ledger,
    before: Evidence,
    after: Evidence,
    kernels: KernelLedger | None = None,
) -> Cells:
    """Return the cells of which those that are told are divided by how and where."""
    sides = Sides(ledger, before, after, kernels)
    told = {id(cell) for gains in (False, True) for cell in cells.told(gains=gains)}
    apart = find_lines(cells, sides, told)
    found: list[Cell] = []
    for cell in cells.all:
        rest, lines = cell, set[str]()
        for added in apart.get(id(cell), ()):
            part, rest = split(rest, added.delta, where=added.line, is_beyond=added.is_beyond)
            found += divide_by_how(part, sides, added.doings)
            lines.add(added.line)
        is_open = rest.is_sure and cells.is_material(rest.ns)
        found += _divide(rest, sides, lines) if is_open else [rest]
    sign = math.copysign(1.0, ledger.total.delta.value)
    return dataclasses.replace(cells, all=tuple(sorted(found, key=lambda each: -sign * each.ns)))


def _divide(cell: Cell, sides: Sides, apart: Collection[str]) -> Iterator[Cell]:
    """Yield the parts of a cell, from which what was added at some lines is apart."""
    cell = dataclasses.replace(cell, is_beyond=_is_beyond(cell, sides))
    of_lines = added_by_line
    if waits_for_workers(cell, sides):
        of_lines = added_in_workers
    lines = {line: doings for line, doings in of_lines(cell, sides).items() if line not in apart}
    found = _places(cell, sides, lines)
    where, ns = max(found, key=lambda each: abs(each[1]), default=("", 0.0))
    share = ns / cell.ns
    parts: tuple[Cell, ...] = (cell,)
    if where and share >= 1 - POLICY.late_share_of_worst / 2:
        parts = (dataclasses.replace(cell, where=where),)
    elif where and share >= POLICY.place_share:
        parts = refine(cell, ns, where=where)
    for part in parts:
        yield from divide_by_how(part, sides, _doings(part, parts, lines, sides))


def _doings(part: Cell, parts: Sequence[Cell], lines: Mapping[str, Doings], sides: Sides) -> Doings:
    """Return how the samples of a cell were spent: at its line, or at those of no other cell."""
    if part.where in lines:
        return lines[part.where]
    if waits_for_workers(part, sides):
        return {}
    sums: dict[str, float] = {}
    for line, doings in lines.items():
        if line and any(line == other.where for other in parts):
            continue
        for words, ns in doings.items():
            sums[words] = sums.get(words, 0.0) + ns
    return sums


def _places(cell: Cell, sides: Sides, lines: Mapping[str, Doings]) -> Iterator[tuple[str, float]]:
    """Yield places with their ns of the cell, from the first source that knows some."""
    is_line = False
    for line, doings in lines.items():
        ns = min(sum(doings.values()), abs(cell.ns))
        if line and ns > 0:
            is_line = True
            yield line, math.copysign(ns, cell.ns)
    if is_line:
        return
    for source in (_between_phases, _spans, _pieces, _kernels, _collectives):
        found = list(source(cell, sides))
        if found:
            yield from found
            return


def _rows(run: Evidence, table: pa.Table, cell: Cell) -> tuple[pa.Table, Ints]:
    """Return the rows of a table of the cell's ranks and long steps, and these steps."""
    steps = cell.long
    if steps is None:
        steps = run.used
    if cell.ranks:
        table = rows_of_ranks(table, np.array(cell.ranks))
    return rows_of_steps(table, steps), steps


def _between_phases(cell: Cell, sides: Sides) -> Iterator[tuple[str, float]]:
    """Yield the places between two phases."""
    if cell.row != UNKNOWN:
        return
    after = _gaps(sides.after, cell)
    before: Mapping[str, float] = {}
    if cell.long is not None:
        others = dataclasses.replace(cell, long=np.setdiff1d(sides.after.used, cell.long))
        before = _gaps(sides.after, others)
    elif set(cell.ranks) <= {rank.rank for rank in sides.before.trace.ranks}:
        before = _gaps(sides.before, cell)
    yield from _added(cell, sides, before, after)


def _gaps(run: Evidence, cell: Cell) -> Mapping[str, float]:
    steps, used = _rows(run, run.trace.steps, cell)
    spans, _ = _rows(run, run.trace.spans, cell)
    found = {}
    for place in unknown_places(steps, spans, used):
        found[f"between {place.after} and {place.before}"] = place.step_ns
    return found


def _spans(cell: Cell, sides: Sides) -> Iterator[tuple[str, float]]:
    """Yield what the phase `other` was spent on, as the framework's calls are named."""
    if cell.row != Phase.OTHER.value:
        return
    whole = dataclasses.replace(cell, long=None)
    after, before = _named(sides.after, cell), _named(sides.before, whole)
    if cell.long is not None:
        before = {}
    yield from _added(cell, sides, before, after)


def _named(run: Evidence, cell: Cell) -> Mapping[str, float]:
    spans = run.basis.spans
    spans = spans.filter(pc.equal(spans["phase"], cell.row))
    rows, steps = _rows(run, spans.filter(pc.equal(spans["depth"], pa.scalar(0, pa.int16()))), cell)
    names, codes = names_and_codes(rows["name"])
    sums = np.bincount(codes + 1, weights=durations(rows), minlength=len(names) + 1)[1:]
    count = max(1, len(steps)) * (len(cell.ranks) or run.costs.ranks)
    return {name: ns / count for name, ns in zip(names, sums.tolist(), strict=True) if ns}


def _added(
    cell: Cell, sides: Sides, before: Mapping[str, float], after: Mapping[str, float]
) -> Iterator[tuple[str, float]]:
    """Yield what was added to each place, in the unit of the cell."""
    known_scale, scale = sides.scales
    share = sides.rank_factor(cell)
    if cell.long is not None:
        share *= len(sides.after.used) / max(1, len(cell.long))
        known_scale = scale
    for name, ns in after.items():
        added = (ns * scale - before.get(name, 0.0) * known_scale) / share
        if added:
            yield name, added * cell.ns / ((cell.ns - cell.moved_ns) or cell.ns)


def _pieces(cell: Cell, sides: Sides) -> Iterator[tuple[str, float]]:
    """Yield the pieces of making a batch, which workers or the loop itself spend it on."""
    row = sides.ledger.find(DATA)
    if cell.row != DATA or row is None:
        return
    before, after = sides.before.loader, sides.after.loader
    if before is not None and after is not None:
        grown = {}
        known_scale, scale = sides.scales
        for piece, ns in after.pieces.items():
            grown[piece] = ns * scale - before.pieces.get(piece, 0.0) * known_scale
        largest = max(grown, key=lambda piece: grown[piece], default="")
        if largest and grown[largest] > 0:
            yield f"{largest} of a batch", cell.ns if largest != QUEUE else 0.0
        return
    for part in row.inside:
        yield f"{part.name} of a batch", part.delta.value


def _is_beyond(cell: Cell, sides: Sides) -> bool:
    """Return true if steps, or a piece of a batch, are longer than a machine makes them."""
    if cell.steps.when is When.RARE:
        each_ns = abs(cell.ns) * cell.steps.of / max(1, cell.steps.long)
        return each_ns > (POLICY.most_slowdown - 1) * sides.ledger.total.base.value
    before, after = sides.before.loader, sides.after.loader
    if cell.row != DATA or before is None or after is None:
        return False
    known_scale, scale = sides.scales
    least_ns = POLICY.place_share * abs(cell.ns) * sides.factor
    for piece, ns in after.pieces.items():
        was, now = sorted((before.pieces.get(piece, 0.0) * known_scale, ns * scale))
        if piece != QUEUE and now > POLICY.most_slowdown * was and now - was > least_ns:
            return True
    return False


def _kernels(cell: Cell, sides: Sides) -> Iterator[tuple[str, float]]:
    if sides.kernels is None or cell.ranks or cell.long is not None:
        return
    for row in sides.kernels.of_phase(cell.row):
        yield row.name, row.delta_ns / sides.factor


def _collectives(cell: Cell, sides: Sides) -> Iterator[tuple[str, float]]:
    """Yield the operation of which there are more, or which take longer."""
    if cell.row != EXCHANGE:
        return
    before, after = sides.before.figure(count_collectives), sides.after.figure(count_collectives)
    for op, (count, ns) in after.items():
        known, known_ns = before.get(op, (0.0, 0.0))
        words = op
        if count >= (1 + POLICY.how_share) * known:
            words = f"{op}, {significant(count, 2)} a step instead of {significant(known, 2)}"
        added = (ns * sides.scales[1] - known_ns * sides.scales[0]) / sides.factor
        if added:
            yield words, min(added, cell.ns) if cell.ns > 0 else max(added, cell.ns)


def count_collectives(run: Evidence) -> Mapping[str, tuple[float, float]]:
    """Return calls and ns per step and rank of each operation."""
    return count_by_op(run, run.collectives)


def count_by_op(run: Evidence, rows: pa.Table) -> Mapping[str, tuple[float, float]]:
    """Return the same of some of a run's collectives."""
    names, codes = names_and_codes(rows["op"])
    count = max(1, len(run.used) * run.costs.ranks)
    calls = np.bincount(codes + 1, minlength=len(names) + 1)[1:] / count
    sums = np.bincount(codes + 1, weights=durations(rows), minlength=len(names) + 1)[1:] / count
    return dict(zip(names, zip(calls.tolist(), sums.tolist(), strict=True), strict=True))
