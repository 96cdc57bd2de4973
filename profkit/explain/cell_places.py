"""How and where a cell's time is spent, as far as the runs recorded it.

What is missing is left open. Each source speaks of the cell's own row, ranks and steps: a line of
the job's code, a place between phases, a piece of a batch, an operator, or a kind of collective.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.explain.cell_samples import Samples, read_samples
from profkit.explain.cell_steps import When
from profkit.explain.cells import Cell, Cells, refine
from profkit.explain.evidence import Evidence
from profkit.explain.kernel_ledger import KernelLedger
from profkit.explain.ledger import Ledger
from profkit.explain.policy import POLICY
from profkit.explain.rank_times import EXCHANGE
from profkit.explain.slowness import state_of
from profkit.frame.columns import durations, names_and_codes, rows_of_steps
from profkit.frame.costs import INPUT
from profkit.frame.device_times import PhaseClock, rows_of_ranks
from profkit.frame.estimate import Ints
from profkit.frame.gaps import unknown_places
from profkit.frame.phases import UNKNOWN
from profkit.text import significant
from profkit.vocab import Phase

QUEUE = "queue"
"""The piece of a batch that is not its making: it lies ready."""

_COMPUTE = (Phase.H2D.value, Phase.FORWARD.value, Phase.BACKWARD.value, Phase.OPTIMIZER.value)


class How(str, Enum):
    """How the time of a cell is spent."""

    COMPUTING = "computing"
    NO_CORE = "waiting for a core"
    BLOCKED = "asleep or blocked"
    DEVICE = "on the device"
    WAITING = "waiting for other ranks"


PROCESSOR, CORE_WAIT = "cpu_ns", "cpu_wait_ns"
"""Columns of spans, null where they were not read: a thread's processor time, and its wait."""


class _Sides(NamedTuple):
    ledger: Ledger
    before: Evidence
    after: Evidence
    kernels: KernelLedger | None

    @property
    def factor(self) -> float:
        """The factor from ns per sample and rank to ns per step of the base's batch."""
        return self.ledger.samples_per_step

    @property
    def scales(self) -> tuple[float, float]:
        """The factors from a step of each side to one of the base's batch."""
        of = self.ledger.batch_factor
        return of(self.before.step_samples), of(self.after.step_samples)

    def rank_factor(self, cell: Cell) -> float:
        """The factor from a cell's ns to ns per step of one of its ranks."""
        ranks = self.ledger.target.ranks
        return self.factor * ranks / (len(cell.ranks) or ranks)


def locate(
    cells: Cells,
    ledger: Ledger,
    before: Evidence,
    after: Evidence,
    kernels: KernelLedger | None = None,
) -> Cells:
    """Return the cells of which those that are told are divided by how and where."""
    sides = _Sides(ledger, before, after, kernels)
    told = {id(cell) for gains in (False, True) for cell in cells.told(gains=gains)}
    found: list[Cell] = []
    for cell in cells.all:
        found += _divide(cell, sides) if id(cell) in told else [cell]
    return dataclasses.replace(cells, all=tuple(found))


def _divide(cell: Cell, sides: _Sides) -> Iterable[Cell]:
    cell = dataclasses.replace(cell, how=_how(cell, sides), is_beyond=_is_beyond(cell, sides))
    best = max(_places(cell, sides), key=lambda each: abs(each[1]), default=("", 0.0))
    where, ns = best
    sign = math.copysign(1.0, cell.ns)
    if not where or sign * ns < POLICY.place_share * abs(cell.ns):
        return (cell,)
    if sign * ns >= (1 - POLICY.late_share_of_worst / 2) * abs(cell.ns):
        return (dataclasses.replace(cell, where=where),)
    return refine(cell, ns, where=where)


def _how(cell: Cell, sides: _Sides) -> str:
    """Return how most of the time is spent, empty if that is not known."""
    on_device = sides.ledger.target.clock is PhaseClock.DEVICE
    if on_device and cell.row in _COMPUTE:
        return How.DEVICE.value
    if cell.row == EXCHANGE:
        return ""
    found = _by_spans(cell, sides) or _by_counters(cell, sides)
    return found.value if found else ""


