"""Derives step times from throughputs and samples, and the other way round."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from profkit.importers.logs.parsed import Flag, Record, flag_lines
from profkit.importers.logs.steps import neighbours

_ROUNDED = 1.001
"""Two throughputs that are rounded may contradict each other by this factor."""
_PARTIAL = 0.98
"""A batch below this share of the usual one is partial."""
_TOO_LONG = 3
"""A last step that would take this many times the time that passed was of a partial batch.

So was one that is this many times slower than the usual one, if nothing tells the time that passed.
"""


def fill_samples(
    records: Sequence[Record], batch: float | None, *, timed_by_clock: bool = False
) -> tuple[list[Record], list[Flag]]:
    """Fill missing step times from throughputs, else from timestamps, and samples per step.

    If an epoch's last throughput is too low for the time that passed, or far below the usual one,
    its batch was partial. It is no step to be compared.
    """
    batch = batch or estimate_batch(records)
    filled: list[Record] = []
    partial: list[int] = []
    by_clock: list[int] = []
    usual = statistics.median([each.throughput for each in records if each.throughput] or [0.0])
    for before, record, after in neighbours(records):
        passed_s = _seconds_since(before, record)
        throughput = None if timed_by_clock else record.throughput
        step_s, size = record.step_s, batch if record.samples is None else record.samples
        if step_s is None and throughput and throughput > 0 and size:
            ends_epoch = after is None or after.epoch != record.epoch
            step_s = size / throughput
            if ends_epoch and record.samples is None and record.steps == 1:
                step_s, size = _shrink(size, throughput, usual, passed_s)
        elif step_s is None and passed_s and not timed_by_clock:
            by_clock.append(record.line)
        made = _complete(record, passed_s if step_s is None else step_s, size, batch)
        if made.partial and record.samples is None:
            partial.append(record.line)
        filled.append(made)
    flags = flag_lines("a partial batch, or a stall at the end of an epoch", partial)
    what = "a line without a usable time or throughput: its step time is from the timestamps"
    return filled, [*flags, *flag_lines(what, by_clock)]


def _shrink(
    size: float, throughput: float, usual: float, passed_s: float | None
) -> tuple[float, float]:
    """Return the time and the samples of an epoch's last step, whose batch may be partial."""
    step_s = size / throughput
    if passed_s and step_s > _TOO_LONG * passed_s:
        return passed_s, min(size, throughput * passed_s)
    if _TOO_LONG * throughput < usual:
        return step_s, size * throughput / usual
    return step_s, size


def _complete(
    record: Record, step_s: float | None, size: float | None, batch: float | None
) -> Record:
    """Return the record with its step time, what follows from it, and whether it is partial."""
    if size is None and record.throughput is not None and step_s is not None:
        size = record.throughput * step_s
    data_s = record.data_s
    if data_s is None and step_s is not None:
        data_s = _wait_from_throughputs(record, step_s)
    is_small = bool(batch and size is not None and size < _PARTIAL * batch)
    return dataclasses.replace(
        record,
        step_s=step_s,
        data_s=data_s,
        samples=size,
        partial=is_small and record.steps == 1,
    )


def _wait_from_throughputs(record: Record, step_s: float) -> float | None:
    """Return the wait for data of a step whose line has the throughput with and without it."""
    whole, computing = record.throughput, record.compute_throughput
    if not whole or not computing or whole > _ROUNDED * computing:
        return None
    return max(0.0, step_s * (1 - whole / computing))


def estimate_batch(records: Sequence[Record]) -> float | None:
    """Estimate a step's samples from throughput and step time, else time between lines."""
    sizes = []
    for each in records:
        if each.throughput and each.step_s:
            sizes.append(each.throughput * each.step_s)
    if not sizes:
        for before, after in itertools.pairwise(records):
            passed_s = _seconds_since(before, after)
            if after.throughput and passed_s:
                sizes.append(after.throughput * passed_s)
    if not sizes or statistics.median(sizes) < 0.5:
        return None
    return float(round(statistics.median(sizes)))


def _seconds_since(before: Record | None, record: Record) -> float | None:
    """Return the time per step since the line before, null if timestamps do not tell it."""
    if before is None or before.time_s is None or record.time_s is None:
        return None
    between = record.index - before.index
    if record.time_s <= before.time_s or between != record.steps:
        return None
    return (record.time_s - before.time_s) / between
