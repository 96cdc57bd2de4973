"""Steps and phases of one rank, from its annotations and from where the autograd engine ran.

PyTorch marks data loading, the optimizer and whatever users annotate; forward and backward it does
not mark. Backward is where the engine's own ranges lie: the thread that trains waits for them.
Forward is what that thread did since the phase before. Both are written on its thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from profkit.importers.kineto.events import STEP_NAME, Bools, Events, Ints, Role, plain_name
from profkit.vocab import Phase

NOT_MARKED = "the file marks no steps; all of it stands as one"
FROM_LOADER = "the file marks no steps; they were taken from the data loader's calls"
FROM_OPTIMIZER = "the file marks no steps; they were taken from the optimizer's"
TWICE = "steps that are marked twice or overlap"

_PHASES = (
    (
        Phase.DATA,
        re.compile(
            r"^enumerate\(DataLoader\)|dataloader|next_batch|wait_for_batch|data_load",
            re.IGNORECASE,
        ),
    ),
    (Phase.H2D, re.compile(r"copy_batch_to_gpu|h2d|host_to_device|to_device", re.IGNORECASE)),
    (
        Phase.ALLREDUCE,
        re.compile(r"^nccl[:A-Z]|^gloo:|all_?reduce|reduce_?scatter|all_?gather", re.IGNORECASE),
    ),
    (
        Phase.OPTIMIZER,
        re.compile(r"^Optimizer\.|optimizer|zero_grad|Optimization Step", re.IGNORECASE),
    ),
    (Phase.BACKWARD, re.compile(r"(?<![a-z])backward|(?:^|\W)bwd(?:\W|$)", re.IGNORECASE)),
    (Phase.FORWARD, re.compile(r"(?<![a-z])forward|(?:^|\W)fwd(?:\W|$)", re.IGNORECASE)),
    (Phase.OTHER, re.compile(r"eval|valid|checkpoint|save|logging", re.IGNORECASE)),
)
_BY_CATEGORY = {
    "dataloader": Phase.DATA,
    "forward": Phase.FORWARD,
    "backward": Phase.BACKWARD,
    "optimization": Phase.OPTIMIZER,
    "communication": Phase.ALLREDUCE,
}
_AUTOGRAD = re.compile(r"autograd::engine|torch::autograd::|\w+Backward\d*$")


class Span(NamedTuple):
    """One phase, or a region in one; `phase` is empty for a region whose meaning is not known yet."""

    lane: int
    start: int
    end: int
    phase: str
    name: str


@dataclass(frozen=True)
class Steps:
    """The steps by time, their numbers, and how they were found if not by marks."""

    number: Ints
    start: Ints
    end: Ints
    flag: str = ""
    overlapping: int = 0

    def at(self, time: Ints) -> Ints:
        """The place of the step that each time lies in, -1 for none."""
        if not len(self.start):
            return np.full(len(time), -1, dtype=np.int64)
        place = np.searchsorted(self.start, time, side="right") - 1
        return np.where((place >= 0) & (time < self.end[np.maximum(place, 0)]), place, -1)


def find_main_lane(events: Events) -> int:
    """The thread that trains: the one with the steps, else with most annotated time, else with most operators."""
    for role in (Role.STEP, Role.ANNOTATION, Role.OP, Role.LAUNCH):
        places = events.of(role)
        if len(places):
            lanes, which = np.unique(events.lane[places], return_inverse=True)
            weight = (
                (events.end - events.start)[places] if role is not Role.OP else np.ones(len(places))
            )
            return int(lanes[np.argmax(np.bincount(which, weights=weight))])
    return -1


def find_steps(events: Events, main: int) -> Steps:
    places = events.of(Role.STEP)
    if len(places):
        return _marked_steps(events, places)
    annotated = events.of(Role.ANNOTATION)
    annotated = annotated[events.lane[annotated] == main]
    for phase, flag in ((Phase.DATA, FROM_LOADER), (Phase.OPTIMIZER, FROM_OPTIMIZER)):
        known = np.array(
            [_is_border(events.names[each], phase) for each in events.name[annotated]], dtype=bool
        )
        if known.sum() > 1:
            return _between(
                events,
                np.sort(
                    events.start[annotated[known]]
                    if phase is Phase.DATA
                    else events.end[annotated[known]]
                ),
                phase,
                flag,
            )
    if not len(events.start):
        nothing = np.empty(0, dtype=np.int64)
        return Steps(nothing, nothing, nothing, NOT_MARKED)
    return Steps(
        np.zeros(1, dtype=np.int64), events.start.min()[None], events.end.max()[None], NOT_MARKED
    )


def _marked_steps(events: Events, places: Ints) -> Steps:
    number = np.array(
        [
            int(found[1]) if (found := STEP_NAME.match(events.names[name])) else 0
            for name in events.name[places]
        ],
        dtype=np.int64,
    )
    order = np.lexsort((events.end[places], events.start[places]))
    places, number = places[order], number[order]
    _, first = np.unique(number, return_index=True)
    first = np.sort(first)
    start, end = events.start[places[first]], events.end[places[first]]
    sound = np.append(
        True, start[1:] >= np.maximum.accumulate(end)[:-1] - 1_000
    )  # a microsecond is the old marks' rounding
    return Steps(
        number[first][sound], start[sound], end[sound], overlapping=len(places) - int(sound.sum())
    )


def _is_border(name: str, phase: Phase) -> bool:
    return name.startswith("enumerate(DataLoader)" if phase is Phase.DATA else "Optimizer.step")


def _between(events: Events, borders: Ints, phase: Phase, flag: str) -> Steps:
    """Steps from border to border; the part before the first or after the last belongs to a step of its own only if it has a border of its own."""
    if phase is Phase.DATA:
        start, end = (
            borders,
            np.append(
                borders[1:],
                max(
                    int(events.end[events.of(Role.OP, Role.LAUNCH, Role.ANNOTATION)].max()),
                    int(borders[-1]),
                ),
            ),
        )
    else:
        start, end = np.append(min(int(events.start.min()), int(borders[0])), borders[:-1]), borders
    return Steps(np.arange(len(start)), start, end, flag)


def find_phases(events: Events, main: int, steps: Steps) -> list[Span]:
    """Every phase and region, oldest first; regions that no phase contains and whose meaning is not known are left out."""
    marked = _annotations(events)
    marked += _marked_ops(events, {span.phase for span in marked})
    backward = (
        _backward(events, main)
        if not any(span.phase == Phase.BACKWARD and span.lane == main for span in marked)
        else []
    )
    inferred = [
        Span(main, start, end, Phase.BACKWARD.value, Phase.BACKWARD.value)
        for start, end in backward
    ]
    if not any(span.phase == Phase.FORWARD and span.lane == main for span in marked):
        inferred += _forward(
            events,
            main,
            [span for span in marked + inferred if span.lane == main and span.phase],
            steps,
        )
    return sorted(marked + inferred, key=lambda span: (span.lane, span.start, -span.end))


def _annotations(events: Events) -> list[Span]:
    places = events.of(Role.ANNOTATION)
    categories = events.column("category", places)
    phases = {
        (category, name): _phase(events.names[category], events.names[name])
        for category, name in zip(categories.tolist(), events.name[places].tolist(), strict=True)
    }
    rows = zip(places.tolist(), categories.tolist(), events.name[places].tolist(), strict=True)
    return [
        Span(
            int(events.lane[place]),
            int(events.start[place]),
            int(events.end[place]),
            phases[category, name],
            plain_name(events.names[name]),
        )
        for place, category, name in rows
    ]


def _marked_ops(events: Events, told: set[str]) -> list[Span]:
    """The loader's and the optimizer's ranges, which old files hold among the operators; not those of phases that are told already."""
    borders = {
        code: _phase("", name)
        for code, name in enumerate(events.names)
        if name.startswith(("enumerate(DataLoader)", "Optimizer.step"))
    }
    wanted = {code: phase for code, phase in borders.items() if phase not in told}
    places = events.of(Role.OP)
    places = places[np.isin(events.name[places], list(wanted))]
    rows = zip(
        events.lane[places].tolist(),
        events.start[places].tolist(),
        events.end[places].tolist(),
        events.name[places].tolist(),
        strict=True,
    )
    return [
        Span(lane, start, end, wanted[name], plain_name(events.names[name]))
        for lane, start, end, name in rows
    ]


def _phase(category: str, name: str) -> str:
    known = _BY_CATEGORY.get(category.casefold())
    return (
        known.value
        if known
        else next((phase.value for phase, pattern in _PHASES if pattern.search(name)), "")
    )


def _is_autograd(events: Events, places: Ints) -> Bools:
    known = np.array([_AUTOGRAD.match(name) is not None for name in events.names], dtype=bool)
    return np.asarray(known[events.name[places]])


def _backward(events: Events, main: int) -> list[tuple[int, int]]:
    """Runs of the engine's ranges with none of the training thread's own work between them."""
    ops = events.of(Role.OP)
    autograd = _is_autograd(events, ops)
    start, end = _outermost(events.start[ops[autograd]], events.end[ops[autograd]])
    if not len(start):
        return []
    own = np.sort(events.start[ops[~autograd & (events.lane[ops] == main)]])
    breaks = np.searchsorted(own, start[1:]) > np.searchsorted(own, end[:-1])
    first, last = np.append(True, breaks), np.append(breaks, True)
    return list(zip(start[first].tolist(), end[last].tolist(), strict=True))


def _outermost(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The intervals' unions, by time."""
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order]) if len(end) else end
    opens = np.append(True, start[1:] > reach[:-1]) if len(start) else np.zeros(0, dtype=bool)
    closes = np.append(opens[1:], True) if len(start) else opens
    return start[opens], reach[closes]


