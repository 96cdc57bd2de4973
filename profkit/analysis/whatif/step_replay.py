"""Replays the steps of a `StepModel`: all steps at once, rank by rank and event by event."""

from __future__ import annotations

import dataclasses

import numpy as np

from profkit.analysis.whatif.meetings import ReplayError
from profkit.analysis.whatif.step_model import DATA, EXCHANGE, OWN, Line, StepModel, set_part
from profkit.frame.estimate import Floats

MOST_PASSES = 6
"""A rank that is late at the end of a step begins the next one late; this settles in few passes."""

LOADER_PASSES = 3
"""Waits for batches and waits for ranks depend on each other; they settle as quickly."""


def replay(model: StepModel) -> Floats:
    """Return the length of each step by (rank, step), in ns.

    If workers make the batches, the waits for them are replayed as well.
    """
    if not any(map(_has_workers, model.lines)):
        return _replay(model)
    walls = _replay(model)
    for _ in range(LOADER_PASSES):
        lines = []
        for line, wall in zip(model.lines, walls, strict=True):
            lines.append(feed(line, wall))
        model = dataclasses.replace(model, lines=tuple(lines))
        walls = _replay(model)
    return walls


def _has_workers(line: Line) -> bool:
    return line.loader is not None and line.loader.workers > 0


def feed(line: Line, wall: Floats) -> Line:
    """Return a rank with the waits that its loader makes if its steps are as long as these."""
    if line.loader is None or not line.loader.workers:
        return line
    busy = wall - line.work[:, DATA].sum(axis=0)
    waits = line.loader.waits(np.maximum(busy, 0.0))
    return dataclasses.replace(line, work=set_part(line.work, DATA, waits))


def _replay(model: StepModel) -> Floats:
    own, after = [], []
    for line in model.lines:
        own.append(line.work[:, OWN].sum(axis=1))
        after.append(line.work[:, EXCHANGE])
    alike = are_alike(model)
    if alike:
        own_of_all, after_all = np.stack(own), np.stack(after)
    else:
        order = order_events(model)
    late = np.zeros_like(model.wall)
    for _ in range(MOST_PASSES):
        if alike:
            ends = _pass_alike(model, own_of_all, after_all, late)
        else:
            ends = _pass(model, order, own, after, late)
        behind = ends - ends.min(axis=0)
        carried = np.concatenate([np.zeros((len(behind), 1)), behind[:, :-1]], axis=1)
        settled = np.allclose(carried, late, rtol=0, atol=1.0)
        if settled or not model.members:
            break
        late = carried
    return ends - late


def _pass(
    model: StepModel,
    order: list[tuple[int, int]],
    own: list[Floats],
    after: list[Floats],
    late: Floats,
) -> Floats:
    """Return when each rank ends each step, from when it begins it."""
    clocks = [begin + waits[0] for begin, waits in zip(late, after, strict=True)]
    ready: dict[int, Floats] = {}
    for place, event in order:
        clock = clocks[place] + own[place][event]
        what = model.lines[place].events[event]
        if isinstance(what, int):
            known = ready.get(what)
            ready[what] = clock if known is None else np.maximum(known, clock)
        else:
            for number in what:
                clock = np.maximum(clock, _end(model, ready, number))
        clocks[place] = clock + after[place][event + 1]
    for place, work in enumerate(own):
        clocks[place] = clocks[place] + work[-1]
    return np.stack(clocks)


def are_alike(model: StepModel) -> bool:
    """Return true if all ranks launch the same collectives and wait for them in one order."""
    events, launched = model.lines[0].events, set[int]()
    if any(line.events != events for line in model.lines):
        return False
    for what in events:
        if isinstance(what, int):
            launched.add(what)
            continue
        for number in what:
            chained = number
            while chained >= 0:
                if chained not in launched or len(model.members[chained]) > len(model.lines):
                    return False
                chained = model.previous[chained]
    return True


def _pass_alike(model: StepModel, own: Floats, after: Floats, late: Floats) -> Floats:
    """Return the same as `_pass` for ranks that are alike, all of them at once."""
    clocks = late + after[:, 0]
    ready: dict[int, Floats] = {}
    for event, what in enumerate(model.lines[0].events):
        clocks = clocks + own[:, event]
        if isinstance(what, int):
            ready[what] = clocks.max(axis=0)
        else:
            for number in what:
                clocks = np.maximum(clocks, _end(model, ready, number))
        clocks = clocks + after[:, event + 1]
    return clocks + own[:, -1]


def _end(model: StepModel, ready: dict[int, Floats], number: int) -> Floats:
    """Return when a collective ends, all of whose ranks are ready; keep it for the next one."""
    done = -1 - number
    if done not in ready:
        begin = ready[number]
        if model.previous[number] >= 0:
            begin = np.maximum(begin, _end(model, ready, model.previous[number]))
        ready[done] = begin + model.transfer[number]
    return ready[done]


def order_events(model: StepModel) -> list[tuple[int, int]]:
    """Return the events, as rank and place, so that a wait comes after all it waits for."""
    position, launched = [0] * len(model.lines), dict[int, int]()
    order: list[tuple[int, int]] = []
    before = -1
    while before < len(order):
        before = len(order)
        for place, line in enumerate(model.lines):
            while position[place] < len(line.events):
                what = line.events[position[place]]
                if isinstance(what, int):
                    launched[what] = launched.get(what, 0) + 1
                elif not all(is_complete(model, launched, number) for number in what):
                    break
                order.append((place, position[place]))
                position[place] += 1
    if position != [len(line.events) for line in model.lines]:
        raise ReplayError("ranks wait for collectives that others launch only afterwards")
    return order


def is_complete(model: StepModel, launched: dict[int, int], number: int) -> bool:
    """Return true if all ranks have launched a collective and those before it."""
    while number >= 0:
        if launched.get(number, 0) < len(model.members[number]):
            return False
        number = model.previous[number]
    return True
