"""Names and formats of metrics, by the unit at the end of a metric's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from profkit.text import byte_size, duration, percent, significant

Show = Callable[[float], str]


def _with(unit: str) -> Show:
    return lambda value: f"{significant(value)} {unit}"


UNITS: Final[Mapping[str, Show]] = {
    "_bytes_per_s": lambda value: f"{byte_size(value)}/s",
    "_bytes": byte_size,
    "_percent": _with("%"),
    "_ratio": percent,
    "_watts": _with("W"),
    "_mhz": _with("MHz"),
    "_celsius": _with("C"),
    "_joules": _with("J"),
    "_cores": _with("cores"),
    "_seconds": lambda value: duration(value * 1e9),
    "_ns": duration,
    "_count": significant,
    "_batches": significant,
    "_per_s": _with("/s"),
}
"""The format of each ending of a name; the first ending that matches is used."""


def describe(metric: str) -> tuple[str, Show]:
    """Return a metric's name in words, without its unit, and the format of its values."""
    for ending, show in UNITS.items():
        if metric.endswith(ending):
            return metric.removesuffix(ending).replace("_", " "), show
    return metric.replace("_", " "), significant
