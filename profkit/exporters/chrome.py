"""Chrome's JSON, which chrome://tracing, Perfetto and TensorBoard open; gzipped where the file's name ends in .gz."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from profkit.exporters._timeline import Track, counters, tracks
from profkit.exporters.base import Window


class Chrome:
    """One file; times are microseconds with all their nanoseconds."""

    name = "chrome"
    title = "Chrome trace JSON"
    suffix = ".json.gz"
    is_folder = False
    name_copies = 2
    row_bytes = {"steps": 110, "spans": 130, "kernels": 480, "collectives": 120, "samples": 110}  # noqa: RUF012  # read only

    def write(self, window: Window, path: Path) -> None:
        if path.suffix == ".gz":
            with gzip.open(path, "xt", compresslevel=6, encoding="utf-8") as packed:
                _write(window, packed)
        else:
            with open(path, "x", encoding="utf-8") as file:
                _write(window, file)


def _write(window: Window, file: IO[str]) -> None:
    file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
    for index, event in enumerate(events(window)):
        file.write((",\n" if index else "") + event)
    file.write("\n]}\n")


def events(window: Window) -> Iterator[str]:
    """Every event as JSON text, so that no time goes through a double."""
    for rank in sorted(window.shifts):
        yield _meta("process_name", rank, 0, f"rank {rank}")
        yield f'{{"ph": "M", "name": "process_sort_index", "pid": {rank}, "args": {{"sort_index": {rank}}}}}'
    for place, track in enumerate(tracks(window)):
        yield _meta("thread_name", track.rank, place, track.label)
        yield f'{{"ph": "M", "name": "thread_sort_index", "pid": {track.rank}, "tid": {place}, "args": {{"sort_index": {place}}}}}'
        yield from _slices(track, place)
    for counter in counters(window):
        name = json.dumps(counter.label)
        for reading in counter.readings:
            yield f'{{"ph": "C", "name": {name}, "pid": {counter.rank}, "ts": {microseconds(reading.time_ns)}, "args": {{"value": {json.dumps(reading.value)}}}}}'


def _slices(track: Track, place: int) -> Iterator[str]:
    where = f'"pid": {track.rank}, "tid": {place}'
    for each in track.slices:
        named = f'"name": {json.dumps(each.name)}, "cat": {json.dumps(each.category)}, {where}, "ts": {microseconds(each.start_ns)}'
        kind = (
            '"ph": "i", "s": "t"'
            if track.instants
            else f'"ph": "X", "dur": {microseconds(each.end_ns - each.start_ns)}'
        )
        yield f"{{{kind}, {named}}}"
        if each.flow is not None:
            step = '"ph": "s"' if track.instants else '"ph": "f", "bp": "e"'
            yield f'{{{step}, "id": {each.flow}, "name": "launch", "cat": "launch", {where}, "ts": {microseconds(each.start_ns)}}}'


def _meta(kind: str, pid: int, tid: int, name: str) -> str:
    return f'{{"ph": "M", "name": "{kind}", "pid": {pid}, "tid": {tid}, "args": {{"name": {json.dumps(name)}}}}}'


def microseconds(ns: int) -> str:
    """Nanoseconds as exact microseconds."""
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


EXPORTER = Chrome()