def _forward(events: Events, main: int, known: list[Span], steps: Steps) -> list[Span]:
    """What the training thread did between the phase before a backward, or the step's beginning, and the backward."""
    ops = events.of(Role.OP)
    own = np.sort(events.start[ops[(events.lane[ops] == main) & ~_is_autograd(events, ops)]])
    ends = np.sort(np.array([span.end for span in known], dtype=np.int64))
    found = []
    for span in known:
        if span.phase != Phase.BACKWARD or not len(own):
            continue
        before = int(np.searchsorted(ends, span.start, side="right")) - 1
        place = int(steps.at(np.array([span.start]))[0])
        since = max(
            int(ends[before]) if before >= 0 else span.start,
            int(steps.start[place]) if place >= 0 else -(2**62),
        )
        if before < 0 and place >= 0:
            since = int(steps.start[place])
        first = int(np.searchsorted(own, since))
        if first < len(own) and own[first] < span.start:
            found.append(
                Span(main, int(own[first]), span.start, Phase.FORWARD.value, Phase.FORWARD.value)
            )
    return found


class Region(NamedTuple):
    """A span as the contract has it."""

    span: Span
    phase: str
    depth: int


def nest(spans: list[Span]) -> tuple[list[Region], int]:
    """Each span's depth, and its phase where only its parent tells it; and how many were left out for having none.

    `spans` are by lane and time. A region of unknown meaning at the top is `other` if it contains no
    phase; if it does, those tell more than it.
    """
    regions: list[Region] = []
    stack: list[Region] = []
    left_out = 0
    for index, span in enumerate(spans):
        while stack and (stack[-1].span.lane != span.lane or stack[-1].span.end < span.end):
            stack.pop()
        phase = span.phase or (stack[-1].phase if stack else "")
        if not phase and _contains_phase(spans, index):
            left_out += 1
            continue
        stack.append(Region(span, phase or Phase.OTHER.value, len(stack)))
        regions.append(stack[-1])
    return regions, left_out


def _contains_phase(spans: list[Span], index: int) -> bool:
    outer = spans[index]
    for inner in spans[index + 1 :]:
        if inner.lane != outer.lane or inner.start >= outer.end:
            return False
        if inner.phase and inner.end <= outer.end:
            return True
    return False
