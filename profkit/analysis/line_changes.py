"""Lines of code whose time per step differs between two runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from profkit.analysis.estimate import Z_95, Estimate, scale, subtract
from profkit.analysis.stack_samples import Place
from profkit.analysis.stacks import FEWEST_SAMPLES, LEAST_SHARE, CodeView, PhaseLines, wilson

ERROR_RATE = 0.05
"""The probability that any line of equal runs is said to differ."""


@dataclass(frozen=True)
class LineChange:
    """A line's time in one phase in both runs, and the difference; in ns per step.

    It `is_sure` if the difference is beyond chance although many lines are compared at once.
    """

    phase: str
    place: Place
    base: Estimate
    target: Estimate
    difference: Estimate
    is_sure: bool = False


@dataclass(frozen=True)
class LineChanges:
    """The lines of phases that were sampled often enough, the largest difference first.

    These are phases with enough samples in one run, if the other run has as many in all phases: a
    line that one run lacks has few samples or none there. `too_few` are the other considerable
    phases with the samples of the base and of the target.
    """

    lines: tuple[LineChange, ...]
    too_few: tuple[tuple[str, int, int], ...]


def compare_lines(base: CodeView, target: CodeView, factor: float = 1.0) -> LineChanges:
    """Compare each line in each phase; the target's times are multiplied by `factor`.

    Lines are matched by file, line and function. If the runs have no file in common, as two
    checkouts do, files are matched by their path below the folder that holds all of a run's files.
    A line that one run never saw has the interval of zero hits there.
    """
    folders = base.folder, target.folder
    if folders[0] != folders[1] and _files(base) & _files(target):
        folders = "", ""
    sides = [_by_phase(base, folders[0]), _by_phase(target, folders[1])]
    changes: list[LineChange] = []
    too_few = []
    for phase in sorted(sides[0].keys() & sides[1].keys()):
        before, after = sides[0][phase], sides[1][phase]
        enough = min(base.samples, target.samples) >= FEWEST_SAMPLES
        if enough and (before.judged or after.judged):
            changes.extend(_compare_phase(before, after, factor))
        elif max(before.step_share, after.step_share) >= LEAST_SHARE:
            too_few.append((phase, before.samples, after.samples))
    changes = mark_sure(changes, len(changes))
    changes.sort(key=lambda change: -abs(change.difference.value))
    return LineChanges(tuple(changes), tuple(too_few))


def mark_sure(changes: Sequence[LineChange], compared: int) -> list[LineChange]:
    """Mark the changes that are beyond chance if `compared` lines are compared.

    Of a hundred equal lines, five are outside their 95 % intervals. So an interval must be that
    much wider which makes an error in any of them as improbable.
    """
    wider = NormalDist().inv_cdf(1 - ERROR_RATE / 2 / max(1, compared)) / Z_95
    marked = []
    for change in changes:
        value, low, high = (getattr(change.difference, name) for name in ("value", "low", "high"))
        is_sure = low is not None and high is not None
        if is_sure:
            is_sure = value - wider * (value - low) > 0 or value + wider * (high - value) < 0
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
        lines = []
        for line in part.lines:
            file = line.place.file.removeprefix(folder)
            place = dataclasses.replace(line.place, file=file)
            lines.append(dataclasses.replace(line, place=place))
        found[part.phase] = dataclasses.replace(part, lines=tuple(lines))
    return found


def _compare_phase(before: PhaseLines, after: PhaseLines, factor: float) -> list[LineChange]:
    ours, theirs = _times(before, 1.0), _times(after, factor)
    unseen = _unseen(before, 1.0), _unseen(after, factor)
    names = _named(after) | _named(before)
    found = []
    for key in ours.keys() | theirs.keys():
        base, target = ours.get(key, unseen[0]), theirs.get(key, unseen[1])
        difference = subtract(target, base)
        found.append(LineChange(before.phase, names[key], base, target, difference))
    return found


Key = tuple[str, int, str]


def _key(place: Place) -> Key:
    return place.file, place.line, place.function


def _named(part: PhaseLines) -> dict[Key, Place]:
    return {_key(line.place): line.place for line in part.lines}


def _times(part: PhaseLines, factor: float) -> Mapping[Key, Estimate]:
    return {_key(line.place): scale(line.step_ns, factor) for line in part.lines}


def _unseen(part: PhaseLines, factor: float) -> Estimate:
    """Return the time of a line without a hit: zero, or a little more."""
    most = min(1.0, (wilson(0.0, part.independent).high or 0.0) + part.doubtful)
    return Estimate(0.0, 0.0, most * max(0.0, part.step_ns) * factor)
