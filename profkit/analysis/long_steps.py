"""The few steps that took far longer than all others, also those that are in no figure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profkit.frame.costs import MOST_OUTLIERS_SHARE, OUTLIER_FACTOR
from profkit.frame.notices import is_log
from profkit.frame.phases import UNKNOWN, StepTimes
from profkit.frame.run_frame import RunFrame
from profkit.frame.selection import CAPTURED, NO_STEPS, SWITCHED_OFF

MOST_LONG_STEPS = 3

LARGE_SHARE = 0.5
"""A phase is named if it took at least this share of a long step."""

NOTABLE_SHARE = 0.05
"""The mean without the long steps is reported if they took at least this share of the time."""

_AS_USUAL = (CAPTURED, SWITCHED_OFF)
"""Reasons to exclude steps in which the job does what it does in all others."""


@dataclass(frozen=True)
class LongStep:
    """A step that took far longer than a usual one."""

    step: int
    wall_ns: float
    usual_ns: float
    phase: str = ""
    """The phase that took most of it, or `unknown`; empty if none did, or if none was recorded."""
    phase_ns: float = 0.0
    left_out: str = ""
    """Why the step is in no figure; empty if it is in them."""


@dataclass(frozen=True)
class LongSteps:
    """The longest of a run's few long steps, and the other steps that are in its figures."""

    longest: tuple[LongStep, ...] = ()
    others: int = 0
    others_ns: float | None = None
    """Their mean; `None` if the long steps in the figures took little of the time."""


def find_long_steps(frame: RunFrame) -> LongSteps:
    """Return the longest of them, or none if many steps are that long, as in most evaluations.

    Nothing is said of a log or of a sample, whose steps are not all known.
    """
    trace, selection = frame.trace, frame.selection
    if is_log(trace) or selection.level or not len(selection.steps):
        return LongSteps()
    reasons = dict.fromkeys(selection.steps.tolist(), "")
    for reason in _AS_USUAL:
        reasons |= dict.fromkeys(selection.which.get(reason, NO_STEPS).tolist(), reason)
    known = np.array(sorted(reasons), dtype=np.int64)
    times = frame.times(known)
    used = np.isin(known, selection.steps)
    usual_ns = float(np.median(times.wall_ns[used]))
    is_far = times.wall_ns > OUTLIER_FACTOR * usual_ns
    far = np.flatnonzero(is_far)
    if not usual_ns or len(far) > max(1, MOST_OUTLIERS_SHARE * len(known)):
        return LongSteps()
    found = []
    for place in far[np.argsort(-times.wall_ns[far])][:MOST_LONG_STEPS]:
        step = int(known[place])
        found.append(_describe(times, int(place), step, reasons[step], usual_ns))
    others_ns = times.wall_ns[used & ~is_far]
    is_notable = others_ns.sum() < (1 - NOTABLE_SHARE) * times.wall_ns[used].sum()
    mean_ns = float(others_ns.mean()) if is_notable else None
    return LongSteps(tuple(found), len(others_ns), mean_ns)


def _describe(times: StepTimes, place: int, step: int, reason: str, usual_ns: float) -> LongStep:
    wall_ns = float(times.wall_ns[place])
    largest = int(np.argmax(times.parts[:, place]))
    phase, phase_ns = times.names[largest], float(times.parts[largest, place])
    has_phases = reason != SWITCHED_OFF and times.names != (UNKNOWN,)
    if not has_phases or phase_ns < LARGE_SHARE * wall_ns:
        phase, phase_ns = "", 0.0
    return LongStep(step, wall_ns, usual_ns, phase, phase_ns, reason)
