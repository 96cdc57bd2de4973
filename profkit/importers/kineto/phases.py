"""Finds the phases of one rank, from its annotations and the autograd engine's operators.

PyTorch marks data loading, the optimizer and what users annotate, but not forward and backward.
Backward is the time of the engine's own operators, because the training thread waits for them.
Forward is what the training thread did since the phase before. Both become spans of that thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from profkit.analysis.kernels.categories import COPY_CATEGORIES, copy_category
from profkit.frame.intervals import union
from profkit.frame.phases import UNKNOWN
from profkit.importers.kineto.events import Events, Role, is_autograd
from profkit.importers.kineto.steps import COLLECTIVE_CALL, LOADER_CALL, OPTIMIZER_CALL, Steps
from profkit.importers.kineto.work import DeviceWork
from profkit.importers.reading.numbers import Ints
from profkit.vocab import Phase

_NAMES = {
    Phase.DATA: r"^enumerate\(DataLoader\)|dataloader|next_batch|wait_for_batch|data_load",
    Phase.H2D: r"copy_batch_to_gpu|h2d|host_to_device|to_device",
    Phase.ALLREDUCE: COLLECTIVE_CALL.pattern,
    Phase.OPTIMIZER: r"^Optimizer\.|optimizer|zero_grad|Optimization Step",
    Phase.BACKWARD: r"(?<![a-z])backward|(?:^|\W)bwd(?:\W|$)",
    Phase.FORWARD: r"(?<![a-z])forward|(?:^|\W)fwd(?:\W|$)",
    Phase.OTHER: r"(?<![a-z])(?:eval|valid|sav(?:e|ing)|logging)|checkpoint(?!function|ing)",
}
"""Patterns of names in small or capital letters; the first one that matches counts."""
_PHASE_OF_NAME = [(phase, re.compile(words, re.IGNORECASE)) for phase, words in _NAMES.items()]
_COMPUTED = {Phase.FORWARD, Phase.BACKWARD}
_HOOK = re.compile(
    r"^FSDP::|(?<![a-z])(?:pre|post)_?(?:forward|backward)|hook|prefetch|callback", re.IGNORECASE
)
"""Names of what happens around a forward or a backward, such as gathering the parameters."""
_PHASE_OF_CATEGORY = {
    "dataloader": Phase.DATA,
    "forward": Phase.FORWARD,
    "backward": Phase.BACKWARD,
    "optimization": Phase.OPTIMIZER,
    "communication": Phase.ALLREDUCE,
}
_OWN_NAMES = {phase.value: phase for phase in Phase}
"""The ranges that profkit opens in a job that another profiler records."""

_BEFORE_FORWARD = frozenset(
    each.value for each in (Phase.DATA, Phase.H2D, Phase.BACKWARD, Phase.OPTIMIZER)
)
_CONVERSION = "aten::to"
_ZEROING = re.compile(r"(?:zero|clear)_?grad", re.IGNORECASE)
_NEVER = np.iinfo(np.int64).min


class PhaseSpan(NamedTuple):
    """A phase or a region in one; `phase` is empty while the region's meaning is unknown."""

    lane: int
    start: int
    end: int
    phase: str
    name: str


class NestedSpan(NamedTuple):
    """A span with its depth and its phase, which may be that of the span around it."""

    span: PhaseSpan
    phase: str
    depth: int


def find_phases(events: Events, main: int, steps: Steps, work: DeviceWork) -> list[PhaseSpan]:
    """Return every phase and region, by thread and time."""
    spans = find_annotations(events)
    spans += find_marked_operators(events, {span.phase for span in spans})
    if not _has_phase(spans, main, Phase.H2D):
        spans += find_copies(events, main, work)
    if not _has_phase(spans, main, Phase.BACKWARD):
        name = Phase.BACKWARD.value
        for start, end in find_backward(events, main):
            spans.append(PhaseSpan(main, start, end, name, name))
    if not _has_phase(spans, main, Phase.FORWARD):
        spans += find_forward(events, main, spans, steps)
    return sorted(spans, key=lambda span: (span.lane, span.start, -span.end))


def _has_phase(spans: Sequence[PhaseSpan], lane: int, phase: Phase) -> bool:
    return any(span.phase == phase and span.lane == lane for span in spans)


