"""The captured steps of two runs compared, operator by operator.

These figures detail the computing rows. Captured steps are slower than others, so the figures do
not add up to a row. They do add up to the time in which the devices worked or were idle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.kernels.idle import HOST, gaps_in_steps, idle_reasons
from profkit.analysis.kernels.modules import (
    ModuleChange,
    ModuleTime,
    compare_modules,
    module_times,
)
from profkit.analysis.kernels.view import KernelsView, host_waits, kernels_of
from profkit.analysis.kernels.windows import NO_PHASE, exclusive_times
from profkit.explain.evidence import Evidence
from profkit.explain.evidence_kernels import MOVING
from profkit.explain.ledger import Ledger
from profkit.frame.columns import equals
from profkit.frame.estimate import Ints
from profkit.vocab import PHASES

LAUNCH_IDLE: Final = "launch-bound idle"
SYNC_STALL: Final = "sync stall"
OTHER_IDLE: Final = "idle for other reasons"
"""The name of gaps before work that was launched in time, or whose launch is not known."""
BETWEEN: Final = "between operators"
"""The name of gaps on a CPU: nothing is launched, the interpreter runs between operators."""

NAMELESS: Final = "(no name)"
OTHERS: Final = "other "
"""The prefix of a row that holds all operators of a category that only one side has."""

_COLUMNS = (
    *("rank", "device", "start_ns", "end_ns", "launch_ns"),
    *("name", "category", "op", "phase", "step", "module", "line"),
)


class _Key(NamedTuple):
    """The operators that share a row."""

    phase: str
    name: str
    category: str


class _Figures(NamedTuple):
    ns: float = 0.0
    calls: float = 0.0

    def plus(self, ns: float, calls: float) -> _Figures:
        return _Figures(self.ns + ns, self.calls + calls)


_Sums: TypeAlias = defaultdict[_Key, _Figures]
_Total: TypeAlias = tuple[_Key, float, float]
"""The time of a key in ns, and its calls."""


@dataclass(frozen=True)
class KernelRow:
    """One operator, or the rest of a category, in one phase.

    Times are ns on one rank in a captured step of the base's batch.
    """

    phase: str
    name: str
    category: str
    base_ns: float
    target_ns: float
    base_calls: float
    target_calls: float

    @property
    def delta_ns(self) -> float:
        return self.target_ns - self.base_ns


class Sides(NamedTuple):
    """A share on both sides; `None` if it is not known."""

    base: float | None
    target: float | None


@dataclass(frozen=True)
class KernelLedger:
    """The captured steps of two runs; in each phase, the rows that changed most come first."""

    rows: tuple[KernelRow, ...]
    base_steps: int
    target_steps: int
    noun: str
    moving_added_ns: float
    """The growth of the time of casts and layout copies."""
    tensor_core_share: Sides
    launched_late_share: Sides
    ceiling_share: Sides
    """The share of their ceilings that kernels of known work reach, weighted by time."""
    modules: tuple[ModuleChange, ...] = ()
    """The time of each module, if both runs know it."""

    def of_phase(self, phase: str) -> tuple[KernelRow, ...]:
        return tuple(row for row in self.rows if row.phase == phase)

    @property
    def phases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(attrgetter("phase"), self.rows)))


def compare_kernels(
    before: Evidence,
    after: Evidence,
    ledger: Ledger,
    ceilings: tuple[Ceilings | None, Ceilings | None] = (None, None),
) -> KernelLedger | None:
    """Compare captured steps; the result is `None` unless both runs have some."""
    base, target = before.kernels, after.kernels
    if base is None or target is None:
        return None
    base_sums, target_sums = _sum_side(before, base, ledger), _sum_side(after, target, ledger)
    rows = _match(base_sums, target_sums)
    places = dict(zip(PHASES, range(len(PHASES)), strict=True))
    rows.sort(key=lambda row: (places.get(row.phase, len(PHASES)), -abs(row.delta_ns)))
    return KernelLedger(
        rows=tuple(rows),
        base_steps=base.steps,
        target_steps=target.steps,
        noun=target.noun,
        moving_added_ns=sum(row.delta_ns for row in rows if row.category in MOVING),
        tensor_core_share=Sides(base.tensor_core_share, target.tensor_core_share),
        launched_late_share=Sides(base.launched_late_share, target.launched_late_share),
        ceiling_share=Sides(
            _ceiling_share(before, ceilings[0]), _ceiling_share(after, ceilings[1])
        ),
        modules=compare_modules(_modules(before, base, ledger), _modules(after, target, ledger)),
    )


def _match(base: _Sums, target: _Sums) -> list[KernelRow]:
    """Return a row for each operator that both sides have, and the rest of each category."""
    rows = []
    for key, before in base.items():
        if key not in target:
            continue
        after = target[key]
        rows.append(KernelRow(*key, before.ns, after.ns, before.calls, after.calls))
    base_rest: _Sums = defaultdict(_Figures)
    target_rest: _Sums = defaultdict(_Figures)
    for own, other, rest in ((base, target, base_rest), (target, base, target_rest)):
        for key, figures in own.items():
            if key not in other:
                name = OTHERS + key.category if key.category else key.name
                whole = _Key(key.phase, name, key.category)
                rest[whole] = rest[whole].plus(*figures)
    for key in {**base_rest, **target_rest}:
        before, after = base_rest[key], target_rest[key]
        rows.append(KernelRow(*key, before.ns, after.ns, before.calls, after.calls))
    return rows


def _sum_side(side: Evidence, view: KernelsView, ledger: Ledger) -> _Sums:
    """Return the figures of a captured step in the base's batch, on average over its ranks."""
    scale = ledger.batch_factor(side.step_samples) / view.steps
    sums: _Sums = defaultdict(_Figures)
    samples = host_waits(side.trace)
    for rank in side.trace.ranks:
        if rank.rank in view.ranks:
            rows = rank.select("kernels", _COLUMNS)[0]
            inside = rows.filter(rows["step"].is_valid())
            for key, ns, calls in (*_busy(inside), *_idle(rows, samples)):
                sums[key] = sums[key].plus(ns * scale, calls * scale)
    return sums


