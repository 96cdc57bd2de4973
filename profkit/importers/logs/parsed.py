"""What a training log says, in one shape for all grammars."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Scope(str, Enum):
    """Whose samples a log counts."""

    CARD = "one card"
    ALL = "all cards"


class Mean(str, Enum):
    """What a printed time is the mean of."""

    STEP = "one step"
    WINDOW = "the steps since the line before"
    EPOCH = "the steps since the epoch began"
    RUN = "the steps since the run began"


@dataclass(frozen=True, slots=True)
class Record:
    """One line about training. `step_s` and `data_s` are means over the `steps` steps that end with `step`.

    Cumulative means have been undone, so that each step is in one record. `step` counts as the log
    does; `throughput` is what it printed. Null is what the line does not say.
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
    """Samples a step, of one card or of all as the log counts."""
    steps: int = 1
    index: int = 0
    """The last step's place in the run, counted from 0 over all epochs."""
    starts_epoch: bool = False
    """Whether it is about an epoch's first step alone, in which workers start."""
    skipped: int | None = None
    """Updates that the gradient scaler had skipped by then."""


@dataclass(frozen=True)
class EpochMean:
    """What a log says of a whole epoch: means over each of its steps, where records are one step in many."""

    line: int
    epoch: int
    step_s: float | None
    data_s: float | None
    throughput: float | None


@dataclass(frozen=True)
class Stated:
    """A result that the log states: what, its value and unit, and how the tool that printed it got it."""

    line: int
    what: str
    value: float
    unit: str = ""
    how: str = ""


@dataclass(frozen=True)
class Flag:
    """Something a reader must know before believing the figures, and the lines that show it."""

    text: str
    lines: tuple[int, ...] = ()

    def __str__(self) -> str:
        if not self.lines:
            return self.text
        word = "line" if len(self.lines) == 1 else "lines"
        return f"{self.text} ({word} {', '.join(map(str, self.lines))})"


@dataclass(frozen=True)
class Metadata:
    """What the job was, as far as the log, or else the file's name, says. `from_name` are the fields that only the name told."""

    batch_size: int | None = None
    """Samples a card trains on in a step."""
    global_batch_size: int | None = None
    world_size: int | None = None
    precision: str | None = None
    model: str | None = None
    framework: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    last_step: int | None = None
    """Where the log says that the run ends."""
    from_name: tuple[str, ...] = ()


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
    """Leading records that the log's own users leave out: start-up lies in them."""
    aborted: str = ""
    """Why the run ended early, where the log says so."""

    @property
    def steady(self) -> tuple[Record, ...]:
        """The records that figures are about."""
        return (
            tuple(each for each in self.records[self.warm_up :] if not each.starts_epoch)
            or self.records
        )

    @property
    def mean_step_s(self) -> float | None:
        """A step's mean time: from the log's own means of whole epochs where its records are only samples of them."""
        whole = [each.step_s for each in self.epochs if each.step_s is not None]
        return (
            sum(whole) / len(whole)
            if whole
            else _mean([(each.step_s, each.steps) for each in self.steady])
        )

    @property
    def mean_data_s(self) -> float | None:
        """A step's mean wait for data on the rank that prints: a lower bound for the job."""
        whole = [each.data_s for each in self.epochs if each.data_s is not None]
        mean = (
            sum(whole) / len(whole)
            if whole
            else _mean([(each.data_s, each.steps) for each in self.steady])
        )
        return (
            mean
            if mean is not None
            else next((each.value for each in self.stated if each.what == "data time"), None)
        )

    @property
    def mean_throughput(self) -> float | None:
        """Samples over time, of one card or of all as the log counts."""
        if self.epochs and self.mean_step_s:
            sizes = [each.samples for each in self.steady if each.samples is not None]
            return statistics.median(sizes) / self.mean_step_s if sizes else None
        known = [
            each for each in self.steady if each.samples is not None and each.step_s is not None
        ]
        seconds = sum(each.steps * (each.step_s or 0) for each in known)
        return (
            sum(each.steps * (each.samples or 0) for each in known) / seconds
            if seconds > 0
            else None
        )


def _mean(weighted: list[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in weighted if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
