"""Compares the figures of tables with logs, and speed-ups with their throughputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profkit.importers.texts.log_values import LogRun
from profkit.importers.texts.tables import Figure
from profkit.importers.texts.values import Finding, Outcome, Value, What
from profkit.text import amount

TOLERANCE = 0.05
"""Throughputs agree if they differ by less: publishers tolerate as much."""
_CLOSE = 0.005
"""Times that a text rounds agree if they differ by less."""
_LOSS_RANGE = 0.05
"""A loss outside of the log's own range contradicts it if it is farther away than this share."""


def check_figures(figures: Sequence[Figure], runs: Sequence[LogRun]) -> Iterator[Finding]:
    """Compare each figure with the only log of its setting."""
    for figure in figures:
        known = []
        for run in runs:
            if _fits(figure, run) and (values := run.of(figure.value.what)):
                known.append((values, run.cards))
        if len(known) == 1:
            yield judge_figure(figure.value, *known[0])
        elif known:
            names = ", ".join(dict.fromkeys(values[0].file for values, _ in known))
            why = f"{len(known)} runs have this setting, so it is not clear whose it is: {names}"
            yield Finding(Outcome.INCONCLUSIVE, figure.value, (), why)


def check_speed_ups(figures: Sequence[Figure]) -> Iterator[Finding]:
    """Compare each printed speed-up with the throughputs of its row and of one card."""
    speeds = [each for each in figures if each.value.what is What.THROUGHPUT]
    for figure in figures:
        if figure.value.what is not What.SPEED_UP:
            continue
        own = [each for each in speeds if each.value.line == figure.value.line]
        first = []
        for each in speeds:
            alike = each.stated(What.PRECISION) == figure.stated(What.PRECISION)
            if alike and each.stated(What.CARDS) == {1}:
                first.append(each)
        if len(own) != 1 or len(first) != 1 or own == first:
            continue
        (low, high), (least, most) = _printed(own[0].value), _printed(first[0].value)
        stated_low, stated_high = _printed(figure.value)
        possible = least > 0 and low / most <= stated_high and high / least >= stated_low
        outcome = Outcome.AGREES if possible else Outcome.CONTRADICTS
        yield Finding(outcome, figure.value, (first[0].value, own[0].value))


def _printed(value: Value) -> tuple[float, float]:
    """Return the numbers that are printed as this one, which is rounded to its digits."""
    printed = value.words.rpartition(": ")[2].strip(" *%")
    half = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    return float(value.value) - half, float(value.value) + half


def _fits(figure: Figure, run: LogRun) -> bool:
    """Return true if a log is of a figure's setting, as far as both state it; cards they must."""
    if run.cards is None or figure.stated(What.CARDS) != {run.cards}:
        return False
    if figure.framework and figure.framework not in run.framework.lower():
        return False
    batches, precisions = figure.stated(What.BATCH), figure.stated(What.PRECISION)
    if len(batches) > 1 or len(precisions) > 1:
        return False
    if run.batch is not None and batches and not batches & {run.batch, run.batch * run.cards}:
        return False
    return run.precision is None or not precisions or precisions == {run.precision}


def judge_figure(stated: Value, found: Sequence[Value], cards: int | None) -> Finding:
    """Compare a figure with all that a log says of it; one that agrees is enough."""
    value = stated.value
    numbers = [each for each in found if not isinstance(each.value, str)]
    if isinstance(value, str) or not numbers:
        return Finding(Outcome.INCONCLUSIVE, stated, tuple(found))
    if stated.what is What.LOSS:
        levels = [float(each.value) for each in numbers]
        if min(levels) * (1 - _LOSS_RANGE) <= value <= max(levels) * (1 + _LOSS_RANGE):
            why = "it is in the range of the log's losses"
            return Finding(Outcome.AGREES, stated, tuple(numbers), why)
        # Other losses than those that the log prints can be true.
        return Finding(Outcome.CONTRADICTS, stated, tuple(numbers))
    tolerance = TOLERANCE if stated.what is What.THROUGHPUT else _CLOSE
    for each in numbers:
        if _differs(value, float(each.value)) <= tolerance:
            return Finding(Outcome.AGREES, stated, (each,))
    if stated.what is What.THROUGHPUT and cards and cards > 1:
        for each in numbers:
            if _differs(value * cards, float(each.value)) <= tolerance:
                of_one = amount(float(each.value) / cards)
                why = f"it may be the figure of one card, which is {of_one}"
                return Finding(Outcome.INCONCLUSIVE, stated, (each,), why)
    return Finding(Outcome.CONTRADICTS, stated, tuple(numbers))


def _differs(one: float, other: float) -> float:
    if other:
        return abs(one / other - 1)
    return abs(one)
