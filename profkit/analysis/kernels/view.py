"""Kernels grouped by name: what each costs a step, whether it uses the Tensor Cores, and what holds it back.

Shares are of the kernels' own durations added up, so they add up to one; kernels that run at the
same time count each for itself. Operators that stand in for kernels on a CPU have neither Tensor
Cores nor launches, so what is told of those is null for them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.estimate import Floats, Ints
from profkit.analysis.kernels.categories import MATRIX_WORK
from profkit.analysis.kernels.device_time import HOST
from profkit.analysis.kernels.roofline import LAUNCH, Places, bound_by_work, place_kernels
from profkit.schema import open_schema
from profkit.trace import Trace
from profkit.trace.reader import RankTrace

COLUMNS = (
    "rank",
    "device",
    "start_ns",
    "end_ns",
    "name",
    "category",
    "launch_ns",
    "step",
    "tensor_core",
    "bytes",
    "flops",
)
"""What is read of the `kernels` table to group it."""

MOST_BYTES = 100_000_000
"""Of a run whose kernels are larger on disk, only one rank is looked at where none is named: it would take too long to wait for."""

MOST_INSTANCES = 1_000
"""Instances of one kernel that are listed, the longest first: nobody reads more."""

LAUNCH_BOUND = 0.5
"""A kernel is named launch-bound where its device waited for calls that make up more than this share of its time."""


@dataclass(frozen=True)
class Call:
    """One call of a kernel: a row of a rank's `kernels` table."""

    rank: int
    row: int
    duration_ns: float


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
    longest: Call
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
    ranks_in_all: int
    calls: int
    steps: int
    """Captured steps, those of each rank counted for itself."""
    total_ns: float
    category_share: Mapping[str, float]
    """Shares of all kernels' time, the largest first."""
    tensor_core_share: float | None
    """Of the time of work that Tensor Cores can do, where the names tell."""
    launch_bound_share: float | None
    ceilings: bool
    """Whether the machine's ceilings are known."""
    problems: tuple[str, ...] = ()
    """What is damaged in the ranks' tables; rows before the damage are counted."""

    @property
    def noun(self) -> str:
        """What a row is: operators stand in for kernels on a CPU."""
        return "operator" if self.devices == (HOST,) else "kernel"


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


def build_kernels_view(
    tables: Iterable[pa.Table],
    ceilings: Ceilings | None,
    config: Mapping[str, Any],
    *,
    ranks_in_all: int = 1,
) -> KernelsView:
    """Group the kernels of each rank's table by name and category. The tables need no other columns than `COLUMNS`."""
    sums: dict[tuple[str, str], _Sums] = {}
    longest: dict[tuple[str, str], Call] = {}
    devices: set[str] = set()
    ranks: list[int] = []
    steps = 0
    for table in tables:
        if table.num_rows:
            found = _RankSums(
                table,
                place_kernels(
                    table, ceilings or Ceilings(), matrix_precision=matrix_precision(config)
                ),
            )
            for key, mine, call in found:
                sums[key] = sums[key].plus(mine) if key in sums else mine
                longest[key] = max(longest.get(key, call), call, key=lambda each: each.duration_ns)
            devices |= set(map(str, pc.unique(table["device"]).to_pylist()))
            ranks.append(int(table["rank"][0].as_py()))
            steps += len(pc.unique(table["step"].drop_null()))
    whole = sum((each.total for each in sums.values()), 0.0)
    groups = tuple(
        sorted(
            (_group(key, mine, longest[key], whole, steps) for key, mine in sums.items()),
            key=lambda group: -group.total_ns,
        )
    )
    return KernelsView(
        groups=groups,
        devices=tuple(sorted(devices)),
        ranks=tuple(ranks),
        ranks_in_all=max(ranks_in_all, len(ranks)),
        calls=sum(group.calls for group in groups),
        steps=steps,
        total_ns=whole,
        category_share=_by_category(groups),
        tensor_core_share=_mean(
            [
                (group.tensor_core_share, group.total_ns)
                for group in groups
                if group.eligible and group.tensor_core_share is not None
            ]
        ),
        launch_bound_share=_mean(
            [
                (group.launch_bound_share, group.total_ns)
                for group in groups
                if group.launch_bound_share is not None
            ]
        ),
        ceilings=ceilings is not None,
    )


