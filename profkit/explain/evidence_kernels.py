"""The captured steps of one run in the figures that rules compare."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow.compute as pc

from profkit.analysis.kernels.categories import COPY_CATEGORIES
from profkit.analysis.kernels.idle import HOST
from profkit.analysis.kernels.view import KernelsView
from profkit.trace import Trace

PAGEABLE = "Pageable"
"""CUPTI puts this word into the name of a copy whose host memory is not pinned."""

FROM_TO, UNKNOWN_MEMORY = "->", "Unknown"
"""Parts of the name of a copy: it names its memories, and one of them is not known."""

MOVING = ("layout", "cast or copy", COPY_CATEGORIES["DtoD"])
"""Categories that compute nothing: they bring numbers into another order or format."""


@dataclass(frozen=True)
class Windows:
    """Calls and time by category, per captured step and rank; on a CPU they are operators'."""

    calls: float
    busy_ns: float
    by_category: Mapping[str, float]
    calls_by_category: Mapping[str, float]
    calls_by_phase: Mapping[str, float]
    pageable_share: float | None
    """Share of the time of copies to the device that is from unpinned memory, if there are any."""
    tensor_core_share: float | None
    """Share of the time of matrix work that ran on Tensor Cores, if the kernels' names show it."""
    launched_late_share: float | None
    """Share of the devices' time in which they were idle because the host launched late."""
    on_host: bool

    @property
    def moving_ns(self) -> float:
        """Time of casts and layout copies."""
        return sum(self.by_category.get(name, 0.0) for name in MOVING)

    @property
    def moving_calls(self) -> float:
        """Number of casts and layout copies."""
        return sum(self.calls_by_category.get(name, 0.0) for name in MOVING)

    @property
    def mean_ns(self) -> float:
        return self.busy_ns / self.calls if self.calls else math.nan


def names_memories(copy: str) -> bool:
    """Return true if the name of a copy says which memories it is between."""
    return FROM_TO in copy and UNKNOWN_MEMORY not in copy


def summarize_windows(trace: Trace, view: KernelsView) -> Windows:
    """Return the figures of a run's captured steps."""
    by_category: defaultdict[str, float] = defaultdict(float)
    calls_by_category: defaultdict[str, float] = defaultdict(float)
    copied_ns = pageable_ns = 0.0
    for group in view.groups:
        by_category[group.category] += group.total_ns / view.steps
        calls_by_category[group.category] += group.calls / view.steps
        if group.category == COPY_CATEGORIES["HtoD"] and names_memories(group.name):
            copied_ns += group.total_ns
            if PAGEABLE in group.name:
                pageable_ns += group.total_ns
    calls_by_phase: Counter[str] = Counter()
    for rank in trace.ranks:
        if rank.rank in view.ranks:
            phases = rank.select("kernels", ["phase"])[0]["phase"].drop_null()
            for row in pc.value_counts(phases).to_pylist():
                calls_by_phase[row["values"]] += row["counts"]
    return Windows(
        calls=view.calls / view.steps,
        busy_ns=view.total_ns / view.steps,
        by_category=dict(by_category),
        calls_by_category=dict(calls_by_category),
        calls_by_phase={name: calls / view.steps for name, calls in calls_by_phase.items()},
        pageable_share=pageable_ns / copied_ns if copied_ns else None,
        tensor_core_share=view.tensor_core_share,
        launched_late_share=view.launched_late_share,
        on_host=view.devices == (HOST,),
    )
