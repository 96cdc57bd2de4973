"""Counts the events of a rank's trace that became no row."""

from __future__ import annotations

import numpy as np

from profkit.importers.base import RunDraft
from profkit.importers.kineto.events import Events, Role
from profkit.importers.kineto.steps import Steps


def count_dropped(draft: RunDraft, events: Events, excluded_spans: int, steps: Steps) -> None:
    """Count the events that became no row, by what they are."""
    trace = events.trace
    is_half = np.isin(trace.events["kind"], (ord("B"), ord("E")))
    counts = {
        "host operators (the kernels name theirs)": len(events.of(Role.OP)),
        "host calls (the kernels have their launches)": len(events.of(Role.LAUNCH)),
        "waits of the host for the device": len(events.of(Role.SYNC)),
        "annotations on the device (the host has them too)": len(events.of(Role.DEVICE_ANNOTATION)),
        "Python frames, marks and counters": trace.ignored + len(events.of(Role.STACK)),
        "events of unknown categories": len(events.of(Role.UNKNOWN)),
        "begin and end marks": int(is_half.sum()),
        "annotations around phases": excluded_spans,
        "steps that are marked twice or overlap": steps.overlapping,
        "calls of the loader, or marks, that no training followed": steps.idle,
        "broken events": trace.broken,
        "arguments of collectives, over the limit": trace.lost_extras,
    }
    for what, count in counts.items():
        if count:
            draft.dropped[what] += count
