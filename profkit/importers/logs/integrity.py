"""What in a log must not be believed as it stands: each check is a function that yields at most one flag."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profkit.importers.logs.facts import NameHints
from profkit.importers.logs.parsed import Flag, Mean, Metadata, ParsedLog, Record, Scope
from profkit.importers.logs.times import has_year
from profkit.text import duration, percent, significant

MOST_SHOWN = 5
LARGEST_EFFICIENCY = 1.2
"""More throughput a card than on fewer cards: caches explain a few percent, nothing explains more than this."""

_DAY_S = 86_400.0
_LONGEST_PAUSE_S = 6 * 3600.0
_LONGER = 1.2
_MUCH_DATA = 2.0
_TOLERANCE = 0.05
_COARSE_S = 3.0
"""Timestamps in whole seconds tell nothing of shorter times."""
_FEWEST_SHARES = 5
_LEAST_SHARE, _LARGEST_SHARE = 0.5, 1.25
_FAST = 0.4
_STALLED = 4
_SMALL_DIFFERENCE = 0.01


@dataclass(frozen=True)
class Evidence:
    """What stands in a file beside its records."""

    hints: NameHints
    facts: Metadata
    """What the log itself says; `ParsedLog.metadata` may have it from the name."""
    evaluations: Sequence[int]
    header: tuple[int, float] | None
    """The line and the time of the file's first timestamp."""
    timed: bool = False
    """Whether step times are the timestamps', so that a throughput beside one is of something else."""


Check = Callable[[ParsedLog, Evidence], Flag | None]


def _shown(records: Sequence[Record]) -> tuple[int, ...]:
    return tuple(record.line for record in records[:MOST_SHOWN])


def _header_of_another_day(log: ParsedLog, evidence: Evidence) -> Flag | None:
    first = next((each for each in log.records if each.time_s is not None), None)
    if first is None or first.time_s is None or evidence.header is None:
        return None
    line, time_s = evidence.header
    if has_year(time_s) != has_year(first.time_s):
        return None
    apart = abs(first.time_s - time_s)
    if apart < _DAY_S or first.line == line:
        return None
    return Flag(
        f"the file's beginning is {significant(apart / _DAY_S, 2)} days from its records: parts of two runs",
        (line, first.line),
    )


def _clock_jumps(log: ParsedLog, evidence: Evidence) -> Flag | None:
    for before, after in itertools.pairwise(log.records):
        if before.time_s is None or after.time_s is None:
            continue
        gap = after.time_s - before.time_s
        if gap < (0 if evidence.timed else -60) or gap > _LONGEST_PAUSE_S + 10 * after.steps * (
            after.step_s or 0
        ):
            word = "back" if gap < 0 else "ahead"
            return Flag(
                f"the clock jumps {word} by {duration(abs(gap) * 1e9)} between two records: parts of two runs, or a pause",
                (before.line, after.line),
            )
    return None


def _precision_contradicts(log: ParsedLog, evidence: Evidence) -> Flag | None:
    said, named = evidence.facts.precision, evidence.hints.precision
    return (
        Flag(f"the log says precision {said}, the file's name says {named}")
        if said and named and said != named
        else None
    )


def _cards_contradict(log: ParsedLog, evidence: Evidence) -> Flag | None:
    said, named = log.metadata.world_size, evidence.hints.world_sizes
    if len(named) > 1:
        return Flag(
            f"the file's name speaks of runs on {' and '.join(map(str, named))} cards; this one ran on {said or 'a number that the log does not tell'}"
        )
    return (
        Flag(f"the log says {said} cards, the file's name says {named[0]}")
        if said and named and said != named[0]
        else None
    )


def _batch_contradicts(log: ParsedLog, evidence: Evidence) -> Flag | None:
    told_by_name = "batch_size" in log.metadata.from_name
    said, named = None if told_by_name else log.metadata.batch_size, evidence.hints.batch_size
    if not said or not named or log.unit == "words" or said == named:
        return None
    return Flag(f"the log says {said} samples a card, the file's name says {named}")


