"""What the host did while a device had nothing to do: its calls, and the longest gaps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from profkit.frame.intervals import covered_each, union
from profkit.importers.base import clean_name
from profkit.importers.kineto.events import Events, Role
from profkit.importers.kineto.steps import Steps
from profkit.importers.kineto.work import DeviceWork
from profkit.importers.reading.chrome import ChromeTrace
from profkit.importers.reading.numbers import Ints

MOST_GAPS, MOST_CALLS = 5, 3
_HALF = 0.5
"""What the host did in a gap is what took at least this share of it."""
_LEAST = 0.05
"""A call in which a smaller share of the idle time passes is not named."""
_CODE = (Role.OP, Role.ANNOTATION, Role.LAUNCH)


@dataclass
class IdleCalls:
    """The idle time of all devices, the calls in which it passed, and the longest gaps."""

    idle_ns: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    gaps: list[dict[str, Any]] = field(default_factory=list)

    def add(self, rank: int, events: Events, work: DeviceWork, steps: Steps) -> None:
        """Add the devices of one rank."""
        code, frames = events.of(*_CODE), frames_of(events.trace)
        for device in np.unique(work.device).tolist():
            own = np.flatnonzero(work.device == device)
            reach = np.maximum.accumulate(work.end[own])
            opens = np.flatnonzero(work.start[own][1:] > reach[:-1])
            start, after = reach[opens], own[opens + 1]
            end = work.start[after]
            self.idle_ns += int((end - start).sum())
            self._add_calls(events, work, start, end)
            for place in np.argsort(start - end, kind="stable")[:MOST_GAPS].tolist():
                gap = int(start[place]), int(after[place])
                found = _describe(events, work, (code, frames), *gap)
                step = int(steps.at(end[place : place + 1])[0])
                number = int(steps.number[step]) if step >= 0 else None
                self.gaps.append({"rank": rank, "step": number, **found})
        self.gaps.sort(key=lambda gap: -gap["idle_ns"])
        del self.gaps[MOST_GAPS:]

    def _add_calls(self, events: Events, work: DeviceWork, start: Ints, end: Ints) -> None:
        """Add how long the device was idle while the host was in each of its calls."""
        launchers = np.unique(events.lane[work.launch[work.launch >= 0]])
        calls = events.of(Role.LAUNCH)
        calls = calls[np.isin(events.lane[calls], launchers)]
        idle = covered_each(start, end, events.start[calls], events.end[calls])
        which = events.name[calls]
        sums = np.bincount(which, weights=idle)
        for name in np.argsort(-sums)[:MOST_CALLS].tolist():
            if not sums[name]:
                break
            own = calls[which == name]
            alone = union(events.start[own], events.end[own])  # threads may call it at once
            passed = int(covered_each(*alone, start, end).sum())
            self.calls[clean_name(events.names[name])] += passed

    @property
    def described(self) -> dict[str, Any] | None:
        """What a run's configuration says of it, or null if no device was idle."""
        if not self.gaps:
            return None
        calls = {}
        for name, ns in self.calls.most_common(MOST_CALLS):
            if ns >= _LEAST * self.idle_ns:
                calls[name] = ns
        return {"idle_ns": self.idle_ns, "calls": calls, "gaps": self.gaps}


def _describe(
    events: Events, work: DeviceWork, known: tuple[Ints, Ints], start: int, after: int
) -> dict[str, Any]:
    """Return the length of a gap before some work, and what its launching thread did in it.

    `known` are the places of the host's calls and operators, and the rows of its Python frames.
    """
    launch, gap = int(work.launch[after]), (start, int(work.start[after]))
    found: dict[str, Any] = {"idle_ns": gap[1] - start, "call": None, "line": None}
    if launch < 0:
        return found
    lane, trace = int(events.lane[launch]), events.trace
    code = known[0][events.lane[known[0]] == lane]
    found["call"] = _innermost(events, events.start[code], events.end[code], events.name[code], gap)
    frames = trace.events[known[1]]
    same = frames["process"].astype(np.int64) * len(events.names) + frames["thread"] == lane
    frames = frames[same]
    is_line = np.zeros(len(events.names), dtype=bool)
    for name in np.unique(frames["name"]).tolist():
        is_line[name] = ".py(" in events.names[name]
    frames = frames[is_line[frames["name"]]]
    ends = frames["start"] + frames["duration"]
    found["line"] = _innermost(events, frames["start"], ends, frames["name"], gap)
    return found


def frames_of(trace: ChromeTrace) -> Ints:
    """Return the rows of the trace's long frames of Python."""
    if "python_function" not in trace.names:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(trace.events["category"] == trace.names.index("python_function"))


def _innermost(
    events: Events, start: Ints, end: Ints, name: Ints, gap: tuple[int, int]
) -> str | None:
    """Return the name of the shortest of these events that takes at least half of a gap."""
    shared = np.minimum(end, gap[1]) - np.maximum(start, gap[0])
    covers = np.flatnonzero(shared >= _HALF * (gap[1] - gap[0]))
    if not len(covers):
        return None
    shortest = covers[np.argmin((end - start)[covers])]
    return clean_name(events.names[name[shortest]])
