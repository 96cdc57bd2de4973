"""Chrome's trace JSON, which chrome://tracing, Perfetto and TensorBoard open.

It is compressed if the name of the file ends in .gz.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profkit.exporters._timeline import Track, counters, tracks
from profkit.exporters.base import Window


class Chrome:
    """One file; times are microseconds with three decimals, so no nanosecond is lost."""

    name = "chrome"
    title = "Chrome trace JSON"
    suffix = ".json.gz"
    is_folder = False
    name_copies = 2
    row_bytes = MappingProxyType(
        {"steps": 110, "spans": 130, "kernels": 480, "collectives": 120, "samples": 110}
    )

    def write(self, window: Window, path: Path) -> None:
        open_file: Callable[..., Any] = open
        if path.suffix == ".gz":
            open_file = functools.partial(gzip.open, compresslevel=6)
        with open_file(path, "xt", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
            for index, event in enumerate(events(window)):
                file.write((",\n" if index else "") + event)
            file.write("\n]}\n")


def events(window: Window) -> Iterator[str]:
    """Yield every event as JSON text, so that no time is converted to a float."""
    for rank in sorted(window.shifts):
        yield _metadata("process_name", rank, 0, "name", f"rank {rank}")
        yield _metadata("process_sort_index", rank, None, "sort_index", rank)
    for place, track in enumerate(tracks(window)):
        yield _metadata("thread_name", track.rank, place, "name", track.label)
        yield _metadata("thread_sort_index", track.rank, place, "sort_index", place)
        yield from _slices(track, place)
    for counter in counters(window):
        name = json.dumps(counter.label)
        for reading in counter.readings:
            yield (
                f'{{"ph": "C", "name": {name}, "pid": {counter.rank}, '
                f'"ts": {microseconds(reading.time_ns)}, '
                f'"args": {{"value": {json.dumps(reading.value)}}}}}'
            )


def _slices(track: Track, place: int) -> Iterator[str]:
    """Yield the slices of a track, each with its end of the arrow from launch to kernel."""
    thread = f'"pid": {track.rank}, "tid": {place}'
    arrow = '"ph": "s"' if track.instants else '"ph": "f", "bp": "e"'
    for each in track.slices:
        time = microseconds(each.start_ns)
        kind = '"ph": "i", "s": "t"'
        if not track.instants:
            kind = f'"ph": "X", "dur": {microseconds(each.end_ns - each.start_ns)}'
        yield (
            f'{{{kind}, "name": {json.dumps(each.name)}, "cat": {json.dumps(each.category)}, '
            f'{thread}, "ts": {time}}}'
        )
        if each.flow is not None:
            yield (
                f'{{{arrow}, "id": {each.flow}, "name": "launch", "cat": "launch", '
                f'{thread}, "ts": {time}}}'
            )


def _metadata(kind: str, pid: int, tid: int | None, key: str, value: str | int) -> str:
    event: dict[str, object] = {"ph": "M", "name": kind, "pid": pid}
    if tid is not None:
        event["tid"] = tid
    return json.dumps({**event, "args": {key: value}})


def microseconds(ns: int) -> str:
    """Return nanoseconds as exact microseconds."""
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


EXPORTER = Chrome()
