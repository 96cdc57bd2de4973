"""What the rules share that look at kernel windows."""

from __future__ import annotations

from profkit.analysis.kernels.categories import COPY_CATEGORIES
from profkit.explain.evidence import Windows

MOVING = ("layout", "cast or copy", COPY_CATEGORIES["DtoD"])
"""Work that computes nothing: it brings numbers into another order or format."""


def moving_ns(windows: Windows) -> float:
    return sum(windows.by_category.get(name, 0.0) for name in MOVING)


def moving_calls(windows: Windows) -> float:
    return sum(windows.calls_by_category.get(name, 0.0) for name in MOVING)
