"""Kernels grouped by name: what each costs a step, whether it uses the Tensor Cores, and what holds it back.

Shares are of the kernels' own durations added up, so they add up to one; kernels that run at the
same time count each for itself. Operators that stand in for kernels on a CPU have neither Tensor
Cores nor launches, so what is told of those is null for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.device_time import HOST
from profkit.analysis.estimate import Floats, Ints
from profkit.analysis.kernel_categories import COMMUNICATION, MATRIX_WORK
from profkit.analysis.roofline import LAUNCH, Places, bound_by_work, place_kernels

MOST_INSTANCES = 1_000
"""Instances of one kernel that are listed, the longest first: nobody reads more."""

LAUNCH_BOUND = 0.5
"""A kernel is named launch-bound where its device waited for calls that make up more than this share of its time."""


@dataclass(frozen=True)
class KernelGroup:
    """All calls of one kernel, over the captured steps of all ranks that are looked at."""

    name: str
    category: str
    calls: int
    total_ns: float
    share: float
    """Of all kernels' time."""
    ns_per_step: float | None
    """Of the calls that belong to a step; null where none does."""
    mean_ns: float
    longest_ns: float
    longest: int
    """The row of the longest call, from which a timeline can be opened."""
    tensor_core_share: float | None
    """Of its time, what ran on Tensor Cores; null where the name does not tell."""
    eligible: bool | None
    """Whether it does work that Tensor Cores can do; null on a CPU."""
    launch_bound_share: float | None
    """Of its time, what belongs to calls that the idle device waited for; null where launches are not known."""
    queued_ratio: float | None
    """The mean time from launch to start over the mean duration: far above 1, the device has work queued; null where launches are not known."""
    bound: str | None
    """What holds it back: launch, memory or arithmetic; null where its work or the ceilings are not known."""
    ceiling_share: float | None
    """The share of that ceiling that its calls of known work reach."""


@dataclass(frozen=True)
class KernelsView:
    """The kernels of a run's captured steps, those with most time first."""

    groups: tuple[KernelGroup, ...]
    devices: tuple[str, ...]
    ranks: tuple[int, ...]
    calls: int
    steps: int
    """Captured steps, those of each rank counted for itself."""
    total_ns: float
    by_category: Mapping[str, float]
    """Shares of all kernels' time, the largest first."""
    tensor_core_share: float | None
    """Of the time of work that Tensor Cores can do, where the names tell."""
    launch_bound_share: float | None
    ceilings: bool
    """Whether the machine's ceilings are known."""

    @property
    def noun(self) -> str:
        """What a row is: operators stand in for kernels on a CPU."""
        return "operator" if self.devices == (HOST,) else "kernel"

    def of_category(self, category: str) -> tuple[KernelGroup, ...]:
        return tuple(group for group in self.groups if group.category == category)

    @property
    def communication(self) -> tuple[KernelGroup, ...]:
        """The collectives that the windows show as kernels or operators."""
        return self.of_category(COMMUNICATION)


@dataclass(frozen=True)
class KernelInstance:
    """One call of a kernel. Its extents are those of its grid and its blocks."""

    row: int
    rank: int
    device: str
    stream: int
    start_ns: int
    duration_ns: int
    step: int | None
    phase: str | None
    op: str | None
    queued_ns: int | None
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    bytes: int | None
    flops: float | None
    bound: str | None
    ceiling_share: float | None


def matrix_precision(config: Mapping[str, Any]) -> str:
    """The number format in which a run's Tensor Cores work, which says what ceiling they have."""
    said = str(config.get("precision", ""))
    return said if said in {"fp16", "bf16"} else "tf32"


