"""The parts of a long run whose steps are only in `sums`, and which steps are in them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.columns import rows_of_rank
from profkit.frame.device_clock import Bools


def in_parts(sums: pa.Table, steps: pa.Table) -> Bools:
    """Return which steps are in a part of their rank, and so in its sums."""
    rank, numbers = steps["rank"].to_numpy(), steps["step"].to_numpy()
    inside = np.zeros(len(numbers), dtype=bool)
    for each in pc.unique(sums["rank"]).to_pylist():
        own = rows_of_rank(sums, each)
        first, place = np.unique(own["first_step"].to_numpy(), return_index=True)
        last = own["last_step"].to_numpy()[place]
        part = np.searchsorted(first, numbers, side="right") - 1
        inside |= (rank == each) & (part >= 0) & (numbers <= last[np.maximum(part, 0)])
    return inside


def count_rank_steps(steps: pa.Table, sums: pa.Table) -> int:
    """Return the number of steps of all ranks, with those that are only in sums."""
    count = int(steps.num_rows)
    if not sums.num_rows:
        return count
    return count - int(in_parts(sums, steps).sum()) + sum(count_kinds(sums, "steps").values())


def count_kinds(sums: pa.Table, column: str) -> Counter[str]:
    """Return the total of a column over whole steps of all ranks, by kind of step."""
    whole = sums.filter(sums["phase"].is_null())
    totals: Counter[str] = Counter()
    for kind, value in zip(whole["kind"].to_pylist(), whole[column].to_pylist(), strict=True):
        totals[kind] += value or 0
    return totals


def sampled_one_in(sums: pa.Table) -> int:
    """Return how many steps of a long run each one in its sample stands for; 1 of other runs."""
    return 2 ** int(pc.max(sums["level"]).as_py() or 0) if sums.num_rows else 1
