"""Finds the steps of one rank, and the thread that trains."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profkit.importers.base import clean_name
from profkit.importers.kineto.events import STEP_NAME, Events, Role, is_autograd
from profkit.importers.kineto.work import DeviceWork
from profkit.importers.reading import columns
from profkit.importers.reading.numbers import Bools, Ints
from profkit.trace.flag import Flag, FlagKind

NOT_MARKED = Flag("the file marks no steps; all of it counts as one step", FlagKind.NOTE)
AT_DEVICE_PACE = Flag(
    "the host ran ahead of its device, which has the last word: a step lasts from the end of the "
    "device's work of the step before to the end of its own",
    FlagKind.NOTE,
)
FROM_LOADER = Flag(
    "the file marks no steps; they were taken from the data loader's calls", FlagKind.NOTE
)
FROM_OPTIMIZER = Flag(
    "the file marks no steps; they were taken from the optimizer's calls", FlagKind.NOTE
)
FROM_ANNOTATION = "the file marks no steps; they were taken from the annotation {}, which repeats"
FROM_KERNELS = Flag(
    "the file marks no steps; its kernels repeat, and each period counts as a step "
    "(it may be a layer of the model)",
    FlagKind.NOTE,
)
LOADER_CALL = "enumerate(DataLoader)"
OPTIMIZER_CALL = "Optimizer.step"
COLLECTIVE_CALL = re.compile(
    r"^nccl|^gloo:|^c10d::|all_?reduce|reduce_?scatter|all_?gather|all_?(?:to|2)_?all",
    re.IGNORECASE,
)
MIN_ANNOTATED = 0.25
"""An annotation with less of the annotated time says too little about the steps."""
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
    idle: int = 0
    """Calls of the loader and marks that are no steps, because nothing was trained after them."""

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


_AHEAD = 0.02
"""The host runs ahead if the device's work of a step ends later and later by this share of time."""


def pace_by_device(steps: Steps, work: DeviceWork) -> Steps:
    """Return the steps as the device ends them, if it falls ever further behind the host."""
    place = steps.at(work.launch_time)
    count, known = len(steps.number), place >= 0
    ends = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(ends, place[known], work.end[known])
    if count < MIN_PERIODS or (ends < steps.end).any() or (np.diff(ends) <= 0).any():
        return steps
    behind = ends - steps.end
    if behind[-1] - behind[0] < _AHEAD * (steps.end[-1] - steps.end[0]):
        return steps
    start = np.append(steps.start[0], ends[:-1])
    return dataclasses.replace(steps, start=start, end=ends, flag=steps.flag or AT_DEVICE_PACE)


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


def find_steps(events: Events, main: int, work: DeviceWork) -> Steps:
    """Return the steps that are marked, else those that repeat.

    These are taken from calls of the loader or the optimizer, an annotation, or the kernels.
    """
    places = events.of(Role.STEP)
    if len(places):
        return _without_idle_end(events, find_marked(events, places), work)
    loads = _find_calls(events, main, LOADER_CALL)
    if len(loads) > 1:
        return _from_loader(events, loads, work)
    updates = _find_calls(events, main, OPTIMIZER_CALL)
    if len(updates) > 1:
        end = np.sort(events.end[updates])
        start = np.append(min(int(events.start.min()), int(end[0])), end[:-1])
        return Steps(np.arange(len(end)), start, end, FROM_OPTIMIZER)
    if repeated := _find_repeated(events, main, work):
        return repeated
    if not len(events.start):
        nothing = np.empty(0, dtype=np.int64)
        return Steps(nothing, nothing, nothing, NOT_MARKED)
    first, last = events.start.min(), events.end.max()
    return Steps(np.zeros(1, dtype=np.int64), first[None], last[None], NOT_MARKED)


def _find_repeated(events: Events, main: int, work: DeviceWork) -> Steps | None:
    """Return the steps that an annotation or the kernels show by their repetition."""
    regions = _find_repeated_annotation(events, main)
    if len(regions):
        name = events.names[events.name[regions[0]]]
        return _from_starts(
            events, regions, Flag(FROM_ANNOTATION.format(clean_name(name)), FlagKind.NOTE)
        )
    kernels = np.flatnonzero(events.role[work.place] == Role.KERNEL)
    kernels = kernels[np.argsort(work.launch_time[kernels], kind="stable")]
    times = work.launch_time[kernels]
    starts = find_period_starts(events.name[work.place[kernels]], times)
    if len(starts) > 1:
        count = len(starts) - 1
        return Steps(np.arange(count), times[starts[:-1]], times[starts[1:]], FROM_KERNELS)
    return None


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


def _without_idle_end(events: Events, steps: Steps, work: DeviceWork) -> Steps:
    """Exclude a last mark without training: the profiler opens it after the last step."""
    if _find_busy(events, steps.start, steps.end, work)[-1]:
        return steps
    columns_of = (steps.number[:-1], steps.start[:-1], steps.end[:-1])
    return Steps(*columns_of, overlapping=steps.overlapping, idle=1)


def _from_loader(events: Events, loads: Ints, work: DeviceWork) -> Steps:
    """Return a step from each call that training follows to the next call.

    The others are those that find an epoch at its end, and those of an evaluation.
    """
    loads = loads[np.argsort(events.start[loads], kind="stable")]
    every = _from_starts(events, loads, FROM_LOADER)
    trains = _find_busy(events, events.end[loads], every.end, work)
    start = every.start.copy()
    # If most batches take two calls, they come from two loaders, and the first call begins a step.
    pairs = np.flatnonzero(trains[1:] & ~trains[:-1])
    if 2 * len(pairs) > trains.sum():
        start[pairs + 1] = start[pairs]
    count = int(trains.sum())
    idle = len(loads) - count
    return Steps(np.arange(count), start[trains], every.end[trains], FROM_LOADER, idle=idle)


