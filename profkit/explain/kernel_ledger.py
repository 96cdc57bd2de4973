"""The computing rows of a ledger, opened into what the captured steps of both runs show: the same operators side by side.

Captured steps are slower than others, so these figures explain a row and do not add up to it. They do
add up to the time in which the captured steps' devices worked or had nothing to do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.estimate import Ints
from profkit.analysis.kernels.categories import COPY_CATEGORIES
from profkit.analysis.kernels.device_time import HOST
from profkit.analysis.kernels.view import kernels_of
from profkit.analysis.kernels.windows import NO_PHASE, exclusive_times
from profkit.explain.evidence import Evidence
from profkit.explain.ledger import Ledger
from profkit.vocab import PHASES

LAUNCH_IDLE: Final = "launch-bound idle"
SYNC_STALL: Final = "sync stall"
BETWEEN: Final = "between operators"
"""On a CPU nothing is launched: between two operators the interpreter runs."""

OTHERS: Final = "other "
"""Begins the name of a row that holds all operators of a category which only one side has."""

_COLUMNS = ("rank", "device", "start_ns", "end_ns", "name", "category", "op", "phase", "step")
_MOVING = frozenset({"layout", "cast or copy", COPY_CATEGORIES["DtoD"]})


class _Key(NamedTuple):
    phase: str
    name: str
    category: str


class _Figures(NamedTuple):
    ns: float
    calls: float


_NOTHING = _Figures(0.0, 0.0)


@dataclass(frozen=True)
class KernelRow:
    """One operator, or what is left of a category, in one phase: ns in a captured step of the base's batch on one rank, and calls."""

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
    """A share on both sides; null where it is not known."""

    base: float | None
    target: float | None


@dataclass(frozen=True)
class KernelLedger:
    """What the captured steps of two runs show beside each other; of each phase, the rows that changed most come first."""

    rows: tuple[KernelRow, ...]
    base_steps: int
    target_steps: int
    noun: str
    moving_added_ns: float
    """What casts and layout copies take more."""
    tensor_core_share: Sides
    launch_bound_share: Sides
    ceiling_share: Sides
    """Which part of their ceilings the kernels of known work reach, over all their time."""

    def of_phase(self, phase: str) -> tuple[KernelRow, ...]:
        return tuple(row for row in self.rows if row.phase == phase)

    @property
    def phases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.phase for row in self.rows))


def compare_kernels(
    before: Evidence,
    after: Evidence,
    ledger: Ledger,
    ceilings: tuple[Ceilings | None, Ceilings | None] = (None, None),
) -> KernelLedger | None:
    """`None` where not both runs have captured steps."""
    views = before.kernels, after.kernels
    if views[0] is None or views[1] is None:
        return None
    found = [dict(_per_step(side, ledger)) for side in (before, after)]
    rows = tuple(sorted(_match(*found), key=lambda row: (_place(row.phase), -abs(row.delta_ns))))
    return KernelLedger(
        rows=rows,
        base_steps=views[0].steps,
        target_steps=views[1].steps,
        noun=views[1].noun,
        moving_added_ns=sum(row.delta_ns for row in rows if row.category in _MOVING),
        tensor_core_share=Sides(*(view.tensor_core_share for view in views if view)),
        launch_bound_share=Sides(*(view.launch_bound_share for view in views if view)),
        ceiling_share=Sides(
            *(
                _ceiling_share(side, known)
                for side, known in zip((before, after), ceilings, strict=True)
            )
        ),
    )


def _place(phase: str) -> int:
    return PHASES.index(phase) if phase in PHASES else len(PHASES)


def _match(base: Mapping[_Key, _Figures], target: Mapping[_Key, _Figures]) -> Iterator[KernelRow]:
    """Operators that both sides have are a row each; what only one side has is joined with the rest of its phase and category."""
    for key in base.keys() & target.keys():
        yield _row(key, base[key], target[key])
    rest = [
        _joined({key: figures for key, figures in side.items() if key not in other})
        for side, other in ((base, target), (target, base))
    ]
    for key in rest[0].keys() | rest[1].keys():
        yield _row(key, rest[0].get(key, _NOTHING), rest[1].get(key, _NOTHING))


def _row(key: _Key, base: _Figures, target: _Figures) -> KernelRow:
    return KernelRow(*key, base.ns, target.ns, base.calls, target.calls)


def _joined(alone: Mapping[_Key, _Figures]) -> dict[_Key, _Figures]:
    sums: defaultdict[_Key, _Figures] = defaultdict(lambda: _NOTHING)
    for key, figures in alone.items():
        whole = _Key(key.phase, OTHERS + key.category if key.category else key.name, key.category)
        sums[whole] = _Figures(sums[whole].ns + figures.ns, sums[whole].calls + figures.calls)
    return dict(sums)


