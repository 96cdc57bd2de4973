"""Places a log's records on a clock, as columns of steps and spans.

The records of a window become steps of equal length. Steps follow each other without a gap unless
the timestamps show one.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profkit.clock import Anchor
from profkit.importers.logs.parsed import VARYING, Mean, ParsedLog, Record, Scope
from profkit.importers.logs.times import has_year
from profkit.importers.reading.columns import constant, names, numbers
from profkit.importers.reading.numbers import Bools, Ints
from profkit.vocab import Phase

Floats = npt.NDArray[np.float64]

MAX_ROWS = 2_000_000
WEEK_S = 7 * 86_400.0
LONGEST_RUN_NS = 100 * 366 * 86_400 * 10**9
_SMALLEST_GAP_NS = 2_500_000_000
"""Timestamps are in whole seconds and printed late: only a larger gap between two lines is one."""
_MAX_SAMPLES = 1e12
EVALUATION = "evaluation or checkpoint"
_SAME_SIZE = 0.02
"""Batch sizes that differ by a smaller share are the same: the rest is rounding."""


def world_size(log: ParsedLog) -> int:
    """Return the number of cards of the job, or one if it is unknown."""
    return max(log.metadata.world_size or 1, log.metadata.data_ranks or 1)


@dataclass(frozen=True)
class PlacedSteps:
    """Steps on a clock that starts with the first of them; `data_ns` is valid if `has_data`."""

    step: Ints
    start_ns: Ints
    end_ns: Ints
    samples: Ints
    data_ns: Ints
    has_data: Bools
    other_ns: Ints
    """Evaluations and checkpoints in the step, after its wait for data; 0 without any."""
    loss: Floats
    epoch: Ints
    warm_up: int
    anchor: Anchor
    dropped: Counter[str]

    def step_columns(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "sample_count": self.samples,
            "loss": numbers(self.loss, np.isfinite(self.loss)),
            "instrumented": [True] * len(self.step),
            "epoch": numbers(self.epoch.astype(np.int32), self.epoch >= 0),
        }

    def span_columns(self) -> dict[str, Any]:
        """Return the wait for data at each step's beginning, and what follows it in some."""
        evaluated = self.other_ns > 0
        rows = np.concatenate([np.flatnonzero(self.has_data), np.flatnonzero(evaluated)])
        data_count, count = int(self.has_data.sum()), len(rows)
        start = self.start_ns[rows]
        end = start + self.data_ns[rows]
        start[data_count:] = end[data_count:]
        end[data_count:] += self.other_ns[rows[data_count:]]
        is_other = (np.arange(count) >= data_count).astype(np.int64)
        return {
            "step": self.step[rows],
            "phase": names(is_other, (Phase.DATA.value, Phase.OTHER.value)),
            "name": names(is_other, (Phase.DATA.value, EVALUATION)),
            "depth": np.zeros(count, dtype=np.int16),
            "thread": constant("main", count),
            "start_ns": start,
            "end_ns": end,
        }


def place_steps(log: ParsedLog) -> PlacedSteps:
    """Return the steps of the log's records on one clock."""
    dropped: Counter[str] = Counter()
    records = drop_untimed(log.records, dropped)
    counts = np.array([each.steps for each in records], dtype=np.int64)
    if counts.sum() > MAX_ROWS:
        over = int(counts.sum()) - len(records)
        dropped["steps over the limit: each line counts as one step"] += over
        counts = np.ones(len(records), dtype=np.int64)
    begin, first_step = place_records(records, counts, dropped)
    records, counts = records[: len(begin)], counts[: len(begin)]
    first_row = np.cumsum(counts) - counts
    place_in_window = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(first_row, counts)
    start = np.repeat(np.array(begin, dtype=np.int64), counts)
    step_ns = np.repeat(_nanoseconds([each.step_s for each in records]), counts)
    data_ns = np.repeat(_nanoseconds([each.data_s for each in records]), counts)
    other_ns = np.repeat(_nanoseconds([each.other_s for each in records]), counts)
    step = np.repeat(np.array(first_step, dtype=np.int64), counts) + place_in_window
    loss = np.full(len(step), np.nan)
    printed_steps = np.cumsum(counts) - 1
    loss[printed_steps] = np.array([each.loss for each in records], dtype=np.float64)
    epochs = np.full(len(records), -1, dtype=np.int64)
    if log.times is Mean.STEP:  # else its steps may be of two epochs
        for place, record in enumerate(records):
            if record.epoch is not None:
                epochs[place] = record.epoch
    return PlacedSteps(
        step=step,
        start_ns=start + (place_in_window * step_ns).astype(np.int64),
        end_ns=start + ((place_in_window + 1) * step_ns).astype(np.int64),
        samples=np.repeat(samples_per_step(log, records), counts),
        data_ns=np.nan_to_num(data_ns).astype(np.int64),
        has_data=np.isfinite(data_ns),
        other_ns=np.nan_to_num(other_ns).astype(np.int64),
        loss=loss,
        epoch=np.repeat(epochs, counts),
        warm_up=count_warm_up_steps(log, records, step),
        anchor=find_anchor(records, begin, counts),
        dropped=dropped,
    )


