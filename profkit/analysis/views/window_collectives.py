"""Collectives that kernel windows show as kernels or operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.kernels.categories import COMMUNICATION
from profkit.trace import Trace
from profkit.trace.reader import RankTrace


@dataclass(frozen=True)
class WindowCollective:
    """A collective in the kernel windows; times are means over the ranks that ran it.

    On the rank where it is shortest it has waited least for the others.
    """

    name: str
    ranks: int
    calls: int
    mean_ns: float
    shortest_rank: int
    shortest_rank_ns: float
    longest_rank: int
    longest_rank_ns: float
    ns_per_step: float | None

    @classmethod
    def sum_up(cls, name: str, rows: pa.Table, steps: int) -> WindowCollective:
        """Sum up the ranks' rows of one collective."""
        calls = np.asarray(rows["calls"].to_numpy(), dtype=np.float64)
        total = np.asarray(rows["total"].to_numpy(), dtype=np.float64)
        in_steps = np.asarray(rows["in_steps"].to_numpy(), dtype=np.float64)
        ranks, means = rows["rank"].to_numpy(), total / calls
        return cls(
            name=name,
            ranks=len(ranks),
            calls=int(calls.sum()),
            mean_ns=float(total.sum() / calls.sum()),
            shortest_rank=int(ranks[means.argmin()]),
            shortest_rank_ns=float(means.min()),
            longest_rank=int(ranks[means.argmax()]),
            longest_rank_ns=float(means.max()),
            ns_per_step=float(in_steps.sum()) / steps if steps else None,
        )


def window_collectives(trace: Trace) -> tuple[WindowCollective, ...]:
    """Return the collectives of the kernel windows by name, those with most time first."""
    tables, steps = [], 0
    for rank in trace.ranks:
        table, captured = _communication(rank)
        tables.append(table)
        steps += captured
    if not tables:
        return ()
    whole = pa.concat_tables(tables)
    found = []
    for name in sorted(set(whole["name"].to_pylist())):
        rows = whole.filter(pc.equal(whole["name"], name))
        found.append(WindowCollective.sum_up(name, rows, steps))
    return tuple(sorted(found, key=lambda each: -each.mean_ns * each.calls))


def _communication(rank: RankTrace) -> tuple[pa.Table, int]:
    """Return a rank's communication kernels by name, and the number of captured steps.

    Of each name there are the calls, their time, and their time in captured steps.
    """
    kernels, _ = rank.select("kernels", ("category", "name", "step", "start_ns", "end_ns"))
    steps = len(pc.unique(kernels["step"].drop_null()))
    rows = kernels.filter(pc.equal(kernels["category"], COMMUNICATION))
    length = pc.subtract(rows["end_ns"], rows["start_ns"])
    inside = pc.if_else(rows["step"].is_valid(), length, pa.scalar(0, pa.int64()))
    table = pa.table({"name": rows["name"].cast(pa.string()), "length": length, "inside": inside})
    sums = table.group_by("name").aggregate(
        [("length", "count"), ("length", "sum"), ("inside", "sum")]
    )
    sums = sums.select(["name", "length_count", "length_sum", "inside_sum"])
    sums = sums.rename_columns(["name", "calls", "total", "in_steps"])
    return sums.append_column("rank", pa.array([rank.rank] * sums.num_rows, pa.int64())), steps
