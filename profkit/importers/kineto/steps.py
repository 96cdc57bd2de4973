"""Finds the steps of one rank, and the thread that trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from profkit.importers.kineto.events import STEP_NAME, Events, Role
from profkit.importers.reading import columns
from profkit.importers.reading.numbers import Ints

NOT_MARKED = "the file marks no steps; all of it counts as one step"
FROM_LOADER = "the file marks no steps; they were taken from the data loader's calls"
FROM_OPTIMIZER = "the file marks no steps; they were taken from the optimizer's calls"
LOADER_CALL = "enumerate(DataLoader)"
OPTIMIZER_CALL = "Optimizer.step"
_MARK_ROUNDING_NS = 1_000
"""Steps may overlap by a microsecond, to which old versions round their marks."""


@dataclass(frozen=True)
class Steps:
    """The steps by time, their numbers, and a flag if they were not found by marks."""

    number: Ints
    start: Ints
    end: Ints
    flag: str = ""
    overlapping: int = 0

    def at(self, time: Ints) -> Ints:
        """Return the place of the step at each time, -1 if there is none."""
        if not len(self.start):
            return np.full(len(time), -1, dtype=np.int64)
        place = np.searchsorted(self.start, time, side="right") - 1
        return np.where((place >= 0) & (time < self.end[np.maximum(place, 0)]), place, -1)

    def column_at(self, time: Ints) -> pa.Array:
        """Return a column with the number of the step at each time."""
        place = self.at(time)
        number = self.number[place] if len(self.number) else place
        return columns.numbers(number, place >= 0)

    def table(self, samples: int) -> dict[str, Any]:
        """Return the columns of the table of steps, with this many samples in each."""
        return {
            "step": self.number,
            "start_ns": self.start,
            "end_ns": self.end,
            "sample_count": np.full(len(self.number), samples, dtype=np.int64),
            "instrumented": [True] * len(self.number),
        }


def find_main_lane(events: Events) -> int:
    """Return the thread that trains, -1 if there are no events of the host.

    It is the one with the steps, else with most annotated time, else with most operators.
    """
    for role in (Role.STEP, Role.ANNOTATION, Role.OP, Role.LAUNCH):
        places = events.of(role)
        if not len(places):
            continue
        lanes, which = np.unique(events.lane[places], return_inverse=True)
        weight = (events.end - events.start)[places]
        if role is Role.OP:
            weight = np.ones(len(places), dtype=np.int64)
        return int(lanes[np.argmax(np.bincount(which, weights=weight))])
    return -1


def find_steps(events: Events, main: int) -> Steps:
    """Return the steps that are marked, else those between calls of the training thread."""
    places = events.of(Role.STEP)
    if len(places):
        return find_marked(events, places)
    loads = _find_calls(events, main, LOADER_CALL)
    if len(loads) > 1:
        start = np.sort(events.start[loads])
        last = events.end[events.of(Role.OP, Role.LAUNCH, Role.ANNOTATION)].max()
        end = np.append(start[1:], max(int(last), int(start[-1])))
        return Steps(np.arange(len(start)), start, end, FROM_LOADER)
    updates = _find_calls(events, main, OPTIMIZER_CALL)
    if len(updates) > 1:
        end = np.sort(events.end[updates])
        start = np.append(min(int(events.start.min()), int(end[0])), end[:-1])
        return Steps(np.arange(len(end)), start, end, FROM_OPTIMIZER)
    if not len(events.start):
        nothing = np.empty(0, dtype=np.int64)
        return Steps(nothing, nothing, nothing, NOT_MARKED)
    first, last = events.start.min(), events.end.max()
    return Steps(np.zeros(1, dtype=np.int64), first[None], last[None], NOT_MARKED)


def find_marked(events: Events, places: Ints) -> Steps:
    """Return the marked steps, without those that are marked twice or overlap."""
    places = places[np.lexsort((events.end[places], events.start[places]))]
    numbers = []
    for name in events.name[places]:
        found = STEP_NAME.match(events.names[name])
        numbers.append(int(found[1]) if found else 0)
    number = np.array(numbers, dtype=np.int64)
    _, first = np.unique(number, return_index=True)
    first = np.sort(first)
    start, end = events.start[places[first]], events.end[places[first]]
    latest = np.maximum.accumulate(end)
    sound = np.append(True, start[1:] >= latest[:-1] - _MARK_ROUNDING_NS)
    overlapping = len(places) - int(sound.sum())
    return Steps(number[first][sound], start[sound], end[sound], overlapping=overlapping)


def _find_calls(events: Events, main: int, call: str) -> Ints:
    """Return the places of the training thread's annotations of a call."""
    annotated = events.of(Role.ANNOTATION)
    annotated = annotated[events.lane[annotated] == main]
    found = [place for place in annotated if events.names[events.name[place]].startswith(call)]
    return np.array(found, dtype=np.int64)
