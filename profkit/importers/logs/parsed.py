"""The content of a training log, in one form for all grammars."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

MAD_TO_DEVIATION = 1.4826
"""The standard deviation of normal noise is this many median absolute deviations."""

VARYING = frozenset({"words", "tokens"})
"""Units of which steps have different numbers."""
MAX_LINES_SHOWN = 5
"""A flag lists this many line numbers."""


class Scope(str, Enum):
    """The cards whose samples a log counts."""

    CARD = "one card"
    ALL = "all cards"


class Mean(str, Enum):
    """The steps that a printed time is the mean of."""

    STEP = "one step"
    WINDOW = "the steps since the line before"
    EPOCH = "the steps since the epoch began"
    RUN = "the steps since the run began"
    UNSAID = "not said"
    """A line counts as one step then."""

    @property
    def is_single(self) -> bool:
        """Whether a line counts as one step."""
        return self in {Mean.STEP, Mean.UNSAID}


@dataclass(frozen=True, slots=True)
class Record:
    """One line about training; null is what the line does not say.

    A grammar fills it as the line has it: `step` counts as the log does, and times are means as the
    grammar's `times` says. `steps.py` then undoes cumulative means, so that each step is in one
    record: `step_s` and `data_s` are then means over the `steps` steps that end with `step`.
    """

    line: int
    step: int
    epoch: int | None = None
    time_s: float | None = None
    step_s: float | None = None
    data_s: float | None = None
    throughput: float | None = None
    loss: float | None = None
    lr: float | None = None
    samples: float | None = None
    """Samples per step, of one card or of all as the log counts."""
    steps: int = 1
    index: int = 0
    """The last step's place in the run, counted from 0 over all epochs."""
    starts_epoch: bool = False
    """Whether the record is about an epoch's first step alone, in which workers start."""
    skipped: int | None = None
    """The number of updates that the gradient scaler had skipped so far."""
    compute_throughput: float | None = None
    """Samples per second without the wait for data, which follows from it and the throughput."""
    other_s: float | None = None
    """Time per step of an evaluation or a checkpoint, which is in `step_s` and not in `data_s`."""
    partial: bool = False
    """Whether the batch was partial: its samples, or its time, are no ordinary step's."""


@dataclass(frozen=True)
class EpochMean:
    """Means over all steps of an epoch, from a log whose records are one step in many."""

    line: int
    epoch: int
    step_s: float | None
    data_s: float | None
    throughput: float | None


@dataclass(frozen=True)
class Stated:
    """A result that the log states; `how` says how the tool computed it."""

    line: int
    what: str
    value: float
    unit: str = ""
    how: str = ""
    is_timer: bool = False


@dataclass(frozen=True)
class Flag:
    """Something a reader must know before relying on the figures, and the lines that show it."""

    text: str
    lines: tuple[int, ...] = ()

    def __str__(self) -> str:
        if not self.lines:
            return self.text
        word = "line" if len(self.lines) == 1 else "lines"
        return f"{self.text} ({word} {', '.join(map(str, self.lines))})"


def flag_lines(what: str, lines: Sequence[int]) -> list[Flag]:
    """Return one flag that counts these lines and lists the first few; none if there are none."""
    if not lines:
        return []
    return [Flag(f"{len(lines):,} x {what}", tuple(lines[:MAX_LINES_SHOWN]))]


@dataclass(frozen=True)
class Metadata:
    """The job, as the log describes it; `from_name` lists the fields that only the name tells."""

    batch_size: int | None = None
    """Samples per card and step."""
    global_batch_size: int | None = None
    world_size: int | None = None
    cards_of_one_node: int | None = None
    """The number of cards, if the log only states those of the node that prints."""
    accumulation: int | None = None
    """Micro batches per update, if the log states them."""
    precision: str | None = None
    command_batch: int | None = None
    """The batch size in the command that the log shows; of a card or of all, by the tool."""
    command_precision: str | None = None
    """The precision that this command asks for."""
    model: str | None = None
    framework: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    last_step: int | None = None
    """The step at which the run ends, according to the log."""
    knobs: Mapping[str, str] = field(default_factory=dict)
    """The settings that the log states, under profkit's names."""
    from_name: tuple[str, ...] = ()
    data_ranks: int | None = None
    """The number of cards with different samples, if others share theirs."""

    @property
    def is_lower_bound(self) -> bool:
        """True if further ranks may share the samples of those that the log states."""
        return self.data_ranks is not None and self.world_size is None

    @property
    def sample_ranks(self) -> int:
        """The number of cards among which the samples of a step are divided."""
        return self.data_ranks or self.world_size or 1


@dataclass(frozen=True)
class ParsedLog:
    """One run of a log file."""

    grammar: str
    title: str
    scope: Scope
    unit: str
    times: Mean
    """What the printed times are means of."""
    records: tuple[Record, ...]
    metadata: Metadata
    epochs: tuple[EpochMean, ...] = ()
    stated: tuple[Stated, ...] = ()
    flags: tuple[Flag, ...] = ()
    warm_up: int = 0
    """The number of leading records that the tool's users exclude, because start-up is in them."""
    aborted: str = ""
    """The reason why the run ended early, if the log states one."""
    fact_lines: Mapping[str, int] = field(default_factory=dict)
    """The line that states each fact of the job, by the names of `Found.add_facts`."""

    @property
    def steady(self) -> tuple[Record, ...]:
        """The records that figures are computed from."""
        records = []
        for each in self.records[self.warm_up :]:
            if not each.starts_epoch and not each.partial:
                records.append(each)
        return tuple(records) or self.records

    @property
    def mean_step_s(self) -> float | None:
        """The mean step time, from means of whole epochs if the log has them."""
        total: float = 0
        count = 0
        for epoch in self.epochs:
            if epoch.step_s is not None:
                total += epoch.step_s
                count += 1
        if not count:
            for record in self.steady:
                if record.step_s is not None:
                    total += record.step_s * record.steps
                    count += record.steps
        if count:
            return total / count
        return None

    @property
    def mean_throughput(self) -> float | None:
        """Samples per second, of one card or of all as the log counts."""
        sizes = []
        samples = seconds = 0.0
        for record in self.steady:
            if record.samples is not None:
                sizes.append(record.samples)
                if record.step_s is not None:
                    samples += record.steps * record.samples
                    seconds += record.steps * record.step_s
        if self.epochs and self.mean_step_s:
            if sizes:
                return statistics.median(sizes) / self.mean_step_s
            return None
        if seconds > 0:
            return samples / seconds
        return None
