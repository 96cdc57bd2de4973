"""Lines of code on which one rank spends another time than the other ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from profkit.analysis.line_changes import LineChange, compare_lines, find_unseen, mark_sure
from profkit.analysis.stacks import (
    FEWEST_SAMPLES,
    CodeView,
    LineTime,
    PhaseLines,
    view_code,
)
from profkit.frame.columns import split_ranks
from profkit.frame.estimate import Estimate, Ints
from profkit.trace import Trace

MOST_RANKS = 64
"""The lines of more ranks are not compared: reading each rank's samples takes a moment."""


def lines_by_rank(trace: Trace, used: Ints) -> dict[int, tuple[LineChange, ...]]:
    """Return the lines on which single ranks of a run certainly spend another time, by rank.

    The base is the mean of the other ranks. Lines that take longer than there are first, the
    largest first: a late rank waits less than the others, which is no reason for anything.
    """
    ranks = np.unique(trace.stacks["rank"].to_numpy()).tolist()
    if not 2 <= len(ranks) <= MOST_RANKS:
        return {}
    views = {}
    stacks, frames = split_ranks(trace.stacks), split_ranks(trace.frames)
    steps, spans = split_ranks(trace.steps), split_ranks(trace.spans)
    for rank in ranks:
        view = view_code(stacks[rank], frames[rank], steps[rank], spans[rank], used)
        if view is not None:
            views[rank] = dataclasses.replace(view, folder="")
    return compare_ranks(views)


def compare_ranks(views: Mapping[int, CodeView]) -> dict[int, tuple[LineChange, ...]]:
    """Compare the lines of each rank with their mean on the other ranks."""
    found: dict[int, list[LineChange]] = {}
    compared = 0
    if len(views) < 2:
        return {}
    for rank, view in views.items():
        others = []
        for number, other in views.items():
            if number != rank:
                others.append(other)
        found[rank] = list(compare_lines(_mean_of(others), view, same_code=True).lines)
        compared += len(found[rank])
    sure: dict[int, tuple[LineChange, ...]] = {}
    for rank, changes in found.items():
        marked = [change for change in mark_sure(changes, compared) if change.is_sure]
        marked.sort(key=lambda change: change.difference.value <= 0)
        if marked:
            sure[rank] = tuple(marked)
    return sure


def _mean_of(views: Sequence[CodeView]) -> CodeView:
    """Return the mean over ranks of each line's time, if each rank has enough samples."""
    fewest = min(view.samples for view in views)
    by_phase: dict[str, list[PhaseLines]] = {}
    for view in views:
        for part in view.phases:
            by_phase.setdefault(part.phase, []).append(part)
    phases = []
    for name, parts in by_phase.items():
        samples = sum(part.samples for part in parts)
        step_ns = float(np.mean([part.step_ns for part in parts]))
        step_share = float(np.mean([part.step_share for part in parts]))
        independent = sum(part.independent for part in parts)
        lines: tuple[LineTime, ...] = ()
        functions: tuple[LineTime, ...] = ()
        if fewest >= FEWEST_SAMPLES:
            lines = _mean_lines(parts, [part.lines for part in parts], step_ns)
            functions = _mean_lines(parts, [part.functions for part in parts], step_ns)
        doubtful = float(np.mean([part.doubtful for part in parts]))
        figures = step_ns, step_share, samples, independent
        phases.append(PhaseLines(name, *figures, lines, doubtful, functions))
    return dataclasses.replace(views[0], samples=fewest, phases=tuple(phases))


def _mean_lines(
    parts: Sequence[PhaseLines], times_of: Sequence[Sequence[LineTime]], step_ns: float
) -> tuple[LineTime, ...]:
    """Return the mean over ranks of lines, or of functions, whichever the times are of."""
    seen: dict[tuple[str, int, str], list[LineTime]] = {}
    for each in times_of:
        for line in each:
            seen.setdefault(line.place.key, []).append(line)
    unseen = [find_unseen(part) for part in parts]
    unseen.sort(key=lambda line: line.step_ns.high or 0.0)
    found = []
    for seen_lines in seen.values():
        lines = [*seen_lines, *unseen[: len(parts) - len(seen_lines)]]
        mean = _mean_estimate([line.step_ns for line in lines])
        below, above = np.mean([line.doubt_ns for line in lines], axis=0).tolist()
        share = Estimate(mean.value / step_ns if step_ns > 0 else 0.0)
        place = dataclasses.replace(lines[0].place, below="")
        samples = sum(line.samples for line in lines)
        found.append(LineTime(place, share, mean, samples, (below, above)))
    return tuple(found)


def _mean_estimate(times: Sequence[Estimate]) -> Estimate:
    """Return the mean of independent figures; without the bounds of one there are none."""
    value = float(np.mean([time.value for time in times]))
    below = above = 0.0
    for time in times:
        if time.low is None or time.high is None:
            return Estimate(value)
        below += (time.value - time.low) ** 2
        above += (time.high - time.value) ** 2
    return Estimate(value, value - below**0.5 / len(times), value + above**0.5 / len(times))
