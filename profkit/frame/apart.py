"""The steps that are excluded from the averages, with what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.columns import durations
from profkit.frame.parts import count_kinds, count_rank_steps, in_parts
from profkit.frame.selection import NO_STEPS, REASONS, THINNED, Selection


@dataclass(frozen=True)
class Apart:
    """Steps that are excluded from the averages for one reason.

    `excess_ns` is how much longer they took than as many of the others, per step of the run.
    """

    reason: str
    steps: int
    excess_ns: float


def find_apart(
    steps: pa.Table, selection: Selection, sums: pa.Table | None = None
) -> tuple[Apart, ...]:
    """Return the excluded steps by reason, with what they cost.

    `sums` are those of a run whose older steps were thinned.
    """
    index, wall_ns = steps["step"].to_numpy(), durations(steps)
    inside = np.isin(index, selection.steps)
    usual = float(wall_ns[inside].mean()) if inside.any() else 0.0
    if sums is not None and sums.num_rows:
        return tuple(_find_thinned(steps, selection, sums, usual))
    found = []
    for reason, numbers in selection.which.items():
        if reason == THINNED:
            continue
        rows = np.isin(index, numbers)
        excess_ns = float(wall_ns[rows].sum() - usual * rows.sum()) / len(index)
        found.append(Apart(reason, len(numbers), excess_ns))
    return tuple(found)


def _find_thinned(
    steps: pa.Table, selection: Selection, sums: pa.Table, usual: float
) -> Iterator[Apart]:
    """Yield the excluded steps of a long run: from its sums, or as many as in its sample."""
    index, wall_ns, in_full = steps["step"].to_numpy(), durations(steps), ~in_parts(sums, steps)
    counts, totals_ns = count_kinds(sums, "steps"), count_kinds(sums, "total_ns")
    in_all = count_rank_steps(steps, sums)
    ranks = max(1, len(pc.unique(steps["rank"])))
    rest = {reason for reason in REASONS if counts[reason]}
    for reason in (*selection.which, *sorted(rest - selection.which.keys())):
        rows = np.isin(index, selection.which.get(reason, NO_STEPS))
        if reason in REASONS:
            rows &= in_full
            count = int(rows.sum()) + counts[reason]
            excess_ns = float(wall_ns[rows].sum() + totals_ns[reason] - usual * count)
            yield Apart(reason, count // ranks, excess_ns / in_all)
        elif reason != THINNED:
            share = in_all / max(1, ranks * len(selection.steps))
            excess_ns = float(wall_ns[rows].sum() - usual * rows.sum()) * share
            yield Apart(reason, round(rows.sum() * share / ranks), excess_ns / in_all)
