"""What the timeline says in words: of a cell, of an event, and how a place in time is written and read."""

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
    """A duration such as `12.5s` or `300 us`, in ns."""
    found = _TIME.fullmatch(text.strip())
    if not found:
        raise UsageError(f"'{safe_text(text)}' is no time; write 12.5s, 300ms or 20us")
    return round(float(found[1]) * _NS[found[2]])


def parse_step(text: str) -> int | None:
    """A step's number; `None` where it is something else, such as a time."""
    found = _STEP.fullmatch(text.strip())
    return int(found[1]) if found else None


def at_time(time_ns: int) -> str:
    """A place on the axis, to the microsecond."""
    return f"{time_ns / 1e9:.6f} s"


def describe_cell(view: TimelineView, row: Row, column: int, step: int | None) -> str:
    """What one cell shows."""
    start, end = view.window.cell(column)
    parts = [f"r{row.rank} {row.label}", at_time(start)]
    if step is not None:
        parts.append(f"step {step}")
    kind = int(row.kinds[column])
    if row.note:
        parts.append(row.note)
    elif kind == NONE:
        parts.append("idle")
    else:
        covered = int(row.covered_ns[column])
        parts.append(
            f"{row.kind_names[kind]} {percent(int(row.dominant_ns[column]) / (end - start), 0)} of {duration(end - start)}"
        )
        if covered != row.dominant_ns[column]:
            parts.append(f"busy {percent(covered / (end - start), 0)}")
        begun = int(row.begun[column])
        if begun > 1:
            parts.append(f"{plural(begun, _EVENT_NOUN.get(row.group, 'piece'))} begin")
        label = next(
            (
                label.text
                for label in row.labels
                if label.column <= column < label.column + label.columns
            ),
            "",
        )
        if label and label != row.kind_names[kind]:
            parts.append(label)
    return "  ".join(parts)


def event_lines(event: Event) -> Mapping[str, str]:
    """All that is known of an event, a line each."""
    return {
        "name": event.name,
        "rank": f"{event.rank}",
        "row": event.label,
        "kind": event.kind,
        "start": f"{at_time(event.start_ns)} after the run's first step began",
        "duration": duration(event.duration_ns),
        **{
            _title(name): _value(name, value, event)
            for name, value in event.fields.items()
            if name != "category"
        },
    }


def _title(name: str) -> str:
    return name.removesuffix("_ns").removesuffix("_bytes").replace("_", " ")


def _value(name: str, value: Any, event: Event) -> str:
    if isinstance(value, list):
        return " x ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("bytes"):
        return byte_size(value)
    if name.endswith("_ns"):
        return f"{duration(abs(value - event.began_ns))} {'before' if value < event.began_ns else 'after'} the start"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def cell_rows(view: TimelineView) -> list[list[str]]:
    """The view as a table: one line for each stretch of cells of a row that show the same."""
    table = [["rank", "row", "start_ns", "end_ns", "kind", "kind_ns", "covered_ns"]]
    borders = view.window.borders.tolist()
    for row in view.rows:
        opens = [
            column
            for column in range(len(row.kinds))
            if not column or row.kinds[column] != row.kinds[column - 1]
        ]
        for first, last in zip(opens, [*opens[1:], len(row.kinds)], strict=True):
            kind = int(row.kinds[first])
            name = "" if kind == NONE else row.kind_names[kind]
            sums = [str(int(part[first:last].sum())) for part in (row.dominant_ns, row.covered_ns)]
            table.append(
                [str(row.rank), row.label, str(borders[first]), str(borders[last]), name, *sums]
            )
    return table