def kernels_of(
    trace: Trace, ceilings: Ceilings | None = None, rank: int | None = None
) -> KernelsView:
    """The kernels of one rank of a run or of all. Of a run with very many, one rank stands for all where none is named."""
    problems: list[str] = []
    tables = (_read(each, COLUMNS, problems) for each in _chosen(trace, rank))
    view = build_kernels_view(
        tables, ceilings, trace.manifest.config, ranks_in_all=len(trace.ranks)
    )
    return dataclasses.replace(view, problems=tuple(problems))


def calls_of(
    trace: Trace,
    name: str,
    category: str,
    ceilings: Ceilings | None = None,
    rank: int | None = None,
) -> tuple[KernelInstance, ...]:
    """The longest calls of one kernel on the ranks that `kernels_of` looks at, the longest first."""
    columns = open_schema("kernels").names
    found = [
        call
        for each in _chosen(trace, rank)
        for call in kernel_instances(
            each.select("kernels", columns)[0], name, category, ceilings, trace.manifest.config
        )
    ]
    return tuple(sorted(found, key=lambda call: -call.duration_ns)[:MOST_INSTANCES])


def _read(rank: RankTrace, columns: Sequence[str], problems: list[str]) -> pa.Table:
    table, problem = rank.select("kernels", columns)
    problems += [f"rank {rank.rank}, kernels: {problem}"] if problem else []
    return table


def _chosen(trace: Trace, rank: int | None) -> tuple[RankTrace, ...]:
    if rank is not None:
        return tuple(each for each in trace.ranks if each.rank == rank)
    return trace.ranks if sum(map(_size, trace.ranks)) <= MOST_BYTES else trace.ranks[:1]


def _size(rank: RankTrace) -> int:
    path = rank.path("kernels")
    return path.stat().st_size if path.exists() else 0


def kernel_instances(
    kernels: pa.Table,
    name: str,
    category: str,
    ceilings: Ceilings | None,
    config: Mapping[str, Any],
) -> tuple[KernelInstance, ...]:
    """The longest calls of one kernel in one rank's table, the longest first."""
    rows = (
        np.flatnonzero(_is(kernels["name"], name) & _is(kernels["category"], category))
        if kernels.num_rows
        else np.empty(0, dtype=np.int64)
    )
    if not len(rows):
        return ()
    places = place_kernels(
        kernels, ceilings or Ceilings(), matrix_precision=matrix_precision(config)
    )
    rows = rows[np.argsort(-places.length_ns[rows], kind="stable")[:MOST_INSTANCES]]
    shares = places.share
    return tuple(
        _instance(row, values, places.bound(row), shares[row])
        for row, values in zip(rows.tolist(), kernels.take(pa.array(rows)).to_pylist(), strict=True)
    )


def _is(column: pa.ChunkedArray, value: str) -> npt.NDArray[np.bool_]:
    names, codes = _codes(column)
    return np.isin(codes, [place for place, name in enumerate(names) if name == value])


def _instance(
    row: int, values: Mapping[str, Any], bound: str | None, ceiling_share: float
) -> KernelInstance:
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