def build_kernels_view(kernels: pa.Table, ceilings: Ceilings | None, config: Mapping[str, Any]) -> KernelsView:
    """Group the kernels by name and category; a table of one rank gives the view of that rank."""
    if not kernels.num_rows:
        return KernelsView((), (), (), 0, 0, 0.0, {}, None, None, ceilings is not None)
    places = place_kernels(kernels, ceilings or Ceilings(), matrix_precision=matrix_precision(config))
    groups = tuple(sorted(_Grouping(kernels, places).groups(), key=lambda group: -group.total_ns))
    total = float(places.length_ns.sum())
    eligible = [group for group in groups if group.eligible and group.tensor_core_share is not None]
    launched = [group for group in groups if group.launch_bound_share is not None]
    return KernelsView(
        groups=groups,
        devices=tuple(sorted(map(str, pc.unique(kernels["device"]).to_pylist()))),
        ranks=tuple(sorted(pc.unique(kernels["rank"]).to_pylist())),
        calls=kernels.num_rows,
        steps=_count_steps(kernels),
        total_ns=total,
        by_category=_by_category(groups),
        tensor_core_share=_mean([(group.tensor_core_share, group.total_ns) for group in eligible]),
        launch_bound_share=_mean([(group.launch_bound_share, group.total_ns) for group in launched]),
        ceilings=ceilings is not None,
    )


def kernel_instances(kernels: pa.Table, name: str, category: str, ceilings: Ceilings | None, config: Mapping[str, Any]) -> tuple[KernelInstance, ...]:
    """The longest calls of one kernel, the longest first."""
    rows = np.flatnonzero(_is(kernels["name"], name) & _is(kernels["category"], category))
    length = (kernels["end_ns"].to_numpy() - kernels["start_ns"].to_numpy())[rows]
    rows = rows[np.argsort(-length, kind="stable")[:MOST_INSTANCES]]
    places = place_kernels(kernels, ceilings or Ceilings(), matrix_precision=matrix_precision(config))
    shares = places.share
    return tuple(
        _instance(row, values, places.bound(row), shares[row]) for row, values in zip(rows.tolist(), kernels.take(pa.array(rows)).to_pylist(), strict=True)
    )


def _is(column: pa.ChunkedArray, value: str) -> npt.NDArray[np.bool_]:
    names, codes = _codes(column)
    return np.isin(codes, [place for place, name in enumerate(names) if name == value])


def _instance(row: int, values: Mapping[str, Any], bound: str | None, ceiling_share: float) -> KernelInstance:
    launched = values["launch_ns"] if values["device"] != HOST else None
    return KernelInstance(
        row=row,
        rank=values["rank"],
        device=values["device"],
        stream=values["stream"],
        start_ns=values["start_ns"],
        duration_ns=values["end_ns"] - values["start_ns"],
        step=values["step"],
        phase=values["phase"],
        op=values["op"],
        queued_ns=values["start_ns"] - launched if launched is not None else None,
        grid=tuple(values["grid"]) if values["grid"] else None,
        block=tuple(values["block"]) if values["block"] else None,
        bytes=values["bytes"],
        flops=values["flops"],
        bound=bound,
        ceiling_share=_known(ceiling_share),
    )


