"""Figures of kernel windows that several rules share."""

from __future__ import annotations

from profkit.analysis.kernels.categories import COPY_CATEGORIES
from profkit.explain.evidence_kernels import Windows

MOVING = ("layout", "cast or copy", COPY_CATEGORIES["DtoD"])
"""Categories that compute nothing: they bring numbers into another order or format."""


def moving_ns(windows: Windows) -> float:
    """Return the time of casts and layout copies per captured step."""
    return sum(windows.by_category.get(name, 0.0) for name in MOVING)


def moving_calls(windows: Windows) -> float:
    """Return the number of casts and layout copies per captured step."""
    return sum(windows.calls_by_category.get(name, 0.0) for name in MOVING)