def _by_spans(cell: Cell, sides: _Sides) -> How | None:
    """Use the processor time of the phases themselves, in the steps in which it was read."""
    shares = []
    for side in (sides.before, sides.after):
        shares.append(side.figure(_thread_times).get(_phase_of(cell.row)))
    was, now = shares
    if was is None or now is None:
        return None
    scale, known = sides.scales[1], sides.scales[0]
    own_ns = (cell.ns - cell.moved_ns) * sides.rank_factor(cell)
    for how, grown in (
        (How.COMPUTING, now[0] * scale - was[0] * known),
        (How.NO_CORE, now[1] * scale - was[1] * known),
    ):
        if own_ns and grown / own_ns >= POLICY.how_share:
            return how
    spent = now[0] * scale - was[0] * known + max(0.0, now[1] * scale - was[1] * known)
    return How.BLOCKED if own_ns and spent / own_ns <= 1 - POLICY.how_share else None


def _thread_times(run: Evidence) -> Mapping[str, tuple[float, float]]:
    """Return processor time and wait for a core by phase, in ns per step and rank.

    It is empty if nothing read them; a wait that was not read is zero.
    """
    spans = run.trace.spans
    if PROCESSOR not in spans.column_names:
        return {}
    spans = run.select_used(spans.filter(pc.equal(spans["depth"], pa.scalar(0, pa.int16()))))
    names, codes = names_and_codes(spans["phase"])
    own = spans[PROCESSOR].to_numpy(zero_copy_only=False).astype(float)
    waits = np.zeros(len(own))
    if CORE_WAIT in spans.column_names:
        waits = spans[CORE_WAIT].fill_null(0).to_numpy(zero_copy_only=False).astype(float)
    lane = spans["rank"].to_numpy().astype(np.int64) << 40 | spans["step"].to_numpy()
    found = {}
    for code, name in enumerate(names):
        mine = (codes == code) & np.isfinite(own)
        steps = len(np.unique(lane[mine]))
        if steps:
            found[name] = float(own[mine].sum()) / steps, float(waits[mine].sum()) / steps
    return found


def _by_counters(cell: Cell, sides: _Sides) -> How | None:
    """Use the processor time of whole processes, which bounds what one of their threads used.

    A cell is blocked if the ranks neither computed nor waited for a core so much longer. It is
    computing if this is nearly all that was added to the host's time.
    """
    known, now = (
        run.own_ns(scale)
        for run, scale in zip((sides.before, sides.after), sides.scales, strict=True)
    )
    lost_ns = (cell.ns - cell.moved_ns) * sides.rank_factor(cell)
    if known is None or now is None or lost_ns <= 0:
        return None
    ranks = sides.ledger.target.ranks
    own_ns = max(0.0, now - known) * ranks / (len(cell.ranks) or ranks)
    states = []
    for run in (sides.before, sides.after):
        states.append(run.figure(state_of))
    waited_ns = 0.0
    if states[0] is not None and states[1] is not None:
        waits = (states[0].waited or 0.0), (states[1].waited or 0.0)
        step_ns = sides.before.step_ns * sides.scales[0], sides.after.step_ns * sides.scales[1]
        waited_ns = max(0.0, waits[1] * step_ns[1] - waits[0] * step_ns[0])
    is_known = all(state is not None and state.waited is not None for state in states)
    if is_known and own_ns + waited_ns <= (1 - POLICY.how_share) * lost_ns:
        return How.BLOCKED
    gap_ns = abs(sides.ledger.total.delta.value) * sides.factor
    is_most = cell.ns * sides.factor >= POLICY.how_share * gap_ns
    if not is_most:
        return None
    if own_ns >= POLICY.how_share * lost_ns:
        return How.COMPUTING
    return How.NO_CORE if waited_ns >= POLICY.how_share * lost_ns else None


def _places(cell: Cell, sides: _Sides) -> Iterator[tuple[str, float]]:
    """Yield places with their ns of the cell, from the first source that knows some."""
    for source in (_lines, _between_phases, _spans, _pieces, _kernels, _collectives):
        found = list(source(cell, sides))
        if found:
            yield from found
            return


def _phase_of(row: str) -> str:
    return {INPUT: Phase.DATA.value}.get(row, row)