def _figures_contradict(log: ParsedLog, evidence: Evidence) -> Flag | None:
    """A throughput, a step time and a batch size of one line that do not go together: a damaged digit."""
    if log.times in {Mean.EPOCH, Mean.RUN} or evidence.timed or log.unit == "words":
        return None
    wrong = [
        each
        for each in log.records
        if each.throughput
        and each.step_s
        and each.samples
        and abs(each.throughput * each.step_s / each.samples - 1) > _TOLERANCE
        and each.step_s > 0.02
    ]
    if not wrong:
        return None
    return Flag(
        f"{len(wrong):,} x a throughput that contradicts the step time beside it", _shown(wrong)
    )


def _evaluation_as_data(log: ParsedLog, evidence: Evidence) -> Flag | None:
    """Records behind an evaluation or a checkpoint whose wait for data, or time, is far above the usual."""
    if log.times is Mean.STEP:
        return None
    typical_data = statistics.median(
        [each.data_s for each in log.records if each.data_s is not None] or [0.0]
    )
    typical_step = statistics.median(
        [each.step_s for each in log.records if each.step_s is not None] or [0.0]
    )
    lines = sorted(evidence.evaluations)
    booked = []
    for before, record in itertools.pairwise(log.records):
        if not any(
            before.line < line < record.line for line in _near(lines, before.line, record.line)
        ):
            continue
        extra_data = (record.data_s or 0) - typical_data
        if (
            extra_data > 0.1 * typical_step and (record.data_s or 0) > _MUCH_DATA * typical_data
        ) or (record.step_s or 0) > _LONGER * typical_step > 0:
            booked.append(record)
    if not booked:
        return None
    return Flag(
        f"{len(booked):,} x an evaluation or a checkpoint that is booked on the next line, as data time or as step time",
        _shown(booked),
    )


def _near(lines: Sequence[int], after: int, before: int) -> Sequence[int]:
    """Those of the ascending `lines` between two numbers, found without looking at all."""
    return lines[bisect_right(lines, after) : bisect_left(lines, before)]


def _data_exceeds_step(log: ParsedLog, evidence: Evidence) -> Flag | None:
    over = [
        each
        for each in log.records
        if each.data_s is not None
        and each.step_s is not None
        and each.data_s > each.step_s * 1.001 + 1e-3
    ]
    return (
        Flag(f"{len(over):,} x a wait for data longer than its step", _shown(over))
        if over
        else None
    )


def _clock_contradicts(log: ParsedLog, evidence: Evidence) -> Flag | None:
    """Step times that are not those between the timestamps: a damaged batch size or unit makes all of them wrong."""
    if evidence.timed:
        return None
    shares = []
    for before, after in itertools.pairwise(log.records):
        sampled = log.times is Mean.STEP and before.epoch != after.epoch
        if (
            sampled
            or before.time_s is None
            or after.time_s is None
            or after.step_s is None
            or after.index - before.index != after.steps
        ):
            continue
        passed = after.time_s - before.time_s
        if passed > (_COARSE_S if passed == round(passed) else 0):
            shares.append(after.steps * after.step_s / passed)
    if len(shares) < _FEWEST_SHARES or _LEAST_SHARE <= statistics.median(shares) <= _LARGEST_SHARE:
        return None
    return Flag(
        f"its step times are {significant(statistics.median(shares), 3)} x the time between its timestamps"
    )


def _too_fast(log: ParsedLog, evidence: Evidence) -> Flag | None:
    """Steps much faster than the usual one: waiting makes steps slow, nothing makes them so fast."""
    usual = _usual_step(log)
    fast = [each for each in log.records if each.step_s is not None and each.step_s < _FAST * usual]
    return (
        Flag(
            f"{len(fast):,} x a step in less than {percent(_FAST, 0)} of the usual time",
            _shown(fast),
        )
        if fast
        else None
    )


