"""How readings are shown: a metric's name ends in its unit, which says in what words its values are told."""

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
"""By how a name ends; the first that fits counts."""


def describe(metric: str) -> tuple[str, Show]:
    """A metric's name in words, without its unit, and how its values are shown."""
    for ending, show in UNITS.items():
        if metric.endswith(ending):
            return metric.removesuffix(ending).replace("_", " "), show
    return metric.replace("_", " "), significant
