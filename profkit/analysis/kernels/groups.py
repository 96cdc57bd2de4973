"""Sums over all calls of each kernel, and the figures that follow from them."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profkit.analysis.kernels.categories import MATRIX_WORK
from profkit.analysis.kernels.idle import HOST
from profkit.analysis.kernels.roofline import LAUNCH, Places, bound_by_work
from profkit.frame.columns import equals, names_and_codes
from profkit.frame.estimate import Floats, Ints

_FEW_KEYS = 1_000_000
LAUNCH_BOUND = 0.5
"""A kernel is launch-bound if more than this share of its time is in calls waited for."""


@dataclass(frozen=True)
class Call:
    """One call of a kernel: a row of a rank's `kernels` table."""

    rank: int
    row: int
    duration_ns: float


@dataclass(frozen=True)
class KernelGroup:
    """All calls of one kernel, over the captured steps of all ranks that are read."""

    name: str
    category: str
    calls: int
    total_ns: float
    share: float
    """The share of all kernels' time."""
    ns_per_step: float | None
    """The time of calls that belong to a step; null if none does."""
    mean_ns: float
    longest: Call
    tensor_core_share: float | None
    """The share of its time that ran on Tensor Cores; null if the name does not tell."""
    eligible: bool | None
    """True if it does work that Tensor Cores can do; null on a CPU."""
    launch_bound_share: float | None
    """The share of its time in calls that the idle device waited for; null without launches."""
    queued_ratio: float | None
    """The mean time from launch to start over the mean duration; null without launches.

    If it is far above 1, the device has work queued.
    """
    bound: str | None
    """What holds it back: launch, memory or arithmetic; null without its work or the ceilings."""
    ceiling_share: float | None
    """The share of that ceiling that its calls of known work reach."""


class KernelSums(NamedTuple):
    """Sums over the calls of one kernel: times in ns, and the counts of calls behind some."""

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

    def plus(self, other: KernelSums) -> KernelSums:
        return KernelSums(*map(operator.add, self, other))


def sum_by_kernel(
    kernels: pa.Table, places: Places
) -> Iterator[tuple[tuple[str, str], KernelSums, Call]]:
    """Yield each name and category in one rank's table, with its sums and its longest call."""
    names, name = names_and_codes(kernels["name"])
    categories, category = names_and_codes(kernels["category"])
    key = name * len(categories) + category
    keys, group = _distinct(key, len(names) * len(categories))
    columns = []
    for values, rows in _summed_columns(kernels, places):
        sums = np.bincount(group[rows], weights=values[rows], minlength=len(keys))
        columns.append(sums.tolist())
    rank = int(kernels["rank"][0].as_py())
    length = places.length_ns
    longest = np.zeros(len(keys))
    np.maximum.at(longest, group, length)
    # Assigned in descending order, so that the first of equally long calls stays.
    longest_rows = np.flatnonzero(length == longest[group])[::-1]
    first_row = np.zeros(len(keys), dtype=np.int64)
    first_row[group[longest_rows]] = longest_rows
    for place, totals in enumerate(zip(*columns, strict=True)):
        name_code, category_code = divmod(int(keys[place]), len(categories))
        call = Call(rank, int(first_row[place]), float(longest[place]))
        yield (names[name_code], categories[category_code]), KernelSums(*totals), call


def _distinct(key: Ints, count: int) -> tuple[Ints, Ints]:
    """Return the keys that occur, ascending, and each row's place among them.

    Counting is faster than sorting, but many names of a run need more places than it has rows.
    """
    if count > max(_FEW_KEYS, len(key)):
        return np.unique(key, return_inverse=True)
    keys = np.flatnonzero(np.bincount(key))
    return keys, np.searchsorted(keys, key)


def _summed_columns(
    kernels: pa.Table, places: Places
) -> Iterator[tuple[Floats, npt.NDArray[np.bool_] | slice]]:
    """Yield the values and the calls that each sum is made of, in the order of `KernelSums`."""
    length, ones = places.length_ns, np.ones(len(places.length_ns))
    on_device = ~equals(kernels["device"], HOST)
    flag, launch = kernels["tensor_core"], kernels["launch_ns"]
    cores_known = flag.is_valid().to_numpy() & on_device
    on_cores = flag.fill_null(fill_value=False).to_numpy().astype(bool)
    launched = launch.is_valid().to_numpy() & on_device
    queued = kernels["start_ns"].to_numpy() - launch.fill_null(0).to_numpy()
    yield ones, slice(None)
    yield length, slice(None)
    yield length, kernels["step"].is_valid().to_numpy()
    yield ones, on_device
    yield length, cores_known
    yield length, cores_known & on_cores
    yield length, launched
    yield length, launched & places.launch_bound
    yield queued.astype(np.float64), launched
    for times in (places.arithmetic_ns, places.memory_ns):
        known = np.isfinite(times)
        yield ones, known
        yield times, known
    least_known = np.isfinite(places.least_ns)
    yield length, least_known
    yield places.least_ns, least_known


def make_group(
    key: tuple[str, str], sums: KernelSums, longest: Call, whole_ns: float, steps: int
) -> KernelGroup:
    """Return the figures of one kernel; `whole_ns` is the time of all kernels."""
    name, category = key
    late = _ratio(sums.late, sums.launched)
    arithmetic = sums.arithmetic if sums.arithmetic_known else math.nan
    memory = sums.memory if sums.memory_known else math.nan
    bound = bound_by_work(arithmetic, memory)
    if late is not None and late > LAUNCH_BOUND:
        bound = LAUNCH
    return KernelGroup(
        name=name,
        category=category,
        calls=int(sums.calls),
        total_ns=sums.total,
        share=sums.total / whole_ns if whole_ns else 0.0,
        ns_per_step=sums.in_steps / steps if steps else None,
        mean_ns=sums.total / sums.calls,
        longest=longest,
        tensor_core_share=_ratio(sums.on_cores, sums.cores_known),
        eligible=category in MATRIX_WORK if sums.on_device else None,
        launch_bound_share=late,
        queued_ratio=_ratio(sums.queued, sums.launched),
        bound=bound,
        ceiling_share=_ratio(sums.least, sums.least_known),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