def _stalls(log: ParsedLog, evidence: Evidence) -> Flag | None:
    """Steps so slow that they alone move the mean: a stall, or a damaged digit."""
    usual = _usual_step(log)
    slow = [
        each
        for each in log.steady
        if usual and each.step_s is not None and each.step_s > _STALLED * usual
    ]
    return (
        Flag(f"{len(slow):,} x a step of more than {_STALLED} times the usual time", _shown(slow))
        if slow
        else None
    )


def _usual_step(log: ParsedLog) -> float:
    """The median step time; zero where there are too few to tell."""
    times = [each.step_s for each in log.records if each.step_s is not None]
    return statistics.median(times) if len(times) >= _FEWEST_SHARES else 0.0


def _too_slow(log: ParsedLog, evidence: Evidence) -> Flag | None:
    """Windows that state more time than passed on the clock since the line before."""
    slow = [
        after
        for before, after in itertools.pairwise(log.records)
        if before.time_s is not None
        and after.time_s is not None
        and after.time_s > before.time_s
        and after.step_s is not None
        if after.steps * after.step_s
        > 1.5 * (after.time_s - before.time_s)
        + (_COARSE_S if after.time_s == round(after.time_s) else 0.1)
    ]
    return (
        Flag(
            f"{len(slow):,} x steps that took longer than the time between their timestamps",
            _shown(slow),
        )
        if slow
        else None
    )


def _odd_batches(log: ParsedLog, evidence: Evidence) -> Flag | None:
    """Batches of another size than most: partial ones, or a damaged digit."""
    sizes = [each.samples for each in log.records if each.samples]
    if log.unit == "words" or not sizes:
        return None
    usual = statistics.median(sizes)
    odd = [
        each for each in log.records if each.samples and abs(each.samples / usual - 1) > _TOLERANCE
    ]
    return Flag(f"{len(odd):,} x a batch of another size than most", _shown(odd)) if odd else None


def _missing_lines(log: ParsedLog, evidence: Evidence) -> Flag | None:
    """Places where the step counter goes further than from line to line elsewhere."""
    pairs = [
        (before, after)
        for before, after in itertools.pairwise(log.records)
        if before.epoch == after.epoch
    ]
    distances = [after.index - before.index for before, after in pairs]
    if not distances:
        return None
    usual = statistics.mode(distances)
    jumps = [
        after
        for (_, after), distance in zip(pairs, distances, strict=True)
        if distance > max(usual, after.steps)
    ]
    return (
        Flag(f"{len(jumps):,} x lines missing: the step counter jumps", _shown(jumps))
        if jumps
        else None
    )


def _ends_early(log: ParsedLog, evidence: Evidence) -> Flag | None:
    last = log.metadata.last_step
    if (
        not log.records
        or not last
        or not log.records[-1].step < last - log.records[-1].steps
        or log.times is Mean.STEP
    ):
        return None
    return Flag(
        f"the last record is of step {log.records[-1].step:,} of {last:,}", (log.records[-1].line,)
    )


def _shared_timestamps(log: ParsedLog, evidence: Evidence) -> Flag | None:
    """Lines that were held back and printed at once: their timestamps do not tell when the steps ran."""
    shared = [
        after
        for before, after in itertools.pairwise(log.records)
        if before.time_s is not None
        and before.time_s == after.time_s
        and after.steps * (after.step_s or 0) > 2
    ]
    return (
        Flag(
            f"{len(shared):,} x a line with the timestamp of the one before, though its steps took seconds",
            _shown(shared),
        )
        if shared
        else None
    )


def _stated_differs(log: ParsedLog, evidence: Evidence) -> Flag | None:
    """A stated mean throughput that the records do not give, where all of its steps are printed."""
    stated = next(
        (
            each
            for each in log.stated
            if each.what == "throughput" and each.how.startswith("arithmetic mean")
        ),
        None,
    )
    told = [each.throughput for each in log.records if each.throughput is not None]
    one_epoch = len({each.epoch for each in log.records}) == 1
    complete = bool(log.records) and log.records[-1].index - log.records[0].index + 1 == sum(
        each.steps for each in log.records
    )
    if stated is None or stated.value <= 0 or not told or not one_epoch or not complete:
        return None
    mean = statistics.fmean(told)
    if abs(mean / stated.value - 1) <= _SMALL_DIFFERENCE:
        return None
    return Flag(
        f"states a mean throughput of {significant(stated.value, 5)} {stated.unit}; its records give {significant(mean, 5)}",
        (stated.line,),
    )