def _lines(cell: Cell, sides: _Sides) -> Iterator[tuple[str, float]]:
    """Yield functions of the job's own code, each as its longest line, by what they add."""
    on_device = sides.ledger.target.clock is PhaseClock.DEVICE and cell.row in _COMPUTE
    now = sides.after.figure(_samples)
    if now is None or on_device:
        return
    phase, (known_scale, scale) = _phase_of(cell.row), sides.scales
    mine, sign = now.select(phase, cell.ranks, cell.long), 1 if cell.ns > 0 else -1
    if cell.long is not None:
        usual, known_scale = now.select(phase, cell.ranks, cell.long, others=True), scale
    elif cell.ranks:
        usual, known_scale = now.select(phase, cell.ranks, None, other_ranks=True), scale
    else:
        before = sides.before.figure(_samples)
        if before is None:
            return
        usual = before.select(phase, (), None)
    if sign < 0:  # the lines on which time was spent before, or by the others
        mine, usual, scale, known_scale = usual, mine, known_scale, scale
    known = dict(usual.by_function())
    share = sides.rank_factor(cell)
    if cell.long is not None:  # the cell is spread over all steps
        share *= len(sides.after.used) / max(1, len(cell.long))
    for function, ns in mine.by_function():
        added = ns * scale - known.get(function, 0.0) * known_scale
        if mine.hits(function) >= POLICY.fewest_samples and added > 0:
            with_waits = added / share * cell.ns / ((cell.ns - cell.moved_ns) or cell.ns)
            yield mine.words(function), sign * min(abs(with_waits), abs(cell.ns))


def _samples(run: Evidence) -> Samples | None:
    return read_samples(run.trace, run.used)


def _rows(run: Evidence, table: pa.Table, cell: Cell) -> tuple[pa.Table, Ints]:
    """Return the rows of a table of the cell's ranks and long steps, and these steps."""
    steps = cell.long
    if steps is None:
        steps = run.used
    if cell.ranks:
        table = rows_of_ranks(table, np.array(cell.ranks))
    return rows_of_steps(table, steps), steps


def _between_phases(cell: Cell, sides: _Sides) -> Iterator[tuple[str, float]]:
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


def _spans(cell: Cell, sides: _Sides) -> Iterator[tuple[str, float]]:
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
    cell: Cell, sides: _Sides, before: Mapping[str, float], after: Mapping[str, float]
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


def _pieces(cell: Cell, sides: _Sides) -> Iterator[tuple[str, float]]:
    """Yield the pieces of making a batch, which workers or the loop itself spend it on."""
    row = sides.ledger.find(INPUT)
    if cell.row != INPUT or row is None:
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


def _is_beyond(cell: Cell, sides: _Sides) -> bool:
    """Return true if steps, or a piece of a batch, are longer than a machine makes them."""
    if cell.steps.when is When.RARE:
        each_ns = abs(cell.ns) * cell.steps.of / max(1, cell.steps.long)
        return each_ns > (POLICY.most_slowdown - 1) * sides.ledger.total.base.value
    before, after = sides.before.loader, sides.after.loader
    if cell.row != INPUT or before is None or after is None:
        return False
    known_scale, scale = sides.scales
    least_ns = POLICY.place_share * abs(cell.ns) * sides.factor
    for piece, ns in after.pieces.items():
        was, now = sorted((before.pieces.get(piece, 0.0) * known_scale, ns * scale))
        if piece != QUEUE and now > POLICY.most_slowdown * was and now - was > least_ns:
            return True
    return False


def _kernels(cell: Cell, sides: _Sides) -> Iterator[tuple[str, float]]:
    if sides.kernels is None or cell.ranks or cell.long is not None:
        return
    for row in sides.kernels.of_phase(cell.row):
        yield row.name, row.delta_ns / sides.factor


def _collectives(cell: Cell, sides: _Sides) -> Iterator[tuple[str, float]]:
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
    rows = run.select_used(run.trace.collectives)
    names, codes = names_and_codes(rows["op"])
    count = max(1, len(run.used) * run.costs.ranks)
    calls = np.bincount(codes + 1, minlength=len(names) + 1)[1:] / count
    sums = np.bincount(codes + 1, weights=durations(rows), minlength=len(names) + 1)[1:] / count
    return dict(zip(names, zip(calls.tolist(), sums.tolist(), strict=True), strict=True))