def find_annotations(events: Events) -> list[PhaseSpan]:
    places = events.of(Role.ANNOTATION)
    categories = events.column("category", places).tolist()
    phases: dict[tuple[int, int], str] = {}
    spans = []
    for place, category in zip(places.tolist(), categories, strict=True):
        name = int(events.name[place])
        text = events.names[name]
        if (category, name) not in phases:
            phases[category, name] = _phase_of(events.names[category], text)
        phase = phases[category, name]
        start, end = int(events.start[place]), int(events.end[place])
        spans.append(PhaseSpan(int(events.lane[place]), start, end, phase, text))
    return spans


def find_marked_operators(events: Events, known: set[str]) -> list[PhaseSpan]:
    """Return the loader's and optimizer's calls among operators, if not `known` already."""
    phases = {}
    for code, text in enumerate(events.names):
        if text.startswith((LOADER_CALL, OPTIMIZER_CALL)):
            phase = _phase_of("", text)
            if phase not in known:
                phases[code] = phase
    places = events.of(Role.OP)
    places = places[np.isin(events.name[places], list(phases))]
    spans = []
    for place in places.tolist():
        name = int(events.name[place])
        lane, start, end = events.lane[place], events.start[place], events.end[place]
        text = events.names[name]
        spans.append(PhaseSpan(int(lane), int(start), int(end), phases[name], text))
    return spans


def find_copies(events: Events, main: int, work: DeviceWork) -> list[PhaseSpan]:
    """Return the training thread's conversions of tensors that copied to the device."""
    to_device = np.zeros(max(1, len(events.names)), dtype=bool)
    copies = events.role[work.place] == Role.COPY
    for name in np.unique(events.name[work.place[copies]]).tolist():
        to_device[name] = copy_category(events.names[name]) == COPY_CATEGORIES["HtoD"]
    launched = work.launch[copies & to_device[events.name[work.place]]]
    launched = launched[launched >= 0]
    times = np.sort(events.start[launched[events.lane[launched] == main]])
    ops = events.of(Role.OP)
    known = np.array([name == _CONVERSION for name in events.names], dtype=bool)
    ops = ops[known[events.name[ops]] & (events.lane[ops] == main)]
    start, end = events.start[ops], events.end[ops]
    copied = np.searchsorted(times, end, side="right") > np.searchsorted(times, start)
    pairs = zip(start[copied].tolist(), end[copied].tolist(), strict=True)
    return [PhaseSpan(main, *pair, Phase.H2D.value, _CONVERSION) for pair in pairs]


def _phase_of(category: str, name: str) -> str:
    """Return the phase that a category or a name states, or an empty text."""
    known = _PHASE_OF_CATEGORY.get(category.casefold()) or _OWN_NAMES.get(name)
    if known:
        return known.value
    found = [phase for phase, pattern in _PHASE_OF_NAME if pattern.search(name)]
    if not found or (found[0] in _COMPUTED and (_HOOK.search(name) or set(found) >= _COMPUTED)):
        return ""
    return found[0].value


def find_backward(events: Events, main: int) -> list[tuple[int, int]]:
    """Return runs of the engine's operators, between operators of the training thread itself."""
    ops = events.of(Role.OP)
    autograd = is_autograd(events, ops)
    if not autograd.any():
        return []
    # Overlapping operators of the engine are one run.
    place = ops[autograd]
    place = place[np.argsort(events.start[place], kind="stable")]
    start, reach = events.start[place], np.maximum.accumulate(events.end[place])
    opens = np.append(True, start[1:] > reach[:-1])
    start, end = start[opens], reach[np.append(opens[1:], True)]
    own = np.sort(events.start[ops[~autograd & (events.lane[ops] == main)]])
    breaks = np.searchsorted(own, start[1:]) > np.searchsorted(own, end[:-1])
    first, last = np.append(True, breaks), np.append(breaks, True)
    return list(zip(start[first].tolist(), end[last].tolist(), strict=True))


