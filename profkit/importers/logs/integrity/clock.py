"""Checks of a run's timestamps, and of its step times against them."""

from __future__ import annotations

import itertools
import statistics

from profkit.importers.logs.integrity.evidence import COARSE_S, MIN_VALUES, Evidence, flag_records
from profkit.importers.logs.parsed import Flag, ParsedLog
from profkit.importers.logs.times import has_year
from profkit.text import duration, significant

_DAY_S = 86_400.0
_LONGEST_PAUSE_S = 6 * 3600.0
_STEPS_IN_PAUSE = 10
"""A pause of this many windows is not a jump of the clock."""
_CLOCK_CORRECTION_S = 60
"""A clock may be set back by this much during a run."""
_SMALLEST_SHARE, _LARGEST_SHARE = 0.5, 1.25
"""Step times make up a share between these of the time between their timestamps."""
_TOO_LONG = 1.5
"""Steps that take this many times the time between their timestamps cannot be true."""
_FINE_S = 0.1
"""Timestamps with fractions of a second may be late by this much."""
_NOTICEABLE_S = 2
"""Lines whose steps took longer than this have different timestamps, if none was held back."""


def check_header_date(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag a file that begins on another day than its records."""
    if evidence.header is None:
        return []
    line, time_s = evidence.header
    for record in log.records:
        if record.time_s is None:
            continue
        apart = abs(record.time_s - time_s)
        same_form = has_year(time_s) == has_year(record.time_s)
        if not same_form or apart < _DAY_S or record.line == line:
            return []
        days = significant(apart / _DAY_S, 2)
        text = f"the file's beginning is {days} days from its records: parts of two runs"
        return [Flag(text, (line, record.line))]
    return []


def check_jumps(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag the first place where the clock goes back or far ahead between two records."""
    furthest_back = -_CLOCK_CORRECTION_S
    if evidence.timed_by_clock:
        furthest_back = 0
    for before, after in itertools.pairwise(log.records):
        if before.time_s is None or after.time_s is None:
            continue
        gap = after.time_s - before.time_s
        longest = _LONGEST_PAUSE_S + _STEPS_IN_PAUSE * after.steps * (after.step_s or 0)
        if furthest_back <= gap <= longest:
            continue
        word = "back" if gap < 0 else "ahead"
        text = (
            f"the clock jumps {word} by {duration(abs(gap) * 1e9)} between two records: "
            "parts of two runs, or a pause"
        )
        return [Flag(text, (before.line, after.line))]
    return []


def check_step_times(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag step times unlike those between timestamps: a batch size or unit is damaged."""
    if evidence.timed_by_clock:
        return []
    shares = []
    for before, after in itertools.pairwise(log.records):
        if before.time_s is None or after.time_s is None or after.step_s is None:
            continue
        other_epoch = log.times.is_single and before.epoch != after.epoch
        if other_epoch or after.index - before.index != after.steps:
            continue
        passed_s = after.time_s - before.time_s
        is_coarse = passed_s == round(passed_s)
        if passed_s > is_coarse * COARSE_S:
            shares.append(after.steps * after.step_s / passed_s)
    if len(shares) < MIN_VALUES:
        return []
    share = statistics.median(shares)
    if _SMALLEST_SHARE <= share <= _LARGEST_SHARE:
        return []
    times = significant(share, 3)
    return [Flag(f"its step times are {times} x the time between its timestamps")]


def check_long_windows(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag windows that state more time than passed since the line before."""
    slow = []
    for before, after in itertools.pairwise(log.records):
        if before.time_s is None or after.time_s is None or after.step_s is None:
            continue
        passed_s = after.time_s - before.time_s
        late_s = COARSE_S if after.time_s == round(after.time_s) else _FINE_S
        if passed_s > 0 and after.steps * after.step_s > _TOO_LONG * passed_s + late_s:
            slow.append(after)
    return flag_records("steps that took longer than the time between their timestamps", slow)


def check_shared_timestamps(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag lines that were held back and printed at once: their timestamps are too late."""
    shared = []
    for before, after in itertools.pairwise(log.records):
        same = before.time_s is not None and before.time_s == after.time_s
        if same and after.steps * (after.step_s or 0) > _NOTICEABLE_S:
            shared.append(after)
    what = "a line with the timestamp of the one before, though its steps took seconds"
    return flag_records(what, shared)
