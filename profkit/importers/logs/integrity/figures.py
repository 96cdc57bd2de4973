"""Checks of the records' figures against each other and against the usual ones."""

from __future__ import annotations

import itertools
import statistics

from profkit.importers.logs.integrity.evidence import (
    MIN_VALUES,
    TOLERANCE,
    Evidence,
    flag_records,
)
from profkit.importers.logs.marks import WINDOWS
from profkit.importers.logs.parsed import VARYING, Flag, Mean, ParsedLog, Record
from profkit.text import percent

_FAST = 0.4
_SLOW = 4
_OTHER_PACE = 1.25
_SHORT_STEP_S = 0.02
"""Shorter step times have too few digits to be compared with a throughput."""


def check_throughputs(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag lines whose throughput, step time and batch size disagree: a digit is damaged."""
    is_cumulative = log.times in {Mean.EPOCH, Mean.RUN}
    if is_cumulative or evidence.timed_by_clock or log.unit in VARYING:
        return []
    wrong = []
    for record in log.records:
        if not record.throughput or not record.step_s or not record.samples:
            continue
        ratio = record.throughput * record.step_s / record.samples
        if abs(ratio - 1) > TOLERANCE and record.step_s > _SHORT_STEP_S:
            wrong.append(record)
    return flag_records("a throughput that contradicts the step time of its line", wrong)


def check_evaluations(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag records that include the time of an evaluation or a checkpoint before them."""
    included = [each for each in log.records if each.other_s]
    what = (
        "an evaluation or a checkpoint that the next line includes; what it takes longer than "
        "usual counts as other"
    )
    return flag_records(what, included)


def check_data_waits(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    over = []
    for record in log.records:
        if record.data_s is None or record.step_s is None:
            continue
        if record.data_s > record.step_s * 1.001 + 1e-3:  # both are rounded
            over.append(record)
    return flag_records("a wait for data longer than its step", over)


def check_fast_steps(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag steps much faster than usual: waiting slows steps down, but nothing speeds them up."""
    limit_s = _FAST * _usual_step(log)
    fast = []
    for each in log.records:
        if each.step_s is not None and each.step_s < limit_s:
            fast.append(each)
    return flag_records(f"a step in less than {percent(_FAST, 0)} of the usual time", fast)


def check_paces(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag windows between marks of another pace than most: a time or a count is damaged."""
    if log.grammar != WINDOWS:
        return []
    usual_s, odd = _usual_step(log), []
    for each in log.records[1:]:  # the first has the start in it
        if usual_s and each.step_s and not 1 / _OTHER_PACE < each.step_s / usual_s < _OTHER_PACE:
            odd.append(each)
    return flag_records("a window of another pace than most", odd)


def check_slow_steps(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag steps so slow that they change the mean: a stall or a damaged digit."""
    limit_s = _SLOW * _usual_step(log)
    slow: list[Record] = []
    if limit_s:
        slow = []
        for each in log.steady:
            if each.step_s is not None and each.step_s > limit_s:
                slow.append(each)
    return flag_records(f"a step of more than {_SLOW} times the usual time", slow)


def _usual_step(log: ParsedLog) -> float:
    """Return the median step time, or zero if there are too few."""
    times = []
    for each in log.records:
        if each.step_s is not None:
            times.append(each.step_s)
    if len(times) < MIN_VALUES:
        return 0.0
    return statistics.median(times)


def check_batches(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag batches of another size than most: they are partial, or a digit is damaged."""
    sizes = []
    for each in log.records:
        if each.samples:
            sizes.append(each.samples)
    if log.unit in VARYING or not sizes:
        return []
    usual = statistics.median(sizes)
    odd = []
    for record in log.records:
        if record.samples and abs(record.samples / usual - 1) > TOLERANCE:
            odd.append(record)
    return flag_records("a batch of another size than most", odd)


def check_missing_lines(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag places where the step counter advances further than between most lines."""
    distances: list[int] = []
    later: list[Record] = []
    for before, after in itertools.pairwise(log.records):
        if before.epoch == after.epoch:
            distances.append(after.index - before.index)
            later.append(after)
    if not distances:
        return []
    usual = statistics.mode(distances)
    jumps = []
    for record, distance in zip(later, distances, strict=True):
        if distance > max(usual, record.steps):
            jumps.append(record)
    return flag_records("lines missing: the step counter jumps", jumps)