def find_forward(
    events: Events, main: int, spans: Sequence[PhaseSpan], steps: Steps
) -> list[PhaseSpan]:
    """Return what the training thread did before each backward.

    It begins with the thread's first operator after the batch was there, after the last update or
    backward, or after the step's start. What else the thread did meanwhile is nested in it.
    """
    lane = [span for span in spans if span.lane == main]
    lane.sort(key=lambda span: (span.start, -span.end))
    known = [span for span in lane if span.phase]
    regions = [span for span in lane if not span.phase]
    own = _own_operators(events, main, known)
    ends = np.sort(_bounds(filter(_ends_before_forward, known))[1])
    region_start, region_end = _bounds(regions)
    name = Phase.FORWARD.value
    found = []
    for span, inside in _outer_backwards(known):
        bounds = [inside]
        before = int(np.searchsorted(ends, span.start, side="right")) - 1
        if before >= 0:
            bounds.append(int(ends[before]))
        place = int(steps.at(np.array([span.start]))[0])
        if place >= 0:
            bounds.append(int(steps.start[place]))
        first = int(np.searchsorted(own, max(bounds)))
        if max(bounds) == _NEVER or first == len(own) or own[first] >= span.start:
            continue
        # The region of the user around the first operator belongs to the forward as a whole.
        begin = int(own[first])
        around = slice(*np.searchsorted(region_start, (max(bounds), begin + 1)).tolist())
        is_around = (region_end[around] > begin) & (region_end[around] <= span.start)
        begin = min(region_start[around][is_around].tolist(), default=begin)
        found.append(PhaseSpan(main, begin, span.start, name, name))
    return found


def _ends_before_forward(span: PhaseSpan) -> bool:
    """Return whether the forward comes after this.

    Gradients may be zeroed in its midst, and labels copied to the device.
    """
    is_inside = span.name == _CONVERSION or _ZEROING.search(span.name)
    return span.phase in _BEFORE_FORWARD and not is_inside


def _outer_backwards(known: Sequence[PhaseSpan]) -> Iterator[tuple[PhaseSpan, int]]:
    """Yield each backward that is in no other, and the start of the phase around it."""
    open_spans: list[PhaseSpan] = []
    until = _NEVER
    for span in known:
        while open_spans and open_spans[-1].end <= span.start:
            open_spans.pop()
        if span.phase == Phase.BACKWARD and span.start >= until:
            yield span, open_spans[-1].start if open_spans else _NEVER
            until = span.end
        open_spans.append(span)


def _own_operators(events: Events, main: int, known: Sequence[PhaseSpan]) -> Ints:
    """Return when the training thread's operators began that belong to no other phase."""
    ops = events.of(Role.OP)
    own = np.sort(events.start[ops[(events.lane[ops] == main) & ~is_autograd(events, ops)]])
    start, end = _bounds(known)
    backward = np.sort(_bounds(span for span in known if span.phase == Phase.BACKWARD)[0])
    # A phase around a backward has the forward in it.
    other = np.searchsorted(backward, start) == np.searchsorted(backward, end)
    if not other.any():
        return own
    start, end = union(start[other], end[other])
    place = np.searchsorted(start, own, side="right") - 1
    return np.asarray(own[(place < 0) | (own >= end[np.maximum(place, 0)])])


def _bounds(spans: Iterable[PhaseSpan]) -> tuple[Ints, Ints]:
    """Return the starts and the ends of spans."""
    pairs = np.array([(span.start, span.end) for span in spans], dtype=np.int64)
    start, end = pairs.reshape(-1, 2).T
    return start, end


def nest(spans: Sequence[PhaseSpan]) -> tuple[list[NestedSpan], int]:
    """Return each span with its depth and phase, and the number of excluded spans.

    `spans` are sorted by thread and time. A region of unknown meaning has the phase of the span
    around it. At the top it is unknown, or is excluded if it contains phases, which say more.
    """
    nested: list[NestedSpan] = []
    open_spans: list[NestedSpan] = []
    excluded = 0
    for index, span in enumerate(spans):
        while open_spans:
            outer = open_spans[-1].span
            if outer.lane == span.lane and outer.end >= span.end:
                break
            open_spans.pop()
        phase = span.phase
        if not phase and open_spans:
            phase = open_spans[-1].phase
        if not phase and _contains_phase(spans, index):
            excluded += 1
            continue
        open_spans.append(NestedSpan(span, phase or UNKNOWN, len(open_spans)))
        nested.append(open_spans[-1])
    return nested, excluded


def _contains_phase(spans: Sequence[PhaseSpan], index: int) -> bool:
    outer = spans[index]
    for place in range(index + 1, len(spans)):
        inner = spans[place]
        if inner.lane != outer.lane or inner.start >= outer.end:
            return False
        if inner.phase and inner.end <= outer.end:
            return True
    return False
