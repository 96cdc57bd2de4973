"""Finds the lines of a log whose steps are slow, and if the wait for data explains them.

They are those in which an epoch begins, if these take longer than others, else the few that are far
slower than the usual one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from profkit.importers.logs.parsed import MAD_TO_DEVIATION, Mean, ParsedLog, Record

_FEWEST_LINES = 8
"""Fewer lines say nothing about which of them are slow."""
_FEWEST_IN_GROUP = 3
_STANDARD_ERRORS = 3.0
"""Two groups of lines differ if their means are this many standard errors apart."""
_SPREADS, _LONGER = 5.0, 0.15
"""A line is slow if it is this many robust deviations, and by this share, above the median."""
_MOST_SLOW = 1 / 3
"""If a larger share of the lines is slow, slow is how the job runs."""
_LEAST_EXCESS = 0.005
"""Slow lines that add a smaller share to the mean step are not reported."""
_IRREGULAR = 0.25
"""Slow lines come regularly if their distances deviate by a smaller share of the mean distance."""


@dataclass(frozen=True)
class SlowLines:
    """Times are in nanoseconds per step; `epoch_starts` is null if the log prints no epochs."""

    lines: int
    lines_in_all: int
    steps_per_line: int
    most_steps_per_line: int
    step_ns: float
    others_ns: float
    data_ns: float | None
    others_data_ns: float | None
    excess_ns: float
    """What they add to the average step of the run."""
    excess_data_ns: float | None
    """The part of `excess_ns` that is the printed wait for data."""
    epoch_starts: int | None
    """The lines among them in which an epoch begins."""
    every_steps: float | None
    """The mean distance between them in steps, if it is regular."""
    among_first: int | None
    """The number of lines at the beginning that hold all of them, if these are under half."""


def find_slow_lines(log: ParsedLog) -> SlowLines | None:
    """Return the slow lines among those that figures are computed from, if there are any."""
    records = [each for each in log.steady if each.step_s is not None]
    if len(records) < _FEWEST_LINES:
        return None
    begins = _lines_with_epoch_start(log)
    by_epoch = _by_epoch(records, begins)
    far = _far_above_median(records)
    found = max((by_epoch, far), key=lambda slow: _excess_s(records, slow))
    if by_epoch and _excess_s(records, by_epoch) > 0.8 * _excess_s(records, found):
        found = by_epoch
    excess_s = _excess_s(records, found)
    if not found or excess_s < _LEAST_EXCESS * _mean(records):
        return None
    slow, others, last = [], [], 0
    for place, each in enumerate(records, 1):
        if each.line in found:
            slow.append(each)
            last = place
        else:
            others.append(each)
    waits, others_waits = _mean_wait(slow), _mean_wait(others)
    counts = [each.steps for each in records]
    data_s = None
    if waits is not None and others_waits is not None:
        data_s = (waits - others_waits) * _steps(slow) / _steps(records)
    return SlowLines(
        lines=len(slow),
        lines_in_all=len(records),
        steps_per_line=min(counts),
        most_steps_per_line=max(counts),
        step_ns=1e9 * _mean(slow),
        others_ns=1e9 * _mean(others),
        data_ns=_in_ns(waits),
        others_data_ns=_in_ns(others_waits),
        excess_ns=1e9 * excess_s,
        excess_data_ns=_in_ns(data_s),
        epoch_starts=len(found & begins) if begins else None,
        every_steps=_distance(slow),
        among_first=last if 2 * last < len(records) else None,
    )


def as_config(log: ParsedLog) -> dict[str, float | int] | None:
    """Return the slow lines as a run's configuration has them; null ones are omitted."""
    slow = find_slow_lines(log)
    if slow is None:
        return None
    return {name: value for name, value in dataclasses.asdict(slow).items() if value is not None}


def _lines_with_epoch_start(log: ParsedLog) -> set[int]:
    """Return the lines that are about steps of two epochs; those of single steps are of one."""
    if log.times is Mean.STEP:
        return set()
    begins = set()
    for before, record in itertools.pairwise(log.records):
        if before.epoch is not None and record.epoch is not None and before.epoch != record.epoch:
            begins.add(record.line)
    return begins


def _by_epoch(records: Sequence[Record], begins: set[int]) -> set[int]:
    """Return the lines in which an epoch begins, if these take longer than the others."""
    inside, outside, lines = [], [], set()
    for each in records:
        if each.line in begins:
            inside.append(_step_s(each))
            lines.add(each.line)
        else:
            outside.append(_step_s(each))
    if min(len(inside), len(outside)) < _FEWEST_IN_GROUP:
        return set()
    error = math.hypot(
        statistics.stdev(inside) / math.sqrt(len(inside)),
        statistics.stdev(outside) / math.sqrt(len(outside)),
    )
    if statistics.fmean(inside) - statistics.fmean(outside) <= _STANDARD_ERRORS * error:
        return set()
    return lines


def _far_above_median(records: Sequence[Record]) -> set[int]:
    times = list(map(_step_s, records))
    usual = statistics.median(times)
    spread = MAD_TO_DEVIATION * statistics.median(abs(each - usual) for each in times)
    limit = usual + max(_SPREADS * spread, _LONGER * usual)
    slow = {each.line for each in records if _step_s(each) > limit}
    if len(slow) <= _MOST_SLOW * len(records):
        return slow
    return set()


def _step_s(record: Record) -> float:
    """Return a step's time without an evaluation, which is reported separately."""
    return (record.step_s or 0.0) - (record.other_s or 0.0)


def _steps(records: Sequence[Record]) -> int:
    return sum(each.steps for each in records)


def _mean(records: Sequence[Record]) -> float:
    return sum(each.steps * _step_s(each) for each in records) / max(1, _steps(records))


def _mean_wait(records: Sequence[Record]) -> float | None:
    waited_s, steps = 0.0, 0
    for each in records:
        if each.data_s is not None:
            waited_s += each.data_s * each.steps
            steps += each.steps
    if steps:
        return waited_s / steps
    return None


def _excess_s(records: Sequence[Record], slow: set[int]) -> float:
    """Return what the slow lines add to the average step."""
    others = []
    for each in records:
        if each.line not in slow:
            others.append(each)
    if slow and others:
        return _mean(records) - _mean(others)
    return 0.0


def _distance(slow: Sequence[Record]) -> float | None:
    gaps = []
    for before, after in itertools.pairwise(slow):
        gaps.append(after.index - before.index)
    if len(gaps) < _FEWEST_IN_GROUP - 1:
        return None
    mean = statistics.fmean(gaps)
    window = max(each.steps for each in slow)
    if mean < 2 * window:
        return None
    return (
        mean if max(abs(each - mean) for each in gaps) <= max(window, _IRREGULAR * mean) else None
    )


def _in_ns(seconds: float | None) -> float | None:
    if seconds is None:
        return None
    return 1e9 * seconds
