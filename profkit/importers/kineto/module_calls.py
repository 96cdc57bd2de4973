"""Finds the call of a module that launched each piece of work of a window."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from profkit.collectors._origins import Origins
from profkit.importers.kineto.events import Events, Role
from profkit.importers.kineto.work import find_innermost
from profkit.importers.reading import columns
from profkit.importers.reading.numbers import MISSING, Ints
from profkit.instrument.windows.module_calls import ModuleCall


def module_columns(
    events: Events, launch: tuple[Ints, Ints, Ints], calls: Sequence[ModuleCall], offset: int
) -> dict[str, Any]:
    """Return the module and the line behind each launch: its lane, or -1, and its extent.

    A backward has those of its forward, because torch joins their operators. `offset` leads from
    the file's clock to that of the calls.
    """
    if not calls:
        return {}
    calls = calls[::-1]  # a call that ends later is around one with the same times
    lane, time, _ = launch
    around = _as_events(events, calls, offset)
    places = np.arange(len(calls))
    found = find_innermost(around, places, lane, time)
    forward = _forward_of(events, *launch)
    behind = np.flatnonzero((found < 0) & (forward >= 0))
    operator = forward[behind]
    found[behind] = find_innermost(around, places, events.lane[operator], events.start[operator])
    shown = functools.cache(Origins().shown)
    module_ids: dict[str, int] = {}
    line_ids: dict[str, int] = {}
    codes = np.full((2, len(calls) + 1), columns.NULL, dtype=np.int64)  # the last one is for none
    for place, call in enumerate(calls):
        codes[0, place] = module_ids.setdefault(call.module, len(module_ids))
        if call.file:
            words = f"{shown(call.file)}:{call.line}"
            codes[1, place] = line_ids.setdefault(words, len(line_ids))
    return {
        "module": columns.names(codes[0, found], list(module_ids)),
        "line": columns.names(codes[1, found], list(line_ids)),
    }


def _as_events(events: Events, calls: Sequence[ModuleCall], offset: int) -> Events:
    """Return the calls as events of the file, on the lanes of their threads."""
    ids = {name: place for place, name in enumerate(events.names)}
    process = ids.get(str(os.getpid()), -1)
    numbers = np.array([(call.thread, call.start_ns, call.end_ns) for call in calls])
    known, thread_of = np.unique(numbers[:, 0], return_inverse=True)
    lanes = []
    for each in known.tolist():
        thread = ids.get(str(each), -1)
        is_known = thread >= 0 and process >= 0
        lanes.append(process * len(events.names) + thread if is_known else -1)
    zeros = np.zeros(len(calls), dtype=np.int64)
    return dataclasses.replace(
        events,
        start=numbers[:, 1] - offset,
        end=numbers[:, 2] - offset,
        name=zeros.astype(np.int32),
        role=zeros.astype(np.int8),
        lane=np.array(lanes)[thread_of],
        row=zeros,
    )


def _forward_of(events: Events, lane: Ints, time: Ints, until: Ints) -> Ints:
    """Return the operator of the forward behind each launch in a backward, else -1.

    The two operators share the number of the arrow that torch draws between them. That of the
    backward is around the launch, or else inside it.
    """
    ops = events.of(Role.OP)
    arrow = events.column("correlation", ops)
    ops, arrow = ops[arrow != MISSING], arrow[arrow != MISSING]
    order = np.lexsort((events.start[ops], arrow))
    ops, arrow = ops[order], arrow[order]
    is_pair = arrow[1:] == arrow[:-1]
    backward = ops[1:][is_pair]
    forward = np.full(len(events.start) + 1, -1, dtype=np.int64)  # the last one is for none
    forward[backward] = ops[:-1][is_pair]
    found = find_innermost(events, backward, lane, time)
    backward = backward[np.argsort(events.start[backward], kind="stable")]
    for each in np.unique(lane[found < 0]).tolist():
        own = backward[events.lane[backward] == each]
        rows = np.flatnonzero((found < 0) & (lane == each))
        at = np.searchsorted(events.start[own], time[rows])
        rows, at = rows[at < len(own)], at[at < len(own)]
        is_inside = events.start[own[at]] < until[rows]
        found[rows[is_inside]] = own[at[is_inside]]
    return forward[found]
