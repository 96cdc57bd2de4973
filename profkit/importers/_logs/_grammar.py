"""What a grammar is, and what reading a log with one gathers.

To add one, add a module here whose `GRAMMAR` is a `Grammar`: a mark that its record lines have, the
pattern that makes sure, and a function that reads one line into `Found`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from profkit.importers._logs._parsed import EpochMean, Flag, Mean, Record, Scope, Stated
from profkit.importers._logs._text import Line

MOST_RECORDS = 2_000_000
MOST_SHOWN = 5
"""Line numbers that a flag lists."""


@dataclass
class Found:
    """What was read so far. `facts` are the grammar's own, by the names of `Metadata`'s fields."""

    records: list[Record] = field(default_factory=list)
    epochs: list[EpochMean] = field(default_factory=list)
    stated: list[Stated] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[int]] = field(default_factory=dict)
    evaluations: list[int] = field(default_factory=list)
    """Lines of evaluations and checkpoints, which some tools book on the next record."""
    headers: list[int] = field(default_factory=list)
    """Lines at which a new run may begin: a second set of parameters."""
    memory: dict[str, Any] = field(default_factory=dict)
    """What a grammar whose records take several lines keeps between them."""

    def add(self, record: Record) -> None:
        if len(self.records) < MOST_RECORDS:
            self.records.append(record)
        else:
            self.notice(f"only the first {MOST_RECORDS:,} records were read", record.line)

    def result(self, line: int, what: str, value: float, unit: str = "", how: str = "") -> None:
        """Take a result that the log states; the last of each kind counts."""
        self.stated[:] = [each for each in self.stated if each.what != what]
        self.stated.append(Stated(line, what, value, unit, how))

    def notice(self, what: str, line: int) -> None:
        """Count something that a reader must know of."""
        self.events[what] += 1
        places = self.places.setdefault(what, [])
        if len(places) < MOST_SHOWN:
            places.append(line)

    def tell(self, **facts: Any) -> None:
        """Facts of the job; the first that says something counts."""
        for name, value in facts.items():
            if value is not None and self.facts.get(name) is None:
                self.facts[name] = value

    @property
    def flags(self) -> list[Flag]:
        return [Flag(f"{count:,} x {what}" if count > 1 else what, tuple(self.places[what])) for what, count in self.events.items()]


def since_start(step: int) -> int:
    """How many steps a cumulative mean holds, where steps count from 0."""
    return step + 1


@dataclass(frozen=True)
class Grammar:
    """One tool's way to print its training."""

    name: str
    title: str
    framework: str
    marker: str
    """Text that every record line has: the quick test."""
    pattern: re.Pattern[str]
    """What a record line looks like."""
    read: Callable[[Line, Found], None]
    scope: Scope
    unit: str
    times: Mean
    data_times: Mean | None = None
    """Where the wait for data is a mean of something else than the step time."""
    restarts: bool = True
    """Whether the step counter begins anew in each epoch."""
    counts: bool = True
    """Whether the step counter counts steps; where it stands still for skipped updates, records are counted instead."""
    first: int = 0
    """The number of an epoch's first step."""
    held: Callable[[int], int] = since_start
    """How many steps a cumulative mean printed at this step holds."""
    timed: bool = False
    """Whether a step's time is the one between timestamps, whatever throughput is printed."""
    batch_in_name: bool = True
    """Whether a batch size in a file's name is what a step trains on; not where steps accumulate, or samples are words."""
    warm_up_records: int = 0
    """Leading records in which start-up lies, as users of the tool leave out."""
    warm_up_steps: int = 0
    """Leading records of steps below this one are left out too."""
    rounding_s: float = 0.0
    """By how much a printed mean may be wrong: half of its last digit."""

    def matches(self, text: str) -> bool:
        return self.marker in text and self.pattern.search(text) is not None