class _Grouping:
    """The rows of a table by name and category, with the sums that a group's figures are made of."""

    def __init__(self, kernels: pa.Table, places: Places) -> None:
        self._names, name = _codes(kernels["name"])
        self._categories, category = _codes(kernels["category"])
        key = name * len(self._categories) + category
        self._keys = np.flatnonzero(np.bincount(key))
        self._of = np.searchsorted(self._keys, key)
        self._places = places
        self._kernels = kernels
        self._on_device = ~_is(kernels["device"], HOST)

    def groups(self) -> Iterator[KernelGroup]:
        length, whole = self._places.length_ns, float(self._places.length_ns.sum())
        calls, total = self._count(), self._sum(length)
        steps, in_steps = _count_steps(self._kernels), self._sum(length, self._kernels["step"].is_valid().to_numpy())
        longest, row = self._longest(length)
        cores, eligible = self._tensor_core_shares(length), self._count(self._on_device)
        late, queued = self._launches(length)
        bound, reached = self._roofline(length, late)
        for place, key in enumerate(self._keys.tolist()):
            category = self._categories[key % len(self._categories)]
            yield KernelGroup(
                name=self._names[key // len(self._categories)],
                category=category,
                calls=int(calls[place]),
                total_ns=float(total[place]),
                share=float(total[place]) / whole if whole else 0.0,
                ns_per_step=float(in_steps[place]) / steps if steps else None,
                mean_ns=float(total[place] / calls[place]),
                longest_ns=float(longest[place]),
                longest=int(row[place]),
                tensor_core_share=_known(cores[place]),
                eligible=category in MATRIX_WORK if eligible[place] else None,
                launch_bound_share=_known(late[place]),
                queued_ratio=_known(queued[place]),
                bound=bound[place],
                ceiling_share=_known(reached[place]),
            )

    def _count(self, which: npt.NDArray[np.bool_] | None = None) -> Ints:
        return np.bincount(self._of if which is None else self._of[which], minlength=len(self._keys))

    def _sum(self, values: Floats, which: npt.NDArray[np.bool_] | None = None) -> Floats:
        rows = slice(None) if which is None else which
        return np.asarray(np.bincount(self._of[rows], weights=values[rows], minlength=len(self._keys)), dtype=np.float64)

    def _longest(self, length: Floats) -> tuple[Floats, Ints]:
        longest = np.zeros(len(self._keys))
        np.maximum.at(longest, self._of, length)
        rows = np.flatnonzero(length == longest[self._of])[::-1]
        row = np.zeros(len(self._keys), dtype=np.int64)
        row[self._of[rows]] = rows
        return longest, row

    def _tensor_core_shares(self, length: Floats) -> Floats:
        flag = self._kernels["tensor_core"]
        known = flag.is_valid().to_numpy() & self._on_device
        used = flag.fill_null(fill_value=False).to_numpy().astype(bool)
        return _ratio(self._sum(length, known & used), self._sum(length, known))

    def _launches(self, length: Floats) -> tuple[Floats, Floats]:
        """Shares of time that the device waited for, and the time from launch to start over the duration."""
        launch = self._kernels["launch_ns"]
        known = launch.is_valid().to_numpy() & self._on_device
        queued = (self._kernels["start_ns"].to_numpy() - launch.fill_null(0).to_numpy()).astype(np.float64)
        late = _ratio(self._sum(length, known & self._places.launch_bound), self._sum(length, known))
        return late, _ratio(self._sum(queued, known), self._sum(length, known))

    def _roofline(self, length: Floats, late: Floats) -> tuple[list[str | None], Floats]:
        arithmetic, memory, least = self._places.arithmetic_ns, self._places.memory_ns, self._places.least_ns
        sums = (self._known_sum(arithmetic), self._known_sum(memory))
        bound = [LAUNCH if share > LAUNCH_BOUND else bound_by_work(*times) for share, *times in zip(late.tolist(), *map(np.ndarray.tolist, sums), strict=True)]
        return bound, _ratio(self._sum(least, np.isfinite(least)), self._sum(length, np.isfinite(least)))

    def _known_sum(self, values: Floats) -> Floats:
        """The sums of what is known; NaN where nothing is."""
        known = np.isfinite(values)
        return np.where(self._count(known) > 0, self._sum(values, known), np.nan)


def _codes(column: pa.ChunkedArray) -> tuple[list[str], Ints]:
    whole = column.combine_chunks()
    return whole.dictionary.to_pylist(), np.asarray(whole.indices.to_numpy(), dtype=np.int64)


def _count_steps(kernels: pa.Table) -> int:
    inside = kernels.filter(kernels["step"].is_valid()).select(["rank", "step"])
    return int(inside.group_by(["rank", "step"]).aggregate([]).num_rows)


def _by_category(groups: tuple[KernelGroup, ...]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for group in groups:
        shares[group.category] = shares.get(group.category, 0.0) + group.share
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _mean(weighted: list[tuple[float | None, float]]) -> float | None:
    whole = sum(weight for _, weight in weighted)
    return sum((value or 0.0) * weight for value, weight in weighted) / whole if whole else None


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.asarray(np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0))


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
