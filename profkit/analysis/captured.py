"""Lines of code in the few steps that were captured before and after a change."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from profkit.analysis.compiling import compiled_steps
from profkit.analysis.estimate import Ints
from profkit.analysis.kernels.windows import marked_steps
from profkit.analysis.line_changes import LineChange, compare_lines
from profkit.analysis.selection import EPOCH_START, KERNEL_WINDOW, NO_STEPS, WARM_UP, Selection
from profkit.analysis.stacks import CodeView, view_code
from profkit.text import duration
from profkit.trace import Trace
from profkit.vocab import CAPTURED_STEP, CHANGES

LEAST_SHARE_OF_CHANGE = 0.25
"""A line is named if it makes at least this share of its phase's change."""

LEAST_CAPTURED = 0.5
"""If the captured steps show less of it, that is the change, down to this share of it.

Two steps are captured soon after a change; a busy machine may make later ones longer still.
"""

OLDER_SHOW = 0.5, 1.5
"""Between captured steps of an earlier level and later ones, a phase differs by this share of the
change: something else may have changed in between.
"""

MOST_NAMED = 3


@dataclass(frozen=True)
class Captured:
    """The captured steps of one part of a run, and the lines that ran in them."""

    first: int
    last: int
    count: int
    code: CodeView
    is_older: bool = False
    """True if they are of a level before the one that is compared, which has none."""

    @property
    def words(self) -> str:
        """Return `steps 41 to 42`, or of several captures `4 captured steps from 41 to 900`."""
        level = " (of an earlier level)" if self.is_older else ""
        if self.count > self.last - self.first:
            return f"steps {self.first:,} to {self.last:,}{level}"
        return f"{self.count:,} captured steps from {self.first:,} to {self.last:,}{level}"


@dataclass(frozen=True)
class CapturedLines:
    """The lines that changed between the captured steps of two parts of a run, largest first."""

    before: Captured
    after: Captured
    lines: tuple[LineChange, ...]


def captured_steps(trace: Trace) -> Ints:
    """Return the steps of a run whose lines were captured, on any rank."""
    return marked_steps(trace.samples, CHANGES, CAPTURED_STEP)


def comparable_steps(trace: Trace, selection: Selection) -> Ints:
    """Return the captured steps that nothing but the capture made longer."""
    others = []
    for reason in (WARM_UP, KERNEL_WINDOW, EPOCH_START):
        others.append(selection.which.get(reason, NO_STEPS))
    compiled = compiled_steps(trace.steps, trace.samples)
    if not np.isin(compiled, selection.steps).any():  # else that is how the job runs
        others.append(compiled)
    known = np.intersect1d(captured_steps(trace), trace.steps["step"].to_numpy())
    return np.setdiff1d(known, np.concatenate(others))


def view_captured(trace: Trace, steps: Ints) -> Captured | None:
    """Return the lines of captured steps; `None` if they hold none."""
    code = view_code(trace.stacks, trace.frames, trace.steps, trace.spans, steps)
    if code is None:
        return None
    return Captured(int(steps[0]), int(steps[-1]), len(steps), code)


def view_before(trace: Trace, steps: Ints, begin: int, at: int) -> Captured | None:
    """Return the captured steps from `begin` until `at`, or else those of earlier levels.

    Without a request, steps are captured ever more rarely, so a short level may have none.
    """
    found = view_captured(trace, steps[(steps >= begin) & (steps < at)])
    if found is not None:
        return found
    found = view_captured(trace, steps[steps < begin])
    return None if found is None else dataclasses.replace(found, is_older=True)


def compare_captured(
    before: Captured | None, after: Captured | None, phases: Mapping[str, float]
) -> CapturedLines | None:
    """Compare the lines of captured steps, in the phases that changed by so many ns per step.

    A line counts if it surely changed, in the direction of its phase, and by enough to matter.
    """
    if before is None or after is None:
        return None
    fewest, most = OLDER_SHOW if before.is_older or after.is_older else (-math.inf, math.inf)
    compared = compare_lines(before.code, after.code, same_code=True, only=phases)
    lines = []
    for change in compared.lines:
        by = phases.get(change.phase, 0.0)
        is_named = change.is_sure and change.place.line and by
        if is_named:
            seen = (_phase_ns(after, change.phase) - _phase_ns(before, change.phase)) / by
            least = LEAST_SHARE_OF_CHANGE * min(1.0, max(LEAST_CAPTURED, seen))
            if change.difference.value / by >= least and fewest <= seen <= most:
                lines.append(change)
    return CapturedLines(before, after, tuple(lines[:MOST_NAMED]))


def _phase_ns(side: Captured, phase: str) -> float:
    return sum(each.step_ns for each in side.code.phases if each.phase == phase)


def say_line(found: CapturedLines, change: LineChange) -> str:
    """Return a line that changed, with its time in the captured steps before and after."""
    place = change.place.words(found.after.code.folder)
    return (
        f"{place} {duration(change.base.value)} in {found.before.words}, "
        f"{duration(change.target.value)} in {found.after.words}"
    )
