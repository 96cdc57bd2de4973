"""Turns a kernel window's capture into rows of `kernels`.

The capture is read as an imported trace is. Steps and phases are those that profkit itself timed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from profkit.analysis.kernels.categories import categorise_operator
from profkit.importers.base import clean_name
from profkit.importers.kineto.events import Events, Role, sort_out, whole
from profkit.importers.kineto.module_calls import module_columns
from profkit.importers.kineto.phases import NestedSpan, PhaseSpan
from profkit.importers.kineto.steps import Steps
from profkit.importers.kineto.tables import (
    PhaseLookup,
    describe_work,
    host_columns,
    kernel_columns,
)
from profkit.importers.kineto.work import find_work
from profkit.importers.reading.chrome import read_chrome
from profkit.importers.reading.sanity import TimeGate
from profkit.instrument.rows import Row, SpanRow
from profkit.instrument.windows.windows import Window
from profkit.schema import SCHEMAS

_TIMES = ("start_ns", "end_ns", "launch_ns")
_NAMES = ("device", "name", "op", "module", "line")
_OPERATOR_CATEGORIES = ("cpu_op", "operator")


def read_rows(path: Path, window: Window, *, device: str = "") -> list[Row]:
    """Return the window's kernels, on the job's `device`, else its outermost operators."""
    gate = TimeGate()
    trace = read_chrome(path)
    events = sort_out(trace, gate)
    base = whole(trace.header.get("baseTimeNanoseconds"))
    offset = base - window.anchor.realtime_ns + window.anchor.monotonic_ns
    borders = np.array(window.borders, dtype=np.int64) - offset
    steps = Steps(np.arange(len(borders) - 1) + window.first_step, borders[:-1], borders[1:])
    spans = []  # the outermost phases that profkit timed, on the file's clock
    for row in map(SpanRow._make, window.spans):
        if row.depth == 0 and row.end_ns > row.start_ns:
            found = PhaseSpan(0, row.start_ns - offset, row.end_ns - offset, row.phase, row.phase)
            spans.append(NestedSpan(found, row.phase, 0))
    spans.sort(key=lambda each: (each.span.start, -each.span.end, each.phase))
    phases = PhaseLookup(spans, 0)
    work = find_work(events, gate)
    if not len(work.place):
        return _build_rows(_operator_columns(events, steps, phases, window, offset), offset)
    made = kernel_columns(events, work, describe_work(events, work), steps, phases)
    lane = np.where(work.launch >= 0, events.lane[work.launch], -1)
    launch = (lane, work.launch_time, work.launch_time)
    made |= module_columns(events, launch, window.calls, offset)
    if device and len(set(work.device.tolist())) == 1:
        made["device"] = [device] * len(work.place)
    return _build_rows(made, offset)


def _operator_columns(
    events: Events, steps: Steps, phases: PhaseLookup, window: Window, offset: int
) -> dict[str, Any]:
    """Return operators as kernels, without Paddle's ranges of Python around them."""
    is_operator = [name.casefold() in _OPERATOR_CATEGORIES for name in events.names]
    categories = events.trace.events["category"][events.row]
    kept = np.flatnonzero(np.array(is_operator, dtype=bool)[categories])
    fields = ("start", "end", "name", "role", "lane", "row")
    chosen = {name: getattr(events, name)[kept] for name in fields}
    operators = dataclasses.replace(events, **chosen)
    made = host_columns(operators, steps)
    made["category"] = [categorise_operator(name or "") for name in made["name"].to_pylist()]
    made["phase"] = phases.names_at(made["start_ns"])
    lane = np.unique(operators.lane[operators.of(Role.OP)])[made["stream"]]
    launch = (lane, made["start_ns"], made["end_ns"])
    return made | module_columns(events, launch, window.calls, offset)


def _build_rows(made: dict[str, Any], offset: int) -> list[Row]:
    """Return columns as rows of `kernels` without a rank, on the host's monotonic clock."""
    count = len(made["start_ns"])
    columns: list[list[Any]] = []
    for name in SCHEMAS["kernels"].names[1:]:
        values = made.get(name, [None] * count)
        if hasattr(values, "to_pylist"):
            values = values.to_pylist()
        elif isinstance(values, np.ndarray):
            values = values.tolist()
        if name in _TIMES:
            values = [each if each is None else each + offset for each in values]
        elif name in _NAMES:
            values = [each if each is None else clean_name(each) for each in values]
        columns.append(values)
    return list(zip(*columns, strict=True))
