"""The contract between the grammar of one log format and the code that reads logs.

To add a format, copy a module of `profkit/importers/logs/formats` and change its parts.
All of them have the same parts in the same order:

1. The docstring names the tool, shows a record line and says what its figures mean: whether they
   are of one card or of all, of one step or a mean, and what they leave out.
2. `_RECORD` matches a record line, that is a line about one or several training steps. Patterns of
   other lines and constants follow.
3. `read(line, found)` reads one line. It is called for each line of the log, in order. It handles
   record lines first and then the others. Helpers follow.
4. `GRAMMAR` says how the figures are to be understood: see the fields of `Grammar`.

`read` passes what it finds to `Found`:

- `add_record` takes a record line: step, epoch, times, throughput, loss, learning rate;
- `add_facts` takes what the log says about the job: batch size, cards, precision, last step;
- `add_result` takes a result that the tool itself states, such as its mean throughput;
- `warn` takes something that a reader of the figures must know;
- `evaluation_lines` collects lines of evaluations and checkpoints;
- `header_lines` collects lines at which a new run may begin;
- `memory` holds what must be remembered until a later line.

A grammar only reads. Undoing cumulative means, splitting runs and checking figures is done for all
formats in `steps.py`, `assemble.py` and `integrity`. Two rules keep hostile logs harmless: each
quantifier in a pattern is bounded, so that the time stays linear, and figures are read with
`as_count`, `as_number` and `number_after`, which return null for a figure that is damaged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from profkit.importers.logs.parsed import (
    MAX_LINES_SHOWN,
    EpochMean,
    Flag,
    Mean,
    Record,
    Scope,
    Stated,
)
from profkit.importers.logs.text import Line

MAX_RECORDS = 500_000
"""Over 100 MB of record lines have this many; later ones are counted and not kept."""
MAX_RESULTS = 10_000
_RELATED_FACTS = (
    {"world_size", "cards_per_node", "nodes"},
    {"batch_size", "global_batch_size", "accumulation"},
    {"precision", "autocast", "data_type", "amp_level"},
)
"""A run that states one fact of a group takes none of the group from another run."""


class FactBlock(NamedTuple):
    """Facts of the job that hold from a line on."""

    line: int
    facts: dict[str, Any]


@dataclass
class Found:
    """Everything that was read from a log so far."""

    line_number: int = 0
    """The number of the line that is being read."""
    records: list[Record] = field(default_factory=list)
    epochs: list[EpochMean] = field(default_factory=list)
    stated: list[Stated] = field(default_factory=list)
    fact_blocks: list[FactBlock] = field(default_factory=list)
    """Several blocks if the file holds several runs."""
    fact_lines: dict[tuple[str, Any], int] = field(default_factory=dict)
    """The first line of each value of a fact."""
    versions: dict[str, str] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    warning_lines: dict[str, list[int]] = field(default_factory=dict)
    evaluation_lines: list[int] = field(default_factory=list)
    """Lines of evaluations and checkpoints, whose time some tools add to the next record."""
    header_lines: list[int] = field(default_factory=list)
    """Lines at which a new run may begin, because parameters are printed there."""
    memory: dict[str, Any] = field(default_factory=dict)
    """What a grammar must remember from one line to a later one."""
    _block_is_over: bool = True

    def add_record(
        self, line: Line, step: int | None, epoch: int | None = None, **figures: Any
    ) -> None:
        """Take a record line's figures, named as in `Record`; ignore it if its step is null."""
        if step is None:
            return
        self._block_is_over = True
        if len(self.records) < MAX_RECORDS:
            self.records.append(Record(line.number, step, epoch, **figures))
        else:
            self.warn(f"only the first {MAX_RECORDS:,} records were read", line.number)

    def add_facts(self, **facts: Any) -> None:
        """Take facts of the job, named as the fields of `Metadata`; null means unknown.

        Between two records, the first value of each fact counts. A value that differs and follows
        a record starts a new block, because a new run may begin there.
        """
        known = {name: value for name, value in facts.items() if value is not None}
        for fact in known.items():
            self.fact_lines.setdefault(fact, self.line_number)
        if self._block_is_over and any(self.fact(name) != known[name] for name in known):
            self.fact_blocks.append(FactBlock(self.line_number, {}))
            self._block_is_over = False
        if self.fact_blocks:
            latest = self.fact_blocks[-1].facts
            for name, value in known.items():
                latest.setdefault(name, value)

    def fact(self, name: str) -> Any:
        """Return the latest value of a fact, or null."""
        for block in reversed(self.fact_blocks):
            if name in block.facts:
                return block.facts[name]
        return None

    def facts_between(self, first: int, end: float) -> dict[str, Any]:
        """Return the facts of the run whose records lie between two lines.

        The latest facts before its first record take precedence over what follows that record.
        """
        before: list[dict[str, Any]] = []
        within: list[dict[str, Any]] = []
        for block in self.fact_blocks:
            if block.line <= first:
                before.append(block.facts)
            elif block.line < end:
                within.append(block.facts)
        facts: dict[str, Any] = {}
        for more in [*reversed(before), *within]:
            settled = set(facts)
            for group in _RELATED_FACTS:
                if group & facts.keys():
                    settled |= group
            for name, value in more.items():
                if name not in settled:
                    facts[name] = value
        return facts

    def lines_between(self, first: int, end: float) -> dict[str, int]:
        """Return the line of each fact of the run whose records lie between two lines."""
        facts = self.facts_between(first, end)
        return {fact[0]: self.fact_lines[fact] for fact in facts.items()}

    def add_result(self, line: int, what: str, value: float, unit: str = "", how: str = "") -> None:
        """Take a result that the log states, and how the tool computed it."""
        if len(self.stated) < MAX_RESULTS:
            self.stated.append(Stated(line, what, value, unit, how))

    def warn(self, what: str, line: int) -> None:
        """Count something that a reader of the figures must know."""
        self.warnings[what] += 1
        lines = self.warning_lines.setdefault(what, [])
        if len(lines) < MAX_LINES_SHOWN:
            lines.append(line)

    @property
    def flags(self) -> list[Flag]:
        flags = []
        for what, count in self.warnings.items():
            text = f"{count:,} x {what}" if count > 1 else what
            flags.append(Flag(text, tuple(self.warning_lines[what])))
        return flags


