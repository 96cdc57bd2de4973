"""A log's records as steps on one clock, in columns: means of windows taken apart, gaps where the timestamps show them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profkit.clock import Anchor
from profkit.importers.logs.parsed import Mean, ParsedLog, Record, Scope
from profkit.importers.logs.times import has_year
from profkit.importers.reading.columns import constant, numbers
from profkit.vocab import Phase

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MOST_ROWS = 2_000_000
WEEK_S = 7 * 86_400.0
LONGEST_RUN_NS = 100 * 366 * 86_400 * 10**9
_CLOCK_STEP_NS = 2_500_000_000
"""Timestamps in whole seconds, printed late: only a larger gap between two lines is one."""
_MOST_SAMPLES = 1e12
_ALIKE = 0.02
"""Samples of steps that differ by less, by rounding, are the same."""


def world_size(log: ParsedLog) -> int:
    """How many cards the job had; one where nothing tells."""
    return log.metadata.world_size or 1


@dataclass(frozen=True)
class Placed:
    """Steps on a clock that begins with the first of them; `data_ns` counts where `has_data`."""

    step: Ints
    start_ns: Ints
    end_ns: Ints
    samples: Ints
    data_ns: Ints
    has_data: Bools
    loss: Floats
    epoch: Ints
    warm_up: int
    anchor: Anchor
    dropped: Counter[str]

    def step_columns(self) -> dict[str, Any]:
        count = len(self.step)
        return {
            "step": self.step,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "sample_count": self.samples,
            "loss": numbers(self.loss, np.isfinite(self.loss)),
            "instrumented": np.ones(count, dtype=bool).tolist(),
            "epoch": numbers(self.epoch.astype(np.int32), self.epoch >= 0),
        }

    def span_columns(self) -> dict[str, Any]:
        known = self.has_data
        count = int(known.sum())
        name = constant(Phase.DATA.value, count)
        start = self.start_ns[known]
        return {
            "step": self.step[known],
            "phase": name,
            "name": name,
            "depth": np.zeros(count, dtype=np.int16),
            "thread": constant("main", count),
            "start_ns": start,
            "end_ns": start + self.data_ns[known],
        }


def place_steps(log: ParsedLog) -> Placed:
    """The log's records as steps one after the other, with a gap where the timestamps show one."""
    dropped: Counter[str] = Counter()
    records, counts = _within_limits(
        [each for each in log.records if _can_be(each, dropped)], dropped
    )
    begin = _begin_times(records, counts, dropped)
    records, counts = records[: len(begin)], counts[: len(begin)]
    within = _within(counts)
    start, step_ns = (
        np.repeat(np.array(begin, dtype=np.int64), counts),
        np.repeat(_nanoseconds([each.step_s for each in records]), counts),
    )
    data_ns = np.repeat(_nanoseconds([each.data_s for each in records]), counts)
    step = np.repeat(_first_steps(records, counts), counts) + within
    return Placed(
        step=step,
        start_ns=start + (within * step_ns).astype(np.int64),
        end_ns=start + ((within + 1) * step_ns).astype(np.int64),
        samples=np.repeat(_samples(log, records), counts),
        data_ns=np.nan_to_num(data_ns).astype(np.int64),
        has_data=np.isfinite(data_ns),
        loss=_losses(records, counts),
        epoch=np.repeat(np.array([_epoch(log, each) for each in records], dtype=np.int64), counts),
        warm_up=_warm_up(log, records, step),
        anchor=_anchor(records, begin, counts),
        dropped=dropped,
    )


def _within_limits(records: list[Record], dropped: Counter[str]) -> tuple[list[Record], Ints]:
    """The records with the number of rows that each becomes."""
    counts = np.array([each.steps for each in records], dtype=np.int64)
    if counts.sum() <= MOST_ROWS:
        return records, counts
    dropped["steps of windows, over the limit: one stands for each line"] += int(
        counts.sum()
    ) - len(records)
    return records, np.ones(len(records), dtype=np.int64)


def _nanoseconds(seconds: Sequence[float | None]) -> Floats:
    """Times that can be; the others are not a number."""
    return np.array(
        [each * 1e9 if each is not None and 0 <= each < WEEK_S else np.nan for each in seconds],
        dtype=np.float64,
    )


