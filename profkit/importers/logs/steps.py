"""From lines to steps: runs told apart, cumulative means undone, each record given the steps that it is about."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from profkit.importers.logs.grammar import Grammar
from profkit.importers.logs.parsed import Flag, Mean, Record

MOST_STEPS = 1_000_000
"""Steps that one record may stand for; more is a damaged counter."""

_MOST_MISSING = 1_000
MOST_ROUNDING = 0.05
"""Of a mean that is undone, the part that may be rounding."""

_LEAST, _MOST = 1e-9, 1e12
"""Seconds, samples, and samples a second."""

_CUMULATIVE = (Mean.EPOCH, Mean.RUN)


def _place(record: Record, grammar: Grammar) -> tuple[int, int]:
    return (record.epoch or 0 if grammar.restarts else 0, record.step)


def drop_strays(records: Sequence[Record], grammar: Grammar) -> tuple[list[Record], list[Flag]]:
    """Without records printed twice, and without those whose step is damaged: their neighbours agree, they do not."""
    if not grammar.counts:
        return list(records), []
    kept: list[Record] = []
    strays: list[int] = []
    for before, record, after in _neighbours(records):
        if (
            before
            and _place(before, grammar) == _place(record, grammar)
            and before.step_s == record.step_s
            and before.throughput == record.throughput
        ):
            continue
        if (
            before
            and after
            and _is_stray(_place(before, grammar), _place(record, grammar), _place(after, grammar))
        ):
            strays.append(record.line)
        else:
            kept.append(record)
    return kept, [
        Flag(
            f"{len(strays):,} x a step counter that fits neither the line before nor the one after; left out",
            tuple(strays[:5]),
        )
    ] if strays else []


def _neighbours(records: Sequence[Record]) -> Iterator[tuple[Record | None, Record, Record | None]]:
    for place, record in enumerate(records):
        yield (
            records[place - 1] if place else None,
            record,
            records[place + 1] if place + 1 < len(records) else None,
        )


def _is_stray(before: tuple[int, int], own: tuple[int, int], after: tuple[int, int]) -> bool:
    return before < after and not before <= own <= after


def clear_impossible(records: Sequence[Record]) -> tuple[list[Record], list[Flag]]:
    """Records whose times, rates and samples can be: above zero, and below what no machine does; what cannot is null, and counted."""
    cleared: list[Record] = []
    wrong: list[int] = []
    for record in records:
        values = (record.step_s, record.throughput, record.samples)
        if not all(map(_can_be, values)) or (record.data_s or 0) < 0:
            wrong.append(record.line)
            step_s, throughput, samples = (value if _can_be(value) else None for value in values)
            data_s = record.data_s if record.data_s is None or record.data_s >= 0 else None
            cleared.append(
                dataclasses.replace(
                    record, step_s=step_s, throughput=throughput, samples=samples, data_s=data_s
                )
            )
        else:
            cleared.append(record)
    return cleared, [
        Flag(
            f"{len(wrong):,} x a time, a throughput or a batch size that cannot be",
            tuple(wrong[:5]),
        )
    ] if wrong else []


def _can_be(value: float | None) -> bool:
    return value is None or _LEAST <= value <= _MOST


def split_runs(
    records: Sequence[Record], grammar: Grammar, headers: Sequence[int] = ()
) -> list[list[Record]]:
    """The records of each run in the file: one ends where the step counter goes back, or where parameters are printed again."""
    runs: list[list[Record]] = []
    for before, record, _ in _neighbours(records):
        again = before is not None and any(before.line < line < record.line for line in headers)
        back = (
            before is not None
            and grammar.counts
            and _place(record, grammar) < _place(before, grammar)
        )
        if before is None or again or back:
            runs.append([])
        runs[-1].append(record)
    return runs


def count_steps(records: Sequence[Record], grammar: Grammar) -> list[Record]:
    """Each record with the number of steps that it is about, and its last step's place in the run."""
    if not grammar.counts:
        return _count_lines(records)
    usual = _usual_window(records, grammar)
    counted: list[Record] = []
    offset = 0
    for before, record, _ in _neighbours(records):
        anew = before is None or (grammar.restarts and before.epoch != record.epoch)
        if anew and counted:
            offset = counted[-1].index + 1
        since = (
            record.step - grammar.first + 1 if before is None or anew else record.step - before.step
        )
        index = offset + max(0, record.step - grammar.first)
        single = grammar.times is Mean.STEP
        counted.append(
            dataclasses.replace(
                record,
                steps=1 if single else min(max(1, since), usual),
                index=max(index, counted[-1].index + 1 if counted else 0),
                starts_epoch=single and grammar.restarts and anew and record.step == grammar.first,
            )
        )
    return counted


def _count_lines(records: Sequence[Record]) -> list[Record]:
    """Each line is a step, whatever its number; where the numbers leave some out, lines are missing."""
    counted: list[Record] = []
    for before, record, _ in _neighbours(records):
        ahead = record.step - before.step if before else 0
        steps = ahead if 1 < ahead <= _MOST_MISSING else 1
        counted.append(
            dataclasses.replace(record, index=counted[-1].index + steps if counted else 0)
        )
    return counted


def _usual_window(records: Sequence[Record], grammar: Grammar) -> int:
    """The steps between two lines, as most have it; a shorter run's first line tells it."""
    pairs = itertools.pairwise(records)
    distances = Counter(
        after.step - before.step
        for before, after in pairs
        if not grammar.restarts or before.epoch == after.epoch
    )
    distances = Counter(
        {distance: count for distance, count in distances.items() if 0 < distance <= MOST_STEPS}
    )
    if distances:
        return distances.most_common(1)[0][0]
    return min(MOST_STEPS, max(1, records[0].step - grammar.first + 1)) if records else 1


