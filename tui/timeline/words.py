"""The timeline in words: a cell, an event, the view as a table, and places in time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from profkit.analysis.timeline.lanes import Group
from profkit.analysis.timeline.levels import NONE
from profkit.analysis.timeline.timeline import Event
from profkit.analysis.timeline.view import Row, TimelineView
from profkit.errors import UsageError
from profkit.text import byte_size, duration, percent, plural, safe_text

_NS: Final = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
}
_TIME: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(ns|us|ms|s|min|m|h)")
_STEP: Final = re.compile(r"(?:step\s*)?(\d{1,15})")

_EVENT_NOUN: Final = {
    Group.DEVICES: "kernel",
    Group.STREAMS: "kernel",
    Group.COLLECTIVES: "collective",
}


def parse_time(text: str) -> int:
    """Return a duration such as `12.5s` or `300 us` in ns."""
    found = _TIME.fullmatch(text.strip())
    if not found:
        raise UsageError(f"'{safe_text(text)}' is not a time; write 12.5s, 300ms or 20us")
    return round(float(found[1]) * _NS[found[2]])


def parse_step(text: str) -> int | None:
    """Return a step's number, or `None` if the text is something else, such as a time."""
    found = _STEP.fullmatch(text.strip())
    return int(found[1]) if found else None


def describe_cell(view: TimelineView, row: Row, column: int, step: int | None) -> str:
    """Return what one cell shows."""
    start, end = view.window.cell(column)
    parts = [f"r{row.rank} {row.label}", f"{start / 1e9:.6f} s"]
    if step is not None:
        parts.append(f"step {step}")
    kind = int(row.kinds[column])
    if row.note:
        parts.append(row.note)
    elif kind == NONE:
        # Nothing was recorded there; a device may still have worked.
        parts.append(f"no {_EVENT_NOUN.get(row.group, row.group.value.removesuffix('s'))}")
    else:
        parts += _contents(row, column, row.kind_names[kind], end - start)
    return "  ".join(parts)


def _contents(row: Row, column: int, kind: str, cell_ns: int) -> list[str]:
    """Return the shares of a cell that is not empty, and what begins in it."""
    dominant_ns, covered_ns = int(row.dominant_ns[column]), int(row.covered_ns[column])
    parts = [f"{kind} {percent(dominant_ns / cell_ns, 0)} of {duration(cell_ns)}"]
    if covered_ns != dominant_ns:
        parts.append(f"busy {percent(covered_ns / cell_ns, 0)}")
    begun = int(row.begun[column])
    if begun > 1:
        parts.append(f"{plural(begun, _EVENT_NOUN.get(row.group, 'event'))} begin")
    for label in row.labels:
        if label.column <= column < label.column + label.columns:
            if label.text and label.text != kind:
                parts.append(label.text)
            break
    return parts


def event_lines(event: Event) -> Mapping[str, str]:
    """Return all that is known about an event, as names and values."""
    lines = {
        "name": event.name,
        "rank": f"{event.rank}",
        "row": event.label,
        "kind": event.kind,
        "start": f"{event.start_ns / 1e9:.6f} s after the start of the run's first step",
        "duration": duration(event.duration_ns),
    }
    for name, value in event.fields.items():
        if name != "category":
            title = name.removesuffix("_ns").removesuffix("_bytes").replace("_", " ")
            lines[title] = _value(name, value, event)
    return lines


def _value(name: str, value: Any, event: Event) -> str:
    """Return the value of an event's field with its unit."""
    if isinstance(value, list):
        return " x ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("bytes"):
        return byte_size(value)
    if name.endswith("_ns"):
        side = "before" if value < event.began_ns else "after"
        return f"{duration(abs(value - event.began_ns))} {side} the start"
    if isinstance(value, float):
        return f"{value:,.6g}"
    return str(value)


def cell_rows(view: TimelineView) -> list[list[str]]:
    """Return the view as a table: a line for each stretch of equal cells in a row."""
    table = [["rank", "row", "start_ns", "end_ns", "kind", "kind_ns", "covered_ns"]]
    boundaries = view.window.borders.tolist()
    for row in view.rows:
        first, count = 0, len(row.kinds)
        for last in range(1, count + 1):
            if last < count and row.kinds[last] == row.kinds[first]:
                continue
            kind, name = int(row.kinds[first]), ""
            if kind != NONE:
                name = row.kind_names[kind]
            begin, end = str(boundaries[first]), str(boundaries[last])
            kind_ns = str(int(row.dominant_ns[first:last].sum()))
            covered_ns = str(int(row.covered_ns[first:last].sum()))
            table.append([str(row.rank), row.label, begin, end, name, kind_ns, covered_ns])
            first = last
    return table
