"""Turns cumulative means into means over the steps since the line before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from profkit.importers.logs.grammar import Grammar
from profkit.importers.logs.parsed import Flag, Mean, Record, flag_lines
from profkit.importers.logs.steps import MAX_STEPS, neighbours

MAX_ROUNDING_SHARE = 0.05
"""Rounding may make up this share of a mean that was undone."""
CUMULATIVE = (Mean.EPOCH, Mean.RUN)


def undo_cumulative(records: Sequence[Record], grammar: Grammar) -> tuple[list[Record], list[Flag]]:
    """Return the records with means over the steps since the line before.

    A mean over n steps is a sum divided by n. The difference of two sums, divided by the difference
    of their counts, is the mean of the steps between. Its rounding error grows with n, but the sum
    over all lines stays exact, because it is the last mean printed. So a line is dropped if its
    rounding error is too large or its steps would have taken no time. The next line is then about
    its steps as well.
    """
    if grammar.times not in CUMULATIVE:
        return list(records), []
    undone: list[Record] = []
    broken: list[int] = []
    for segment in _split_at_resets(records, grammar):
        kept, falling = _keep_precise(segment, grammar)
        broken += falling
        for before, record, _ in neighbours(kept):
            undone.append(_difference(record, before, grammar))
    return undone, flag_lines("a mean that falls faster than its steps could; excluded", broken)


def _split_at_resets(records: Sequence[Record], grammar: Grammar) -> Iterator[list[Record]]:
    """Yield the records between two resets of the means."""
    segment: list[Record] = []
    for record in records:
        count = grammar.steps_in_mean(record.step)
        if record.step_s is None or count <= 0:
            continue
        if segment:
            last = segment[-1]
            new_epoch = grammar.times is Mean.EPOCH and last.epoch != record.epoch
            if new_epoch or grammar.steps_in_mean(last.step) >= count:
                yield segment
                segment = []
        segment.append(record)
    if segment:
        yield segment


def _keep_precise(segment: Sequence[Record], grammar: Grammar) -> tuple[list[Record], list[int]]:
    """Return the records with precise differences, and the lines at which time runs backwards.

    The last record is kept in any case, because the sum over all records depends on it.
    """
    kept: list[Record] = []
    falling: list[int] = []
    for record in segment:
        window = _difference(record, kept[-1] if kept else None, grammar)
        step_s = window.step_s or 0
        error = grammar.rounding_s * (2 * grammar.steps_in_mean(record.step) / window.steps - 1)
        if step_s + error <= 0:
            falling.append(record.line)
        elif error <= MAX_ROUNDING_SHARE * step_s and (window.data_s or 0) >= 0:
            kept.append(record)
    last = segment[-1]
    if last.line not in falling and last not in kept:
        kept[-1:] = [last]
    return kept, falling


def _difference(record: Record, last: Record | None, grammar: Grammar) -> Record:
    """Return the record with its means over the steps since `last`."""
    count = grammar.steps_in_mean(record.step)
    before = 0
    last_step_s: float | None = 0.0
    last_data_s: float | None = 0.0
    if last:
        before = grammar.steps_in_mean(last.step)
        last_step_s, last_data_s = last.step_s, last.data_s
    data_s = record.data_s
    if (grammar.data_times or grammar.times) in CUMULATIVE:
        data_s = _mean_between(data_s, last_data_s, count, before)
    return dataclasses.replace(
        record,
        steps=min(count - before, MAX_STEPS),
        step_s=_mean_between(record.step_s, last_step_s, count, before),
        data_s=data_s,
    )


def _mean_between(value: float | None, last: float | None, count: int, before: int) -> float | None:
    if value is None or last is None:
        return None
    return (value * count - last * before) / (count - before)