class _Sums(NamedTuple):
    """What the figures of one kernel are made of: times in ns, of all calls and of those of which something is known."""

    calls: float
    total: float
    in_steps: float
    on_device: float
    cores_known: float
    on_cores: float
    launched: float
    late: float
    queued: float
    arithmetic_known: float
    arithmetic: float
    memory_known: float
    memory: float
    least_known: float
    least: float

    def plus(self, other: _Sums) -> _Sums:
        return _Sums(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class _RankSums:
    """The rows of one rank's table by name and category, and what is summed over each."""

    def __init__(self, kernels: pa.Table, places: Places) -> None:
        self._names, name = _codes(kernels["name"])
        self._categories, category = _codes(kernels["category"])
        key = name * len(self._categories) + category
        self._keys = np.flatnonzero(np.bincount(key))
        self._of = np.searchsorted(self._keys, key)
        self._places = places
        self._kernels = kernels

    def __iter__(self) -> Iterator[tuple[tuple[str, str], _Sums, Call]]:
        longest, row = self._longest()
        rank = int(self._kernels["rank"][0].as_py())
        for place, (key, sums) in enumerate(
            zip(self._keys.tolist(), zip(*self._columns(), strict=True), strict=True)
        ):
            name, category = divmod(key, len(self._categories))
            yield (
                (self._names[name], self._categories[category]),
                _Sums(*sums),
                Call(rank, int(row[place]), float(longest[place])),
            )

    def _columns(self) -> list[list[float]]:
        """For each sum its value by group, in the order of `_Sums`."""
        places, length = self._places, self._places.length_ns
        on_device = ~_is(self._kernels["device"], HOST)
        flag, launch = self._kernels["tensor_core"], self._kernels["launch_ns"]
        told = flag.is_valid().to_numpy() & on_device
        used = flag.fill_null(fill_value=False).to_numpy().astype(bool)
        launched = launch.is_valid().to_numpy() & on_device
        queued = (self._kernels["start_ns"].to_numpy() - launch.fill_null(0).to_numpy()).astype(
            np.float64
        )
        ones, least = np.ones(len(length)), places.least_ns
        sums = [
            (ones, None),
            (length, None),
            (length, self._kernels["step"].is_valid().to_numpy()),
            (ones, on_device),
        ]
        sums += [
            (length, told),
            (length, told & used),
            (length, launched),
            (length, launched & places.launch_bound),
            (queued, launched),
        ]
        for times in (places.arithmetic_ns, places.memory_ns):
            sums += [(ones, np.isfinite(times)), (times, np.isfinite(times))]
        sums += [(length, np.isfinite(least)), (least, np.isfinite(least))]
        return [self._sum(values, which).tolist() for values, which in sums]

    def _sum(self, values: Floats, which: npt.NDArray[np.bool_] | None) -> Floats:
        rows = slice(None) if which is None else which
        return np.asarray(
            np.bincount(self._of[rows], weights=values[rows], minlength=len(self._keys)),
            dtype=np.float64,
        )

    def _longest(self) -> tuple[Floats, Ints]:
        length = self._places.length_ns
        longest = np.zeros(len(self._keys))
        np.maximum.at(longest, self._of, length)
        rows = np.flatnonzero(length == longest[self._of])[::-1]
        row = np.zeros(len(self._keys), dtype=np.int64)
        row[self._of[rows]] = rows
        return longest, row


def _group(
    key: tuple[str, str], sums: _Sums, longest: Call, whole: float, steps: int
) -> KernelGroup:
    name, category = key
    late = _ratio(sums.late, sums.launched)
    by_work = bound_by_work(
        sums.arithmetic if sums.arithmetic_known else math.nan,
        sums.memory if sums.memory_known else math.nan,
    )
    return KernelGroup(
        name=name,
        category=category,
        calls=int(sums.calls),
        total_ns=sums.total,
        share=sums.total / whole if whole else 0.0,
        ns_per_step=sums.in_steps / steps if steps else None,
        mean_ns=sums.total / sums.calls,
        longest=longest,
        tensor_core_share=_ratio(sums.on_cores, sums.cores_known),
        eligible=category in MATRIX_WORK if sums.on_device else None,
        launch_bound_share=late,
        queued_ratio=_ratio(sums.queued, sums.launched),
        bound=LAUNCH if late is not None and late > LAUNCH_BOUND else by_work,
        ceiling_share=_ratio(sums.least, sums.least_known),
    )


def _codes(column: pa.ChunkedArray) -> tuple[list[str], Ints]:
    whole = column.combine_chunks()
    return whole.dictionary.to_pylist(), np.asarray(whole.indices.to_numpy(), dtype=np.int64)


def _by_category(groups: tuple[KernelGroup, ...]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for group in groups:
        shares[group.category] = shares.get(group.category, 0.0) + group.share
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _mean(weighted: list[tuple[float | None, float]]) -> float | None:
    whole = sum(weight for _, weight in weighted)
    return sum((value or 0.0) * weight for value, weight in weighted) / whole if whole else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