def _modules(side: Evidence, view: KernelsView, ledger: Ledger) -> list[ModuleTime]:
    """Return the times of each rank's modules, which add up to a mean over the ranks."""
    scale = ledger.batch_factor(side.step_samples) / view.steps
    found: list[ModuleTime] = []
    for rank in side.trace.ranks:
        if rank.rank in view.ranks:
            rows = rank.select("kernels", _COLUMNS)[0]
            inside = rows.filter(rows["step"].is_valid())
            found += module_times(inside, exclusive_times(inside), scale)
    return found


def _busy(rows: pa.Table) -> Iterator[_Total]:
    """Yield each operator's time on the device.

    While two run at once, the time is that of the one that began first.
    """
    if not rows.num_rows:
        return
    category = rows["category"].cast(pa.string()).combine_chunks()
    name = pc.coalesce(rows["op"].cast(pa.string()), rows["name"].cast(pa.string()))
    name = pc.if_else(pc.equal(name, ""), NAMELESS, name)
    yield from _sum_up(rows["phase"], name, category, exclusive_times(rows))


def _idle(rows: pa.Table, samples: pa.Table | None) -> Iterator[_Total]:
    """Yield the gaps of each device in the captured steps, in the phase of the later work."""
    gaps = gaps_in_steps(rows)
    names = np.array([LAUNCH_IDLE, SYNC_STALL, OTHER_IDLE])[idle_reasons(rows, gaps, samples)]
    names = np.where(equals(rows["device"], HOST)[gaps.after], BETWEEN, names)
    phase = rows["phase"].take(pa.array(gaps.after))
    no_category = pa.array([""] * len(names), pa.string())
    yield from _sum_up(phase, pa.array(names.tolist(), pa.string()), no_category, gaps.length)


def _sum_up(
    phase: pa.ChunkedArray, name: pa.Array, category: pa.Array, ns: Ints
) -> Iterator[_Total]:
    """Yield time and number of the rows of each phase, name and category."""
    columns = {
        "phase": phase.cast(pa.string()).fill_null(NO_PHASE),
        "name": name,
        "category": category,
        "ns": ns,
    }
    keys = ["phase", "name", "category"]
    sums = pa.table(columns).group_by(keys).aggregate([("ns", "sum"), ("ns", "count")])
    for row in sums.to_pylist():
        key = _Key(row["phase"], row["name"], row["category"])
        yield key, float(row["ns_sum"]), float(row["ns_count"])


def _ceiling_share(side: Evidence, ceilings: Ceilings | None) -> float | None:
    """Return the share of their ceilings that kernels reach, weighted by their time."""
    if ceilings is None:
        return None
    reached = known_ns = 0.0
    for group in kernels_of(side.trace, ceilings).groups:
        if group.ceiling_share is not None:
            reached += group.ceiling_share * group.total_ns
            known_ns += group.total_ns
    return reached / known_ns if known_ns else None