def _per_step(side: Evidence, ledger: Ledger) -> Iterator[tuple[_Key, _Figures]]:
    """A captured step on average over the ranks that were looked at, in the base's batch."""
    view = side.kernels
    if view is None:
        return
    scale = (
        ledger.samples_per_step / side.step_samples
        if ledger.per_sample and side.step_samples
        else 1.0
    ) / view.steps
    sums: defaultdict[_Key, _Figures] = defaultdict(lambda: _NOTHING)
    for rank in side.trace.ranks:
        if rank.rank in view.ranks:
            rows = rank.select("kernels", _COLUMNS)[0]
            for key, ns, calls in (
                *_busy(rows.filter(rows["step"].is_valid())),
                *_idle(rows.filter(rows["step"].is_valid())),
            ):
                sums[key] = _Figures(sums[key].ns + ns * scale, sums[key].calls + calls * scale)
    yield from sums.items()


_Sum = tuple[_Key, float, float]


def _busy(rows: pa.Table) -> Iterator[_Sum]:
    """Each operator's time on the device, where two run at once that of the one that began first."""
    if not rows.num_rows:
        return
    op = rows["op"].cast(pa.string()).combine_chunks()
    name = (
        op.fill_null("")
        if op.null_count < len(op)
        else rows["name"].cast(pa.string()).combine_chunks()
    )
    yield from _sum_up(
        rows["phase"],
        name,
        rows["category"].cast(pa.string()).combine_chunks(),
        exclusive_times(rows),
        np.ones(rows.num_rows, dtype=np.int64),
    )


def _idle(rows: pa.Table) -> Iterator[_Sum]:
    """What lies between two pieces of work of one step, in the phase of the later: after a copy to the host it is that copy's."""
    if rows.num_rows < 2:
        return
    device, step, rank = (
        rows["device"].combine_chunks(),
        rows["step"].to_numpy(),
        rows["rank"].to_numpy().astype(np.int64),
    )
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    lane = rank * 2**31 + device.indices.to_numpy().astype(np.int64)
    order = np.lexsort((start, step, lane))
    same = (np.diff(lane[order]) == 0) & (np.diff(step[order]) == 0)
    reach = _reach(end[order], same)
    gap = np.where(same, start[order][1:] - reach[:-1], 0)
    later, earlier = order[1:][gap > 0], order[:-1][gap > 0]
    on_host = np.array([str(name) == HOST for name in device.dictionary.to_pylist()])[
        device.indices.to_numpy()
    ]
    asked = np.array(
        [
            str(name) == COPY_CATEGORIES["DtoH"]
            for name in rows["category"].cast(pa.string()).to_pylist()
        ]
    )
    names = np.where(on_host[later], BETWEEN, np.where(asked[earlier], SYNC_STALL, LAUNCH_IDLE))
    nothing = pa.array([""] * len(later), pa.string())
    yield from _sum_up(
        rows["phase"].take(pa.array(later)),
        pa.array(names.tolist(), pa.string()),
        nothing,
        gap[gap > 0],
        np.ones(len(later), dtype=np.int64),
    )


def _reach(end: Ints, same: Ints) -> Ints:
    """The latest end so far, anew from each device and step."""
    reach = end.copy()
    for part in np.split(np.arange(len(end)), np.flatnonzero(~same) + 1):
        reach[part] = np.maximum.accumulate(end[part])
    return np.asarray(reach)


def _sum_up(
    phase: pa.ChunkedArray, name: pa.Array, category: pa.Array, ns: Ints, calls: Ints
) -> Iterator[_Sum]:
    table = pa.table(
        {
            "phase": phase.cast(pa.string()).fill_null(NO_PHASE),
            "name": name,
            "category": category,
            "ns": ns,
            "calls": calls,
        }
    )
    sums = table.group_by(["phase", "name", "category"]).aggregate(
        [("ns", "sum"), ("calls", "sum")]
    )
    for row in sums.to_pylist():
        yield (
            _Key(row["phase"], row["name"], row["category"]),
            float(row["ns_sum"]),
            float(row["calls_sum"]),
        )


def _ceiling_share(side: Evidence, ceilings: Ceilings | None) -> float | None:
    if ceilings is None:
        return None
    known = [
        (group.ceiling_share, group.total_ns)
        for group in kernels_of(side.trace, ceilings).groups
        if group.ceiling_share is not None
    ]
    return _mean(known)


def _mean(weighted: Iterable[tuple[float, float]]) -> float | None:
    pairs = list(weighted)
    whole = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / whole if whole else None