def _losses(records: Sequence[Record], counts: Ints) -> Floats:
    """The loss of the printed step, which is the last of its window."""
    loss = np.full(int(counts.sum()), np.nan)
    loss[np.cumsum(counts) - 1] = [np.nan if each.loss is None else each.loss for each in records]
    return loss


def _can_be(record: Record, dropped: Counter[str]) -> bool:
    if record.step_s is None:
        dropped["lines that do not tell how long a step took"] += 1
        return False
    if not 0 < record.step_s < WEEK_S:
        dropped["lines with a step time that cannot be"] += 1
        return False
    return True


def _begin_times(records: Sequence[Record], counts: Ints, dropped: Counter[str]) -> list[int]:
    """When each record's steps began: where the ones before ended, or later where its timestamp says so."""
    begins: list[int] = []
    base = next((each.time_s for each in records if each.time_s is not None), 0.0)
    end, shift = 0, 0
    for record, count in zip(records, counts.tolist(), strict=True):
        length = round((record.step_s or 0) * 1e9 * count)
        if not begins:
            shift = length
        told = (
            round((record.time_s - base) * 1e9) + shift
            if record.time_s is not None and abs(record.time_s - base) < WEEK_S * 1000
            else None
        )
        gap = told - length - end if told is not None and begins else 0
        begin = end + gap if _CLOCK_STEP_NS < gap < WEEK_S * 1e9 else end
        if begin + length > LONGEST_RUN_NS:
            dropped["lines more than a hundred years after the first"] += len(records) - len(begins)
            break
        begins.append(begin)
        end = begin + length
    return begins


def _within(counts: Ints) -> Ints:
    """For each row, its place in its window."""
    first = np.cumsum(counts) - counts
    return np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(first, counts)


def _first_steps(records: Sequence[Record], counts: Ints) -> Ints:
    """The number of each window's first step; windows never overlap."""
    firsts = []
    next_free = 0
    for record, count in zip(records, counts.tolist(), strict=True):
        first = max(record.index - count + 1, next_free)
        firsts.append(first)
        next_free = first + count
    return np.array(firsts, dtype=np.int64)


def _samples(log: ParsedLog, records: Sequence[Record]) -> Ints:
    """The samples that rank 0 trained on in a step; where they are words, the mean, because no batch of them is partial."""
    cards = world_size(log) if log.scope is Scope.ALL else 1
    given = [min(each.samples / cards, _MOST_SAMPLES) if each.samples else 0.0 for each in records]
    known = [each for each in given if each]
    if not known:
        return np.zeros(len(records), dtype=np.int64)
    if log.unit == "words":
        weights = [each.steps for each in log.steady if each.samples]
        steady = [(each.samples or 0) / cards for each in log.steady if each.samples]
        usual = sum(size * weight for size, weight in zip(steady, weights, strict=True)) / sum(
            weights
        )
        return np.full(len(records), round(min(usual, _MOST_SAMPLES)), dtype=np.int64)
    usual = round(statistics.median(known))
    return np.array(
        [
            usual if not each or abs(each - usual) <= _ALIKE * usual else round(each)
            for each in given
        ],
        dtype=np.int64,
    )


def _epoch(log: ParsedLog, record: Record) -> int:
    return record.epoch if log.times is Mean.STEP and record.epoch is not None else -1


def _warm_up(log: ParsedLog, records: Sequence[Record], step: Ints) -> int:
    """The steps up to the last record of the warm-up."""
    early = {id(each) for each in log.records[: log.warm_up]}
    last = max((each.index for each in records if id(each) in early), default=None)
    return max(0, last - int(step[0]) + 1) if last is not None and len(step) else 0


def _anchor(records: Sequence[Record], begin: Sequence[int], counts: Ints) -> Anchor:
    """The run's clock tied to the first timestamp that has a year; where none has, nothing is known of the time of day."""
    for record, start, count in zip(records, begin, counts.tolist(), strict=True):
        if record.time_s is not None and has_year(record.time_s):
            return Anchor(
                start + round((record.step_s or 0) * 1e9 * count),
                round(record.time_s * 1e9),
                1_000_000_000,
            )
    return Anchor(0, 0, 0)