def steps_since_start(step: int) -> int:
    """Return the number of steps in a cumulative mean if steps count from 0."""
    return step + 1


@dataclass(frozen=True)
class Grammar:
    """The way in which one tool prints its training."""

    name: str
    title: str
    framework: str
    marker: str
    """Text that each record line contains: a quick test before the pattern is tried."""
    pattern: re.Pattern[str]
    """The pattern of a record line."""
    read: Callable[[Line, Found], None]
    scope: Scope
    """Whether the log counts the samples of one card or of all cards."""
    unit: str
    times: Mean
    """What a printed step time is the mean of."""
    data_times: Mean | None = None
    """What a printed wait for data is the mean of, if not of the same steps as the step time."""
    restarts_each_epoch: bool = True
    """Whether the step counter starts again in each epoch."""
    counts_steps: bool = True
    """False if the step counter stands still for skipped updates: then record lines are counted."""
    states_windows: bool = False
    """Whether each record says how many steps it is about."""
    first_step: int = 0
    """The number of an epoch's first step."""
    steps_in_mean: Callable[[int], int] = steps_since_start
    """Returns how many steps a cumulative mean contains that is printed at a step."""
    timed_by_clock: bool = False
    """Whether step times come from the timestamps, even if a throughput is printed."""
    batch_in_name: bool = True
    """Whether a batch size in the file's name is that of a step.

    It is not if a step accumulates several batches, or if samples are words.
    """
    warm_up_records: int = 0
    """The number of leading records that the tool's users exclude, because start-up is in them."""
    warm_up_steps: int = 0
    """Leading records of steps below this number are excluded as well."""
    evaluates_apart: bool = False
    """Whether no figure includes an evaluation: then a long window after one is long otherwise."""
    rounding_s: float = 0.0
    """The largest rounding error of a printed mean: half of its last digit."""
    knows: Callable[[str], object] | None = None
    """Returns nothing for a line that the pattern finds and that is no record line."""
    settle: Callable[[Found, Grammar], Grammar] | None = None
    """Returns the grammar as the lines show it. Such a grammar is for logs that no other knows."""

    def matches(self, text: str) -> bool:
        found = self.marker in text and self.pattern.search(text) is not None
        return found and (self.knows is None or bool(self.knows(text)))