def drop_untimed(records: Sequence[Record], dropped: Counter[str]) -> list[Record]:
    """Return the records with a possible step time, and count the others."""
    timed = []
    for record in records:
        if record.step_s is None:
            dropped["x a line that does not say how long a step took"] += 1
        elif not 0 < record.step_s < WEEK_S:
            dropped["x a line with an impossible step time"] += 1
        else:
            timed.append(record)
    return timed


def _nanoseconds(seconds: Sequence[float | None]) -> Floats:
    """Return times in nanoseconds; impossible ones become NaN."""
    given = np.array(seconds, dtype=np.float64)
    return np.where((given >= 0) & (given < WEEK_S), given * 1e9, np.nan)


def place_records(
    records: Sequence[Record], counts: Ints, dropped: Counter[str]
) -> tuple[list[int], list[int]]:
    """Return when each record's steps began, and the number of the first of them.

    They began where the steps of the record before ended, or later if the timestamps show a gap.
    Their numbers never overlap.
    """
    begins: list[int] = []
    first_steps: list[int] = []
    next_free = 0
    base_s = 0.0
    for record in records:
        if record.time_s is not None:
            base_s = record.time_s
            break
    end = first_length = 0
    for record, count in zip(records, counts.tolist(), strict=True):
        length = round((record.step_s or 0) * 1e9 * count)
        begin = end
        if not begins:
            first_length = length
        elif record.time_s is not None and abs(record.time_s - base_s) < WEEK_S * 1000:
            gap = round((record.time_s - base_s) * 1e9) + first_length - length - end
            if _SMALLEST_GAP_NS < gap < WEEK_S * 1e9:
                begin = end + gap
        if begin + length > LONGEST_RUN_NS:
            dropped["lines more than a hundred years after the first"] += len(records) - len(begins)
            break
        begins.append(begin)
        end = begin + length
        first_steps.append(max(record.index - count + 1, next_free))
        next_free = first_steps[-1] + count
    return begins, first_steps


def samples_per_step(log: ParsedLog, records: Sequence[Record]) -> Ints:
    """Return rank 0's samples per step: the mean if these are words, which vary."""
    cards = 1
    if log.scope is Scope.ALL:
        cards = log.metadata.sample_ranks
    given = [min((each.samples or 0.0) / cards, _MAX_SAMPLES) for each in records]
    known = [each for each in given if each]
    if not known:
        return np.zeros(len(records), dtype=np.int64)
    if log.unit in VARYING:
        words, steps = 0.0, 0
        steady = [record for record in log.steady if record.samples]
        for record in steady or records:
            if record.samples:
                words += record.samples / cards * record.steps
                steps += record.steps
        mean = round(min(words / steps, _MAX_SAMPLES))
        return np.full(len(records), mean, dtype=np.int64)
    usual = round(statistics.median(known))
    sizes = []
    for size in given:
        if not size or abs(size - usual) <= _SAME_SIZE * usual:
            sizes.append(usual)
        else:
            sizes.append(round(size))
    return np.array(sizes, dtype=np.int64)


def count_warm_up_steps(log: ParsedLog, records: Sequence[Record], step: Ints) -> int:
    """Return the number of steps up to the end of the warm-up."""
    warm_up_ids = {id(each) for each in log.records[: log.warm_up]}
    ends = [each.index for each in records if id(each) in warm_up_ids]
    if not ends or not len(step):
        return 0
    return max(0, max(ends) - int(step[0]) + 1)


def find_anchor(records: Sequence[Record], begin: Sequence[int], counts: Ints) -> Anchor:
    """Tie the run's clock to the first timestamp with a year, if there is one."""
    for record, start, count in zip(records, begin, counts.tolist(), strict=True):
        if record.time_s is not None and has_year(record.time_s):
            length = round((record.step_s or 0) * 1e9 * count)
            return Anchor(start + length, round(record.time_s * 1e9), 1_000_000_000)
    return Anchor(0, 0, 0)