def _stated_is_not_measured(log: ParsedLog, evidence: Evidence) -> Flag | None:
    """A stated throughput that the steady steps do not give: another mean, other steps, or time that is left out."""
    stated = next((each for each in log.stated if each.what == "throughput"), None)
    mean = log.mean_throughput
    if (
        stated is None
        or stated.value <= 0
        or mean is None
        or abs(mean / stated.value - 1) <= _TOLERANCE
    ):
        return None
    return Flag(
        f"states {significant(stated.value, 4)} {stated.unit} ({stated.how}); its steady steps give {significant(mean, 4)}",
        (stated.line,),
    )


def _no_samples(log: ParsedLog, evidence: Evidence) -> Flag | None:
    if log.records and not any(each.samples for each in log.records):
        return Flag(
            "the log does not say how many samples a step trains on (--samples-per-step tells it); throughput cannot be judged"
        )
    return None


def _few_windows(log: ParsedLog, evidence: Evidence) -> Flag | None:
    count = len(log.steady)
    return (
        Flag(f"only {count} lines about training: differences of a few percent cannot be judged")
        if 0 < count < 8
        else None
    )


CHECKS: tuple[Check, ...] = (
    _header_of_another_day,
    _clock_jumps,
    _precision_contradicts,
    _cards_contradict,
    _batch_contradicts,
    _figures_contradict,
    _evaluation_as_data,
    _data_exceeds_step,
    _clock_contradicts,
    _too_fast,
    _too_slow,
    _stalls,
    _odd_batches,
    _missing_lines,
    _ends_early,
    _shared_timestamps,
    _stated_differs,
    _stated_is_not_measured,
    _no_samples,
    _few_windows,
)


def check(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Every flag that one log by itself deserves."""
    return [flag for each in CHECKS if (flag := each(log, evidence))]


def flag_unlike(runs: Sequence[ParsedLog]) -> list[ParsedLog]:
    """The runs of one file, flagged where their throughputs are too far apart to be of one configuration."""
    means = [each.mean_throughput for each in runs]
    known = [mean for mean in means if mean]
    if len(known) < 2 or max(known) <= LARGEST_EFFICIENCY * min(known):
        return list(runs)
    text = f"the runs in the file differ {significant(max(known) / min(known), 3)} x in throughput: what its name says holds for one of them at most"
    return [dataclasses.replace(each, flags=(*each.flags, Flag(text))) for each in runs]


def per_card(log: ParsedLog) -> float | None:
    """The log's mean throughput of one card."""
    mean = log.mean_throughput
    return (
        mean / (log.metadata.world_size or 1)
        if mean is not None and log.scope is Scope.ALL
        else mean
    )


def efficiency(base: ParsedLog, target: ParsedLog) -> float | None:
    """The target's throughput a card over the base's."""
    before, after = per_card(base), per_card(target)
    return after / before if before and after is not None else None


def check_efficiency(base: ParsedLog, target: ParsedLog) -> Flag | None:
    """A scaling efficiency that cannot be: the logs are of different precisions, batches or machines, whatever their names say."""
    found = efficiency(base, target)
    if (
        found is None
        or found <= LARGEST_EFFICIENCY
        or (base.metadata.world_size or 1) >= (target.metadata.world_size or 1)
    ):
        return None
    cards = f"{base.metadata.world_size or 1} to {target.metadata.world_size or 1} cards"
    return Flag(
        f"an efficiency of {percent(found, 0)} from {cards} cannot be: the two logs are not of the same job"
    )
