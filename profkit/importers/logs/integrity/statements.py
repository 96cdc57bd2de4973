"""Checks of what the log and the file's name state, against each other and the records."""

from __future__ import annotations

import statistics

from profkit.analysis.matrix import FULL_PRECISIONS
from profkit.importers.logs.integrity.evidence import TOLERANCE, Evidence
from profkit.importers.logs.parsed import VARYING, Flag, ParsedLog, Stated
from profkit.text import plural, significant

_SMALL_DIFFERENCE = 0.01
_FEW_RECORDS = 8


def check_precision(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    stated, named = evidence.facts.precision, evidence.hints.precision
    if not stated or not named or (stated in FULL_PRECISIONS) == (named in FULL_PRECISIONS):
        return []
    return [Flag(f"the log says precision {stated}, the file's name says {named}")]


def check_cards(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    stated, named = log.metadata.world_size, evidence.hints.world_sizes
    if len(named) > 1:
        several = " and ".join(map(str, named))
        own = stated or "an unknown number"
        return [Flag(f"the file's name speaks of runs on {several} cards; this one ran on {own}")]
    if not stated or not named or stated == named[0]:
        return []
    return [Flag(f"the log says {stated} cards, the file's name says {named[0]}")]


def check_batch(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    stated, named = log.metadata.batch_size, evidence.hints.batch_size
    if not stated or not named or stated == named:
        return []
    if log.unit in VARYING or "batch_size" in log.metadata.from_name:
        return []
    return [Flag(f"the log says {stated} samples per card, the file's name says {named}")]


def check_command(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag a command that asks for something else than the log then shows."""
    flags = []
    metadata, asked = log.metadata, log.metadata.command_batch
    card, total = metadata.batch_size, metadata.global_batch_size
    if asked and (card or total) and log.unit not in VARYING:
        times = metadata.accumulation or 1
        if asked not in {card, total, (card or 0) / times, (total or 0) / times}:
            flags.append(Flag(f"the command asks for a batch of {asked}, the log shows {card}"))
    wanted, stated = metadata.command_precision, evidence.facts.precision
    if wanted and stated and (wanted in FULL_PRECISIONS) != (stated in FULL_PRECISIONS):
        flags.append(Flag(f"the command asks for precision {wanted}, the log says {stated}"))
    return flags


def check_last_step(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag a log that ends before its last step."""
    last_step = log.metadata.last_step
    if not log.records or not last_step or log.times.is_single:
        return []
    record = log.records[-1]
    if record.step >= last_step - record.steps:
        return []
    text = f"the last record is of step {record.step:,} of {last_step:,}"
    return [Flag(text, (record.line,))]


def _first_stated_throughput(log: ParsedLog, how: str = "") -> Stated | None:
    for each in log.stated:
        if each.what == "throughput" and each.how.startswith(how):
            if each.value > 0:
                return each
            break
    return None


def check_stated_mean(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag a stated mean throughput that the records do not give, if they show all its steps."""
    stated = _first_stated_throughput(log, "arithmetic mean")
    throughputs = [each.throughput for each in log.records if each.throughput is not None]
    if stated is None or not throughputs:
        return []
    epochs = {each.epoch for each in log.records}
    shown = sum(each.steps for each in log.records)
    if len(epochs) > 1 or log.records[-1].index - log.records[0].index + 1 != shown:
        return []
    mean = statistics.fmean(throughputs)
    if abs(mean / stated.value - 1) <= _SMALL_DIFFERENCE:
        return []
    text = (
        f"states a mean throughput of {significant(stated.value, 5)} {stated.unit}; "
        f"its records give {significant(mean, 5)}"
    )
    return [Flag(text, (stated.line,))]


def check_stated_throughput(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag a stated throughput that differs from that of the steady steps.

    It is another kind of mean, it is about other steps, or it excludes some of the time.
    """
    stated, mean = _first_stated_throughput(log), log.mean_throughput
    if stated is None or mean is None or abs(mean / stated.value - 1) <= TOLERANCE:
        return []
    text = (
        f"states {significant(stated.value, 4)} {stated.unit} ({stated.how}); "
        f"its steady steps give {significant(mean, 4)}"
    )
    return [Flag(text, (stated.line,))]


def check_samples(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag a log without batch sizes."""
    for record in log.records:
        if record.samples:
            return []
    if not log.records:
        return []
    return [
        Flag(
            "the log does not say how many samples a step trains on, so there is no throughput; "
            "give --samples-per-step"
        )
    ]


def check_record_count(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Flag a log with too few records for a comparison."""
    count = len(log.steady)
    if not 0 < count < _FEW_RECORDS:
        return []
    lines = plural(count, "line")
    return [Flag(f"only {lines} about training: differences of a few percent are inconclusive")]
