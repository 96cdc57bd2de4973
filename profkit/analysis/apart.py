"""The steps that are excluded from the averages, with what they cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profkit.analysis.columns import durations
from profkit.analysis.selection import Selection


@dataclass(frozen=True)
class Apart:
    """Steps that are excluded from the averages for one reason.

    `excess_ns` is how much longer they took than as many of the others, per step of the run.
    """

    reason: str
    steps: int
    excess_ns: float


def find_apart(steps: pa.Table, selection: Selection) -> tuple[Apart, ...]:
    """Return the excluded steps by reason, with what they cost."""
    index, wall_ns = steps["step"].to_numpy(), durations(steps)
    inside = np.isin(index, selection.steps)
    usual = float(wall_ns[inside].mean()) if inside.any() else 0.0
    found = []
    for reason, numbers in selection.which.items():
        rows = np.isin(index, numbers)
        excess_ns = float(wall_ns[rows].sum() - usual * rows.sum()) / len(index)
        found.append(Apart(reason, len(numbers), excess_ns))
    return tuple(found)
