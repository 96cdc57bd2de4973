"""Kernels grouped by name: cost per step, use of Tensor Cores, and what limits them.

Shares are of the kernels' own durations added up, so they add up to one; kernels that run at the
same time count each for itself. Operators that stand in for kernels on a CPU have neither Tensor
Cores nor launches, so those figures are null for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.kernels.groups import Call, KernelGroup, KernelSums, make_group, sum_by_kernel
from profkit.analysis.kernels.idle import HOST, LATE, gaps_in_steps, idle_reasons
from profkit.analysis.kernels.roofline import place_kernels
from profkit.analysis.kernels.windows import exclusive_times
from profkit.frame.columns import equals
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
"""The columns of the `kernels` table that are needed to group it."""

MOST_BYTES = 100_000_000
"""If a run's kernels are larger on disk, only one rank is read by default, to keep waits short."""


@dataclass(frozen=True)
class KernelsView:
    """The kernels of a run's captured steps, those with most time first."""

    groups: tuple[KernelGroup, ...]
    devices: tuple[str, ...]
    ranks: tuple[int, ...]
    ranks_in_all: int
    calls: int
    steps: int
    """The captured steps, counted on each rank."""
    total_ns: float
    category_share: Mapping[str, float]
    """Shares of all kernels' time, the largest first."""
    tensor_core_share: float | None
    """The share of the time of work that Tensor Cores can do, if the names tell."""
    launched_late_share: float | None
    """The share of the devices' time in which they were idle because the host launched late.

    It is null without launches.
    """
    ceilings: bool
    """True if the machine's ceilings are known."""
    problems: tuple[str, ...] = ()
    """Damage in the ranks' tables; rows before the damage are counted."""
    device_shares: Mapping[str, float] | None = None
    """What devices did, as shares of the time; null if not asked for, or if no device worked."""

    @property
    def noun(self) -> str:
        """The name of a row: operators stand in for kernels on a CPU."""
        if self.devices == (HOST,):
            return "operator"
        return "kernel"


def kernels_of(
    trace: Trace, ceilings: Ceilings | None = None, rank: int | None = None
) -> KernelsView:
    """Return the kernels of a run, or of one rank; one rank stands for a very large run."""
    problems: list[str] = []

    def read_tables() -> Iterator[pa.Table]:
        for each in chosen_ranks(trace, rank):
            table, problem = each.select("kernels", COLUMNS)
            if problem:
                problems.append(f"rank {each.rank}, kernels: {problem}")
            yield table

    view = build_kernels_view(
        read_tables(),
        ceilings,
        trace.manifest.config,
        ranks_in_all=len(trace.ranks),
        samples=host_waits(trace),
    )
    return dataclasses.replace(view, problems=tuple(problems))


def host_waits(trace: Trace) -> pa.Table | None:
    """Return the samples that hold the host's waits for its device; only importers see these."""
    if "imported_from" in trace.manifest.config:
        return trace.samples
    return None


def chosen_ranks(trace: Trace, rank: int | None) -> tuple[RankTrace, ...]:
    """Return the ranks whose kernels are read; `rank` asks for one of them."""
    if rank is not None:
        return tuple(each for each in trace.ranks if each.rank == rank)
    size = 0
    for each in trace.ranks:
        path = each.path("kernels")
        if path.exists():
            size += path.stat().st_size
    if size <= MOST_BYTES:
        return trace.ranks
    return trace.ranks[:1]


def matrix_precision(config: Mapping[str, Any]) -> str:
    """Return the number format of a run's Tensor Cores, which decides their ceiling."""
    configured = str(config.get("precision", ""))
    if configured in {"fp16", "bf16"}:
        return configured
    return "tf32"


def build_kernels_view(
    tables: Iterable[pa.Table],
    ceilings: Ceilings | None,
    config: Mapping[str, Any],
    *,
    ranks_in_all: int = 1,
    samples: pa.Table | None = None,
) -> KernelsView:
    """Group the kernels of each rank's table, which needs `COLUMNS` only.

    `samples` hold the host's waits for its device, if they were recorded.
    """
    sums: dict[tuple[str, str], KernelSums] = {}
    longest: dict[tuple[str, str], Call] = {}
    devices: set[str] = set()
    ranks: list[int] = []
    steps = calls = late_ns = window_ns = 0
    for table in tables:
        if not table.num_rows:
            continue
        precision = matrix_precision(config)
        places = place_kernels(table, ceilings or Ceilings(), matrix_precision=precision)
        for key, found, call in sum_by_kernel(table, places):
            sums[key] = sums[key].plus(found) if key in sums else found
            if key not in longest or call.duration_ns > longest[key].duration_ns:
                longest[key] = call
        times = _late_and_window(table, samples)
        late_ns, window_ns = late_ns + times[0], window_ns + times[1]
        devices.update(map(str, pc.unique(table["device"]).to_pylist()))
        ranks.append(table["rank"][0].as_py())
        calls += table.num_rows
        steps += len(pc.unique(table["step"].drop_null()))
    whole_ns = sum((each.total for each in sums.values()), 0.0)
    groups = [make_group(key, sums[key], longest[key], whole_ns, steps) for key in sums]
    groups.sort(key=lambda group: -group.total_ns)
    return KernelsView(
        groups=tuple(groups),
        devices=tuple(sorted(devices)),
        ranks=tuple(ranks),
        ranks_in_all=max(ranks_in_all, len(ranks)),
        calls=calls,
        steps=steps,
        total_ns=whole_ns,
        category_share=_category_shares(groups),
        tensor_core_share=_tensor_core_share(groups),
        launched_late_share=late_ns / window_ns if window_ns else None,
        ceilings=ceilings is not None,
    )


def _late_and_window(kernels: pa.Table, samples: pa.Table | None) -> tuple[int, int]:
    """Return the time in which devices waited for launches, and all time with known launches."""
    known = kernels.filter(pa.array(~equals(kernels["device"], HOST)))
    if not known.num_rows or known["launch_ns"].null_count == known.num_rows:
        return 0, 0
    gaps = gaps_in_steps(known)
    late = gaps.length[idle_reasons(known, gaps, samples) == LATE]
    inside = known.filter(known["step"].is_valid())
    return int(late.sum()), int(gaps.length.sum() + exclusive_times(inside).sum())


def _category_shares(groups: Iterable[KernelGroup]) -> dict[str, float]:
    """Return the share of each category, the largest first."""
    shares: dict[str, float] = {}
    for group in groups:
        shares[group.category] = shares.get(group.category, 0.0) + group.share
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _tensor_core_share(groups: Iterable[KernelGroup]) -> float | None:
    """Return the share of matrix work on Tensor Cores, weighted by time, if it is known."""
    total = known_ns = 0.0
    for group in groups:
        if group.eligible and group.tensor_core_share is not None:
            total += group.tensor_core_share * group.total_ns
            known_ns += group.total_ns
    if known_ns:
        return total / known_ns
    return None
