"""The evidence that the checks compare a run with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profkit.importers.logs.facts import NameHints
from profkit.importers.logs.parsed import Flag, Metadata, ParsedLog, Record, flag_lines

TOLERANCE = 0.05
"""Figures that should be equal may differ by this share."""
COARSE_S = 3.0
"""Timestamps in whole seconds say nothing about shorter times."""
MIN_VALUES = 5
"""A median of fewer values says nothing."""


@dataclass(frozen=True)
class Evidence:
    """The content of a file in addition to a run's records."""

    hints: NameHints
    facts: Metadata
    """What the log itself says; `ParsedLog.metadata` may have a field from the file's name."""
    evaluation_lines: Sequence[int]
    header: tuple[int, float] | None
    """The line and the time of the file's first timestamp."""
    timed_by_clock: bool = False
    """Whether step times come from timestamps: a printed throughput is then about other steps."""


Check = Callable[[ParsedLog, Evidence], list[Flag]]


def flag_records(what: str, records: Sequence[Record]) -> list[Flag]:
    """Return one flag that counts these records and lists the first few, if there are any."""
    return flag_lines(what, [each.line for each in records])
