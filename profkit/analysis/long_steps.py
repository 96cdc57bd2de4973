"""The few steps that took far longer than all others, also those that are in no figure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profkit.analysis.costs import MOST_OUTLIERS_SHARE, OUTLIER_FACTOR
from profkit.analysis.notices import is_log
from profkit.analysis.phases import UNKNOWN, step_times
from profkit.analysis.selection import CAPTURED, NO_STEPS, SWITCHED_OFF, Selection
from profkit.trace import Trace

MOST_LONG_STEPS = 3

LARGE_SHARE = 0.5
"""A phase is named if it took at least this share of a long step."""

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


def find_long_steps(trace: Trace, selection: Selection) -> tuple[LongStep, ...]:
    """Return the longest of them, or none if many steps are that long, as in most evaluations.

    Nothing is said of a log or of a thinned run, whose steps are not all known.
    """
    if is_log(trace) or trace.sums.num_rows or not len(selection.steps):
        return ()
    reasons = dict.fromkeys(selection.steps.tolist(), "")
    for reason in _AS_USUAL:
        reasons |= dict.fromkeys(selection.which.get(reason, NO_STEPS).tolist(), reason)
    known = np.array(sorted(reasons), dtype=np.int64)
    times = step_times(trace.steps, trace.spans, known)
    usual_ns = float(np.median(times.wall_ns[np.isin(known, selection.steps)]))
    far = np.flatnonzero(times.wall_ns > OUTLIER_FACTOR * usual_ns)
    if not usual_ns or len(far) > max(1, MOST_OUTLIERS_SHARE * len(known)):
        return ()
    found = []
    for place in far[np.argsort(-times.wall_ns[far])][:MOST_LONG_STEPS]:
        reason, wall_ns = reasons[int(known[place])], float(times.wall_ns[place])
        largest = int(np.argmax(times.parts[:, place]))
        phase, phase_ns = times.names[largest], float(times.parts[largest, place])
        has_phases = reason != SWITCHED_OFF and times.names != (UNKNOWN,)
        if not has_phases or phase_ns < LARGE_SHARE * wall_ns:
            phase, phase_ns = "", 0.0
        found.append(LongStep(int(known[place]), wall_ns, usual_ns, phase, phase_ns, reason))
    return tuple(found)