def _find_busy(events: Events, start: Ints, end: Ints, work: DeviceWork) -> Bools:
    """Return the windows with training in them.

    Training is an operator of the autograd engine or an optimizer's step. If no window has any,
    device work counts, else operators, else every window.
    """
    ops = events.of(Role.OP)
    updates = np.array([name.startswith(OPTIMIZER_CALL) for name in events.names], dtype=bool)
    both = events.of(Role.OP, Role.ANNOTATION)
    trained = np.append(ops[is_autograd(events, ops)], both[updates[events.name[both]]])
    for evidence in (events.start[trained], work.launch_time, events.start[ops]):
        times = np.sort(evidence)
        busy = np.searchsorted(times, end) > np.searchsorted(times, start)
        if busy.any():
            return np.asarray(busy)
    return np.ones(len(start), dtype=bool)


def _from_starts(events: Events, calls: Ints, flag: str) -> Steps:
    """Return a step from each of these events to the next one."""
    start = np.sort(events.start[calls])
    last = events.end[events.of(Role.OP, Role.LAUNCH, Role.ANNOTATION)].max()
    end = np.append(start[1:], max(int(last), int(start[-1])))
    return Steps(np.arange(len(start)), start, end, flag)


def _find_calls(events: Events, main: int, call: str) -> Ints:
    """Return the places of a call on the training thread, as old files have it an operator.

    A step may have several such calls of different names; the rarest of them ends it.
    """
    known = np.array([name.startswith(call) for name in events.names], dtype=bool)
    for role in (Role.ANNOTATION, Role.OP):
        places = events.of(role)
        if not known.any() or not len(places):
            continue
        places = places[known[events.name[places]] & (events.lane[places] == main)]
        names, counts = np.unique(events.name[places], return_counts=True)
        repeated = counts > 1
        if repeated.any():
            rarest = names[repeated][np.argmin(counts[repeated])]
            return np.asarray(places[events.name[places] == rarest])
    return np.empty(0, dtype=np.int64)


def _find_repeated_annotation(events: Events, main: int) -> Ints:
    """Return the places of the training thread's annotation that repeats and takes most time.

    Regions inside others are left out, and so are collectives: a step has many.
    """
    places = events.of(Role.ANNOTATION)
    places = places[events.lane[places] == main]
    places = places[np.lexsort((-events.end[places], events.start[places]))]
    nothing = np.empty(0, dtype=np.int64)
    if not len(places):
        return nothing
    reach = np.maximum.accumulate(events.end[places])
    places = places[np.append(True, events.start[places[1:]] >= reach[:-1])]
    names, which, counts = np.unique(events.name[places], return_inverse=True, return_counts=True)
    total = np.bincount(which, weights=(events.end - events.start)[places])
    for place, name in enumerate(names.tolist()):
        if counts[place] < MIN_PERIODS or COLLECTIVE_CALL.search(events.names[name]):
            total[place] = 0
    most = int(np.argmax(total))
    span = int(events.end[places[-1]] - events.start[places[0]])
    if total[most] < MIN_ANNOTATED * span:
        return nothing
    return np.asarray(places[which == most])


# Finds the period of work that repeats, for files in which nothing marks the steps.
#
# A step launches the same kernels as the one before. So a kernel that runs once per step stands at
# equal distances in the sequence of all kernels, and the sequence between two of them repeats.
# Layers of a model repeat as well, but what comes before the first of them is no end of a layer.
# So the whole file must repeat, from its first kernel to its last.
MIN_ALIKE = 0.95
"""Two periods are alike if so many of their kernels are the same, place by place."""
MIN_PERIODS = 3
"""Two periods may be alike by chance."""
MIN_KERNELS = 8
"""Fewer kernels are no step, but the same operator called again and again."""
MOST_CANDIDATES = 64
"""At most this many numbers of periods are tried, the smallest first."""


def find_period_starts(names: npt.NDArray[np.integer], times: Ints) -> Ints:
    """Return the places in a sequence of kernels at which each whole period begins.

    `names` are numbers, `times` are those of their launches. The last place is the end of the last
    whole period. The result is empty if the sequence does not repeat.
    """
    nothing = np.empty(0, dtype=np.int64)
    if not len(names):
        return nothing
    distinct, counts = np.unique(names, return_counts=True)
    for count in np.unique(counts[counts >= MIN_PERIODS])[:MOST_CANDIDATES].tolist():
        for name in distinct[counts == count][:MOST_CANDIDATES]:
            places = np.flatnonzero(names == name)
            length = int(np.median(np.diff(places)))
            if length < MIN_KERNELS or length * count < len(names) - 2 * length:
                continue
            if not _repeats(names, length):
                continue
            # A step begins at the place of a period before which the host pauses longest.
            pauses = np.diff(times, prepend=times[:1])
            whole = len(names) // length * length
            usual = np.median(pauses[:whole].reshape(-1, length), axis=0)
            return np.arange(int(np.argmax(usual)), len(names), length)
    return nothing


def _repeats(names: npt.NDArray[np.integer], length: int) -> bool:
    """Return whether a sequence is like itself one period later, in each of its parts."""
    alike = names[length:] == names[:-length]
    if not len(alike):
        return False
    parts = np.add.reduceat(alike, np.arange(0, len(alike), length))
    sizes = np.minimum(length, len(alike) - np.arange(0, len(alike), length))
    return bool((parts >= MIN_ALIKE * sizes).all())
