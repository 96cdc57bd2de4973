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

from profkit.importers.logs.parsed import EpochMean, Flag, Mean, Record, Scope, Stated
from profkit.importers.logs.text import Line

MOST_RECORDS = 500_000
"""Over 100 MB of lines about training; what comes after is counted, not kept."""
_TOGETHER = ({"world_size", "cards_a_node", "nodes"}, {"batch_size", "global_batch_size"})
"""Facts that are about one thing: of two runs in a file, each has its own."""
MOST_STATED = 10_000
MOST_SHOWN = 5
"""Line numbers that a flag lists."""


@dataclass
class Found:
    """What was read so far, and the number of the line that is being read."""

    at: int = 0
    records: list[Record] = field(default_factory=list)
    epochs: list[EpochMean] = field(default_factory=list)
    stated: list[Stated] = field(default_factory=list)
    blocks: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Facts of the job, by the names of `Metadata`'s fields, with the line from which on they hold: a file may hold several runs."""
    versions: dict[str, str] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[int]] = field(default_factory=dict)
    evaluations: list[int] = field(default_factory=list)
    """Lines of evaluations and checkpoints, which some tools book on the next record."""
    headers: list[int] = field(default_factory=list)
    """Lines at which a new run may begin: a second set of parameters."""
    memory: dict[str, Any] = field(default_factory=dict)
    """What a grammar whose records take several lines keeps between them."""
    _block_is_over: bool = True

    def add(self, record: Record) -> None:
        self._block_is_over = True
        if len(self.records) < MOST_RECORDS:
            self.records.append(record)
        else:
            self.notice(f"only the first {MOST_RECORDS:,} records were read", record.line)

    def tell(self, **facts: Any) -> None:
        """Facts of the job. Among those between two records the first counts; another one behind records begins to hold there."""
        known = {name: value for name, value in facts.items() if value is not None}
        if self._block_is_over and any(self.fact(name) != value for name, value in known.items()):
            self.blocks.append((self.at, {}))
            self._block_is_over = False
        for name, value in known.items():
            if self.blocks:
                self.blocks[-1][1].setdefault(name, value)

    def fact(self, name: str) -> Any:
        """The fact as it was last told."""
        return next((block[name] for _, block in reversed(self.blocks) if name in block), None)

    def facts_of(self, first: int, end: float) -> dict[str, Any]:
        """The facts of the run whose records begin at line `first` and end before `end`: what was told last before it counts, then what it tells itself."""
        before = [block for line, block in self.blocks if line <= first]
        within = [block for line, block in self.blocks if first < line < end]
        facts: dict[str, Any] = {}
        for block in [*reversed(before), *within]:
            settled = {name for group in _TOGETHER if group & facts.keys() for name in group}
            facts.update(
                {
                    name: value
                    for name, value in block.items()
                    if name not in facts and name not in settled
                }
            )
        return facts

    def result(self, line: int, what: str, value: float, unit: str = "", how: str = "") -> None:
        """Take a result that the log states."""
        if len(self.stated) < MOST_STATED:
            self.stated.append(Stated(line, what, value, unit, how))

    def notice(self, what: str, line: int) -> None:
        """Count something that a reader must know of."""
        self.events[what] += 1
        places = self.places.setdefault(what, [])
        if len(places) < MOST_SHOWN:
            places.append(line)

    @property
    def flags(self) -> list[Flag]:
        return [
            Flag(f"{count:,} x {what}" if count > 1 else what, tuple(self.places[what]))
            for what, count in self.events.items()
        ]


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