def undo_cumulative(records: Sequence[Record], grammar: Grammar) -> tuple[list[Record], list[Flag]]:
    """Cumulative means as means over the steps since the line before.

    A mean over n steps is a sum over n; the difference of two sums, over the difference of their
    counts, is the mean of the steps between. Its rounding error grows with n, its sum over all
    lines does not: that is the last mean printed. So where rounding would be felt, or steps would
    have taken no time, a line is left out and the next one is about its steps too.
    """
    if grammar.times not in _CUMULATIVE:
        return list(records), []
    undone: list[Record] = []
    broken: list[int] = []
    for segment in _segments(records, grammar):
        kept, falling = _sharp_enough(segment, grammar)
        broken += falling
        undone += [_difference(record, before, grammar) for before, record, _ in _neighbours(kept)]
    return undone, [
        Flag(
            f"{len(broken):,} x a mean that falls faster than its steps could; left out",
            tuple(broken[:5]),
        )
    ] if broken else []


def _segments(records: Sequence[Record], grammar: Grammar) -> Iterator[list[Record]]:
    """The lines between two resets of the means."""
    segment: list[Record] = []
    for record in records:
        if record.step_s is None or grammar.held(record.step) <= 0:
            continue
        if segment and (
            grammar.held(segment[-1].step) >= grammar.held(record.step)
            or (grammar.times is Mean.EPOCH and segment[-1].epoch != record.epoch)
        ):
            yield segment
            segment = []
        segment.append(record)
    if segment:
        yield segment


def _sharp_enough(segment: Sequence[Record], grammar: Grammar) -> tuple[list[Record], list[int]]:
    """The lines whose differences say something, the last one always; and the lines at which time would run backwards."""
    kept: list[Record] = []
    falling: list[int] = []
    for record in segment:
        window = _difference(record, kept[-1] if kept else None, grammar)
        error = grammar.rounding_s * (2 * grammar.held(record.step) / window.steps - 1)
        if (window.step_s or 0) + error <= 0:
            falling.append(record.line)
        elif error <= MOST_ROUNDING * (window.step_s or 0) and (
            window.data_s is None or window.data_s >= 0
        ):
            kept.append(record)
    last = segment[-1]
    if last.line not in falling and last not in kept:
        kept[-1:] = [last]
    return kept, falling


def _difference(record: Record, last: Record | None, grammar: Grammar) -> Record:
    count, before = grammar.held(record.step), grammar.held(last.step) if last else 0
    data_s = record.data_s
    if (grammar.data_times or grammar.times) in _CUMULATIVE:
        data_s = _mean_between(record.data_s, last.data_s if last else 0.0, count, before)
    step_s = _mean_between(record.step_s, last.step_s if last else 0.0, count, before)
    return dataclasses.replace(
        record, steps=min(count - before, MOST_STEPS), step_s=step_s, data_s=data_s
    )


def _mean_between(value: float | None, last: float | None, count: int, before: int) -> float | None:
    return (
        None
        if value is None or last is None
        else (value * count - last * before) / (count - before)
    )


def fill_samples(
    records: Sequence[Record], batch: float | None, *, timed: bool = False
) -> tuple[list[Record], list[Flag]]:
    """Step times from throughputs and the other way round, with the samples of a step.

    Where nothing else tells a step's time, its line's timestamp does. An epoch's last throughput, if
    it is too low for the time that passed, is that of a partial batch.
    """
    batch = batch or estimate_batch(records)
    filled: list[Record] = []
    partial: list[int] = []
    for before, record, after in _neighbours(records):
        ends = after is None or after.epoch != record.epoch
        made = _fill(record, _passed(before, record), batch, timed=timed, may_be_partial=ends)
        if (
            batch
            and made.samples is not None
            and made.samples < 0.98 * batch
            and record.samples is None
        ):
            partial.append(record.line)
        filled.append(made)
    return filled, [
        Flag(f"{len(partial):,} x a partial batch", tuple(partial[:5]))
    ] if partial else []


def estimate_batch(records: Sequence[Record]) -> float | None:
    """A step's samples as throughput times step time, or times the time between lines."""
    told = [each.throughput * each.step_s for each in records if each.throughput and each.step_s]
    if not told:
        passed = [
            (after.throughput, _passed(before, after))
            for before, after in itertools.pairwise(records)
        ]
        told = [throughput * seconds for throughput, seconds in passed if throughput and seconds]
    middle = statistics.median(told) if told else 0.0
    return float(round(middle)) if middle >= 0.5 else None


def _passed(before: Record | None, record: Record) -> float | None:
    """Seconds a step since the line before, by the lines' timestamps; null where lines share one or steps lie between."""
    if (
        before is None
        or before.time_s is None
        or record.time_s is None
        or record.time_s <= before.time_s
    ):
        return None
    between = record.index - before.index
    return (record.time_s - before.time_s) / between if between == record.steps else None


def _fill(
    record: Record,
    passed_s: float | None,
    batch: float | None,
    *,
    timed: bool,
    may_be_partial: bool,
) -> Record:
    step_s, samples, throughput = record.step_s, record.samples, record.throughput
    size = samples if samples is not None else batch
    if not timed and step_s is None and throughput and throughput > 0 and size:
        step_s = size / throughput
        if (
            may_be_partial
            and passed_s
            and samples is None
            and step_s > 3 * passed_s
            and record.steps == 1
        ):
            step_s, size = passed_s, min(size, throughput * passed_s)
    if step_s is None:
        step_s = passed_s
    if size is None and throughput is not None and step_s is not None:
        size = throughput * step_s
    return dataclasses.replace(record, step_s=step_s, samples=size)
