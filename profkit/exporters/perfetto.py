"""Perfetto's protobuf, which ui.perfetto.dev opens: interned names, flows from launch to kernel, counters.

The messages are written by hand, because the library for them is slower and is one more thing to
install; a test reads what is written here with the library's own classes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from profkit.exporters._timeline import Counter, Slice, Track, counters, tracks
from profkit.exporters.base import Window

SEQUENCE = 1
_CLEARED, _NEEDED = 1, 2
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_FLUSH_BYTES = 1 << 20


class Perfetto:
    """One file; ranks are processes."""

    name = "perfetto"
    title = "Perfetto protobuf, for ui.perfetto.dev"
    suffix = ".pftrace"
    is_folder = False
    name_copies = 0
    row_bytes = {"steps": 60, "spans": 60, "kernels": 110, "collectives": 60, "samples": 32}  # noqa: RUF012  # read only

    def write(self, window: Window, path: Path) -> None:
        with open(path, "xb") as file:
            encode(window, file.write)


def encode(window: Window, write: Callable[[bytes], object]) -> None:
    """Every packet of the window, in pieces of about a megabyte."""
    encoder = _Encoder()
    waiting: list[bytes] = []
    size = 0
    for packet in encoder.packets(window):
        framed = b"\x0a" + varint(len(packet)) + packet
        waiting.append(framed)
        size += len(framed)
        if size > _FLUSH_BYTES:
            write(b"".join(waiting))
            waiting, size = [], 0
    write(b"".join(waiting))


def varint(value: int) -> bytes:
    """A whole number in base 128, least significant first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value & 0xFFFFFFFFFFFFFFFF)


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    return message(field, value.encode("utf-8", "replace"))


class _Encoder:
    """Packets of one sequence; a name goes out with the first packet that uses it."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._tracks = 0

    def packets(self, window: Window) -> Iterator[bytes]:
        yield number(10, SEQUENCE) + number(13, _CLEARED)
        for rank in sorted(window.shifts):
            process = number(1, rank + 1) + text(6, f"rank {rank}")
            yield _packet(message(60, number(1, _process_track(rank)) + message(3, process)))
        for track in tracks(window):
            yield from self._track(track)
        for counter in counters(window):
            yield from self._counter(counter)

    def _track(self, track: Track) -> Iterator[bytes]:
        self._tracks += 1
        uuid = _process_track(track.rank) + self._tracks
        thread = number(1, track.rank + 1) + number(2, self._tracks) + text(5, track.label)
        yield _packet(
            message(
                60, number(1, uuid) + number(5, _process_track(track.rank)) + message(4, thread)
            )
        )
        yield from self._instants(track, uuid) if track.instants else self._slices(track, uuid)

    def _slices(self, track: Track, uuid: int) -> Iterator[bytes]:
        """Begins and ends in the order of a stack; an end comes before the next beginning of the same time."""
        end = number(9, _END) + number(11, uuid)
        open_ends: list[int] = []
        for each in track.slices:
            while open_ends and open_ends[-1] <= each.start_ns:
                yield _timed(open_ends.pop(), end)
            yield self._event(each, _BEGIN, uuid, 48)
            open_ends.append(each.end_ns)
        while open_ends:
            yield _timed(open_ends.pop(), end)

    def _instants(self, track: Track, uuid: int) -> Iterator[bytes]:
        for each in track.slices:
            yield self._event(each, _INSTANT, uuid, 47)

    def _event(self, each: Slice, kind: int, uuid: int, flow_field: int) -> bytes:
        fresh = b""
        name, category = self._names.get(each.name), self._categories.get(each.category)
        if name is None:
            name = self._names[each.name] = len(self._names) + 1
            fresh += message(2, number(1, name) + text(2, each.name))
        if category is None:
            category = self._categories[each.category] = len(self._categories) + 1
            fresh += message(1, number(1, category) + text(2, each.category))
        event = number(3, category) + number(9, kind) + number(10, name) + number(11, uuid)
        if each.flow is not None:
            event += varint(flow_field << 3 | 1) + struct.pack("<Q", each.flow)
        return _timed(each.start_ns, event, message(12, fresh) if fresh else b"")

    def _counter(self, counter: Counter) -> Iterator[bytes]:
        self._tracks += 1
        uuid = _process_track(counter.rank) + self._tracks
        yield _packet(
            message(
                60,
                number(1, uuid)
                + text(2, counter.label)
                + number(5, _process_track(counter.rank))
                + message(8, b""),
            )
        )
        for reading in counter.readings:
            value = varint(44 << 3 | 1) + struct.pack("<d", reading.value)
            yield _timed(reading.time_ns, number(9, _COUNTER) + number(11, uuid) + value)


def _process_track(rank: int) -> int:
    return (rank + 1) << 32


def _packet(content: bytes) -> bytes:
    return number(10, SEQUENCE) + number(13, _NEEDED) + content


def _timed(time_ns: int, event: bytes, more: bytes = b"") -> bytes:
    return (
        number(8, max(0, time_ns))
        + number(10, SEQUENCE)
        + message(11, event)
        + more
        + number(13, _NEEDED)
    )


EXPORTER = Perfetto()
