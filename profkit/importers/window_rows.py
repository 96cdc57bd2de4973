"""A window's capture as rows of `kernels`: read as `import` reads such files, with the steps and phases that profkit itself timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profkit.analysis.kernels.categories import categorise_operator
from profkit.importers.base import clean_name
from profkit.importers.kineto.events import Events, plain_name, sort_out, whole
from profkit.importers.kineto.phases import Region, Span, Steps
from profkit.importers.kineto.tables import Phases, Work, find_work, host_work, kernel_columns
from profkit.importers.reading.chrome import ChromeTrace, read_chrome
from profkit.importers.reading.sanity import Gate
from profkit.instrument.rows import Row, SpanRow
from profkit.instrument.windows.windows import Window
from profkit.schema import SCHEMAS

Ints = npt.NDArray[np.int64]

_TIMES = ("start_ns", "end_ns", "launch_ns")
_NAMES = ("device", "name", "op")
_OPERATORS = ("cpu_op", "operator")


def read_rows(path: Path, window: Window, *, device: str = "") -> list[Row]:
    """The window's kernels; its outermost operators where no device ran. `device` is what the job calls its own."""
    gate = Gate()
    trace = read_chrome(path)
    events = sort_out(trace, gate)
    offset = _offset(trace, window)
    steps = _steps(window, offset)
    work = find_work(events, gate)
    made = (
        _device_columns(events, work, steps, window, offset)
        if len(work.place)
        else _host_columns(events, steps, window, offset)
    )
    columns = {name: _plain(values) for name, values in made.items()}
    if device and len(set(columns["device"])) == 1 and len(work.place):
        columns["device"] = [device] * len(columns["device"])
    return _rows(columns, offset)


def _device_columns(
    events: Events, work: Work, steps: Steps, window: Window, offset: int
) -> dict[str, Any]:
    return kernel_columns(events, work, steps, Phases(_regions(window, offset), 0))


def _host_columns(events: Events, steps: Steps, window: Window, offset: int) -> dict[str, Any]:
    """Operators in place of kernels: each runs where it was called, and its category comes from the operator's name."""
    made = host_work(_operators(events), steps)
    made["category"] = [categorise_operator(name or "") for name in _plain(made["name"])]
    made["phase"] = _phases_at(np.asarray(made["start_ns"]), _regions(window, offset))
    return made


def _operators(events: Events) -> Events:
    """Without Paddle's ranges of Python and of its bindings, which lie around the operators."""
    categories = np.array([name.casefold() in _OPERATORS for name in events.names], dtype=bool)
    kept = np.flatnonzero(categories[events.trace.events["category"][events.row]])
    columns = {
        name: getattr(events, name)[kept]
        for name in ("start", "end", "name", "role", "lane", "row")
    }
    return dataclasses.replace(events, **columns)


def _offset(trace: ChromeTrace, window: Window) -> int:
    """What is to be added to the file's times, which are of the time of day, to have the host's monotonic ones."""
    base = whole(trace.header.get("baseTimeNanoseconds"))
    return base - window.anchor.realtime_ns + window.anchor.monotonic_ns


def _steps(window: Window, offset: int) -> Steps:
    borders = np.array(window.borders, dtype=np.int64) - offset
    return Steps(np.arange(len(borders) - 1) + window.first_step, borders[:-1], borders[1:])


def _regions(window: Window, offset: int) -> list[Region]:
    """The window's phases by time."""
    rows = map(SpanRow._make, window.spans)
    spans = sorted((row.start_ns, -row.end_ns, row.phase) for row in rows if row.depth == 0)
    return [
        Region(Span(0, start - offset, -end - offset, phase, phase), phase, 0)
        for start, end, phase in spans
    ]


def _phases_at(times: Ints, regions: Sequence[Region]) -> list[str | None]:
    if not regions:
        return [None] * len(times)
    start = np.array([region.span.start for region in regions], dtype=np.int64)
    place = np.searchsorted(start, times, side="right") - 1
    return [
        regions[at].phase if at >= 0 and time < regions[at].span.end else None
        for at, time in zip(place.tolist(), times.tolist(), strict=True)
    ]


def _plain(values: Any) -> list[Any]:
    """A column as Python values."""
    if hasattr(values, "to_pylist"):
        return list(values.to_pylist())
    return list(values.tolist() if isinstance(values, np.ndarray) else values)


def _rows(columns: dict[str, list[Any]], offset: int) -> list[Row]:
    count = len(columns["start_ns"])
    for name in _TIMES:
        columns[name] = [None if value is None else int(value) + offset for value in columns[name]]
    for name in _NAMES:
        columns[name] = [
            None if value is None else clean_name(plain_name(str(value))) for value in columns[name]
        ]
    nothing = [None] * count
    return list(
        zip(*(columns.get(name, nothing) for name in SCHEMAS["kernels"].names[1:]), strict=True)
    )
