"""Lines of code whose time per step differs between two runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from profkit.analysis.stack_samples import Place
from profkit.analysis.stacks import (
    FEWEST_SAMPLES,
    LEAST_SHARE,
    CodeView,
    LineTime,
    PhaseLines,
    wilson,
)
from profkit.frame.estimate import Z_95, Estimate, scale, subtract

FEWEST_OF_SAME_CODE = 15
"""Fewer samples of a phase are not compared with those of the same code, in a few captured steps.

Python that holds the interpreter has hardly more. Their differences have intervals as wide as that.
"""

ERROR_RATE = 0.05
"""The probability that any line of equal runs is said to differ."""


@dataclass(frozen=True)
class LineChange:
    """A line's time in one phase in both runs, and the difference; in ns per step.

    It `is_sure` if the difference is beyond chance although many lines are compared at once. By
    `doubt_ns` its interval is longer on each side than chance alone would make it.
    """

    phase: str
    place: Place
    base: Estimate
    target: Estimate
    difference: Estimate
    is_sure: bool = False
    doubt_ns: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class LineChanges:
    """The lines of phases that were sampled often enough, the largest difference first.

    These are phases with enough samples in one run, if the other run has as many in all phases: a
    line that one run lacks has few samples or none there. `too_few` are the other considerable
    phases with the samples of the base and of the target. `moved` are functions in which some lines
    make up for others, as they do if an edit has moved them.
    """

    lines: tuple[LineChange, ...]
    too_few: tuple[tuple[str, int, int], ...]
    moved: tuple[Place, ...] = ()


def compare_lines(
    base: CodeView,
    target: CodeView,
    factor: float = 1.0,
    *,
    same_code: bool = False,
    only: Collection[str] | None = None,
) -> LineChanges:
    """Compare each line in each phase, or in the phases `only`.

    The fewer lines are compared, the smaller a sure difference is. The target's times are
    multiplied by `factor`. Lines are matched by file, line and function. If the runs have no file
    in common, as two checkouts do, files are matched by their path below the folder that holds all
    of a run's files.
    A line that one run never saw has the interval of zero hits there. A function is compared as a
    whole if no line of it surely differs, or if an edit may have moved its lines.
    """
    folders = base.folder, target.folder
    if folders[0] != folders[1] and _files(base) & _files(target):
        folders = "", ""
    sides = [_by_phase(base, folders[0]), _by_phase(target, folders[1])]
    changes: list[LineChange] = []
    whole: list[LineChange] = []
    too_few = []
    phases = sides[0].keys() & sides[1].keys()
    for phase in sorted(phases if only is None else phases & set(only)):
        before, after = sides[0][phase], sides[1][phase]
        enough = min(base.samples, target.samples) >= FEWEST_SAMPLES
        is_open = before.judged or after.judged
        if same_code:
            is_open = max(before.samples, after.samples) >= FEWEST_OF_SAME_CODE
        if enough and is_open:
            changes.extend(_compare_all(before, after, factor, lambda part: part.lines))
            whole.extend(_compare_all(before, after, factor, lambda part: part.functions))
        elif max(before.step_share, after.step_share) >= LEAST_SHARE:
            too_few.append((phase, before.samples, after.samples))
    for function in whole[:]:
        if len([change for change in changes if _is_in(change, function)]) < 2:
            whole.remove(function)
    compared = len(changes) + len(whole)
    changes, whole = mark_sure(changes, compared), mark_sure(whole, compared)
    changes, moved = _join_lines(changes, whole, same_code=same_code)
    changes.sort(key=lambda change: -abs(change.difference.value))
    return LineChanges(tuple(changes), tuple(too_few), tuple(moved))


def _join_lines(
    changes: list[LineChange], whole: Sequence[LineChange], *, same_code: bool
) -> tuple[list[LineChange], list[Place]]:
    """Add the functions that are compared as a whole, and return which of them may have moved.

    Their lines may have if other lines of the function make up for more than half of a change.
    """
    moved: list[Place] = []
    for function in whole:
        of_it = [change for change in changes if change.is_sure and _is_in(change, function)]
        kept = [function.difference.value / change.difference.value for change in of_it]
        if not same_code and min(kept, default=1.0) < 0.5:
            moved.append(function.place)
            for number, change in enumerate(changes):
                if change in of_it:
                    changes[number] = dataclasses.replace(change, is_sure=False)
            of_it = []
        if function.is_sure and not of_it:
            changes.append(function)
    return changes, moved


def _is_in(change: LineChange, function: LineChange) -> bool:
    names = [(each.phase, each.place.file, each.place.function) for each in (change, function)]
    return names[0] == names[1]


def mark_sure(changes: Sequence[LineChange], compared: int) -> list[LineChange]:
    """Mark the changes that are beyond chance if `compared` lines are compared.

    Of a hundred equal lines, five are outside their 95 % intervals. So an interval must be that
    much wider which makes an error in any of them as improbable. What is doubtful has bounds.
    """
    wider = NormalDist().inv_cdf(1 - ERROR_RATE / 2 / max(1, compared)) / Z_95
    marked = []
    for change in changes:
        value, low, high = (getattr(change.difference, name) for name in ("value", "low", "high"))
        is_sure = low is not None and high is not None
        if is_sure:
            below, above = change.doubt_ns
            lowest = value - wider * (value - low - below) - below
            highest = value + wider * (high - value - above) + above
            is_sure = lowest > 0 or highest < 0
        marked.append(dataclasses.replace(change, is_sure=is_sure))
    return marked


def _files(view: CodeView) -> set[str]:
    found: set[str] = set()
    for part in view.phases:
        found.update(line.place.file for line in part.lines if line.place.line)
    return found


def _by_phase(view: CodeView, folder: str) -> dict[str, PhaseLines]:
    """Return the phases by name, with the paths of files below the folder."""
    found = {}
    for part in view.phases:
        lines, functions = _below(part.lines, folder), _below(part.functions, folder)
        found[part.phase] = dataclasses.replace(part, lines=lines, functions=functions)
    return found


def _below(lines: Sequence[LineTime], folder: str) -> tuple[LineTime, ...]:
    shown = []
    for line in lines:
        place = dataclasses.replace(line.place, file=line.place.file.removeprefix(folder))
        shown.append(dataclasses.replace(line, place=place))
    return tuple(shown)


def _compare_all(
    before: PhaseLines,
    after: PhaseLines,
    factor: float,
    times: Callable[[PhaseLines], Sequence[LineTime]],
) -> list[LineChange]:
    """Compare the lines of a phase, or the functions, whichever `times` returns."""
    ours = {line.place.key: line for line in times(before)}
    theirs = {line.place.key: line for line in times(after)}
    found = []
    for key in ours.keys() | theirs.keys():
        place = (theirs.get(key) or ours[key]).place
        base, target = ours.get(key) or find_unseen(before), theirs.get(key) or find_unseen(after)
        found.append(_compare(before.phase, place, base, target, factor))
    return found


def _compare(
    phase: str, place: Place, base: LineTime, target: LineTime, factor: float
) -> LineChange:
    """Return the difference. Deviations by chance add up as squares, and doubts as they are."""
    below = target.doubt_ns[0] * factor + base.doubt_ns[1]
    above = target.doubt_ns[1] * factor + base.doubt_ns[0]
    change = subtract(scale(_by_chance(target), factor), _by_chance(base))
    if change.low is not None and change.high is not None:
        change = dataclasses.replace(change, low=change.low - below, high=change.high + above)
    after = scale(target.step_ns, factor)
    return LineChange(phase, place, base.step_ns, after, change, doubt_ns=(below, above))


def _by_chance(line: LineTime) -> Estimate:
    """Return a line's time with the interval that it would have without doubt."""
    value, low, high = line.step_ns.value, line.step_ns.low, line.step_ns.high
    if low is None or high is None:
        return line.step_ns
    return Estimate(value, min(value, low + line.doubt_ns[0]), max(value, high - line.doubt_ns[1]))


def find_unseen(part: PhaseLines) -> LineTime:
    """Return the time of a line without a hit: zero, or a little more."""
    step_ns = max(0.0, part.step_ns)
    most, doubt_ns = (wilson(0.0, part.independent).high or 0.0) * step_ns, part.doubtful * step_ns
    time_ns = Estimate(0.0, 0.0, min(step_ns, most + doubt_ns))
    return LineTime(Place("", 0, ""), Estimate(0.0), time_ns, 0, (0.0, doubt_ns))
