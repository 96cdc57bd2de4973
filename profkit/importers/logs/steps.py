"""Cleans records, splits them into runs, and counts the steps that each is about."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from profkit.importers.logs.grammar import Grammar
from profkit.importers.logs.parsed import Flag, Record, flag_lines
from profkit.importers.logs.times import YEAR_S, has_year

MAX_STEPS = 1_000_000
"""One record is about at most this many steps; a larger number comes from a damaged counter."""
_MAX_MISSING_LINES = 1_000
_LEAST, _MOST = 1e-9, 1e12
"""Possible seconds, samples, and samples per second lie between these."""


def neighbours(records: Sequence[Record]) -> Iterator[tuple[Record | None, Record, Record | None]]:
    """Yield each record with the one before it and the one after it."""
    before: Record | None = None
    for record, after in itertools.zip_longest(records, records[1:]):
        yield before, record, after
        before = record


def _position(record: Record, grammar: Grammar) -> tuple[int, int]:
    """Return a record's epoch and step, which grow during a run."""
    if grammar.restarts_each_epoch:
        return record.epoch or 0, record.step
    return 0, record.step


def drop_strays(records: Sequence[Record], grammar: Grammar) -> tuple[list[Record], list[Flag]]:
    """Drop records that were printed twice and records whose step counter is damaged.

    A counter is damaged if the records before and after fit together and it does not fit them.
    """
    if not grammar.counts_steps:
        return list(records), []
    kept: list[Record] = []
    strays: list[int] = []
    for before, record, after in neighbours(records):
        if before is None:
            kept.append(record)
            continue
        earlier, own = _position(before, grammar), _position(record, grammar)
        same_figures = (before.step_s, before.throughput) == (record.step_s, record.throughput)
        if earlier == own and same_figures:
            continue
        later = _position(after, grammar) if after else earlier
        if earlier < later and not earlier <= own <= later:
            strays.append(record.line)
        else:
            kept.append(record)
    what = "a step counter that fits neither the line before nor the one after; excluded"
    return kept, flag_lines(what, strays)


def clear_impossible(records: Sequence[Record]) -> tuple[list[Record], list[Flag]]:
    """Replace impossible times, throughputs and samples by null, and flag their lines."""
    cleared: list[Record] = []
    wrong: list[int] = []
    for record in records:
        data_is_negative = record.data_s is not None and record.data_s < 0
        values = (record.step_s, record.throughput, record.samples)
        possible = []
        for value in values:
            possible.append(value if value is not None and _LEAST <= value <= _MOST else None)
        step_s, throughput, samples = possible
        if (step_s, throughput, samples) == values and not data_is_negative:
            cleared.append(record)
            continue
        wrong.append(record.line)
        data_s = record.data_s
        if data_is_negative:
            data_s = None
        cleared.append(
            dataclasses.replace(
                record, step_s=step_s, throughput=throughput, samples=samples, data_s=data_s
            )
        )
    return cleared, flag_lines("an impossible time, throughput or batch size", wrong)


def unwrap_years(records: Sequence[Record]) -> list[Record]:
    """Add a year to timestamps without a year that start again in January."""
    added, last = 0.0, None
    unwrapped = []
    for record in records:
        time_s = record.time_s
        if time_s is None:
            unwrapped.append(record)
            continue
        if last is not None and not has_year(time_s) and last - time_s > YEAR_S / 2:
            added += YEAR_S
        last = time_s
        if added:
            unwrapped.append(dataclasses.replace(record, time_s=time_s + added))
        else:
            unwrapped.append(record)
    return unwrapped


def split_runs(
    records: Sequence[Record], grammar: Grammar, header_lines: Sequence[int] = ()
) -> list[list[Record]]:
    """Split the records of a file into its runs.

    A run begins where the step counter goes back, or after parameters were printed again.
    """
    runs: list[list[Record]] = []
    for before, record, _ in neighbours(records):
        starts = before is None
        if before is not None:
            goes_back = _position(record, grammar) < _position(before, grammar)
            has_header = any(before.line < line < record.line for line in header_lines)
            starts = has_header or (grammar.counts_steps and goes_back)
        if starts:
            runs.append([])
        runs[-1].append(record)
    return runs


def count_steps(records: Sequence[Record], grammar: Grammar) -> list[Record]:
    """Fill in how many steps each record is about, and its last step's place in the run."""
    if not grammar.counts_steps:
        return _count_lines(records)
    if grammar.states_windows:
        ends = itertools.accumulate(each.steps for each in records)
        return [
            dataclasses.replace(each, index=end - 1)
            for each, end in zip(records, ends, strict=True)
        ]
    usual = _usual_window(records, grammar)
    is_single = grammar.times.is_single
    if is_single:
        usual = 1
    counted: list[Record] = []
    offset = next_index = 0
    for before, record, _ in neighbours(records):
        from_first = record.step - grammar.first_step
        if before is None or (grammar.restarts_each_epoch and before.epoch != record.epoch):
            offset = next_index
            starts_epoch = grammar.restarts_each_epoch and from_first == 0
            steps = from_first + 1
        else:
            starts_epoch = False
            steps = record.step - before.step
        index = max(offset + max(0, from_first), next_index)
        counted.append(
            dataclasses.replace(
                record,
                steps=min(max(1, steps), usual),
                index=index,
                starts_epoch=is_single and starts_epoch,
            )
        )
        next_index = index + 1
    return counted


def _count_lines(records: Sequence[Record]) -> list[Record]:
    """Count each line as a step; a gap between step numbers counts as missing lines."""
    counted: list[Record] = []
    index = 0
    for before, record, _ in neighbours(records):
        if before:
            ahead = record.step - before.step
            if not 1 < ahead <= _MAX_MISSING_LINES:
                ahead = 1
            index += ahead
        counted.append(dataclasses.replace(record, index=index))
    return counted


def count_warm_up(records: Sequence[Record], grammar: Grammar) -> int:
    """Return the number of leading records to exclude; one record is kept in any case."""
    early = 0
    while early < len(records) and records[early].step < grammar.warm_up_steps:
        early += 1
    return min(max(early, grammar.warm_up_records), max(0, len(records) - 1))


def _usual_window(records: Sequence[Record], grammar: Grammar) -> int:
    """Return the usual number of steps between two lines, else the first line's step."""
    distances: Counter[int] = Counter()
    for before, after in itertools.pairwise(records):
        distance = after.step - before.step
        comparable = not grammar.restarts_each_epoch or before.epoch == after.epoch
        if comparable and 0 < distance <= MAX_STEPS:
            distances[distance] += 1
    if distances:
        return distances.most_common(1)[0][0]
    if not records:
        return 1
    return min(MAX_STEPS, max(1, records[0].step - grammar.first_step + 1))
