"""Perfetto's protobuf for ui.perfetto.dev, with flows from launches to kernels.

The messages are hand-written, because the library for them is slower and is one more thing to
install; a test reads what is written here with the library's own classes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

from profkit.exporters._timeline import Counter, Slice, Track, counters, tracks
from profkit.exporters.base import Window

SEQUENCE = 1
"""The number of the only sequence of packets."""

_CLEARED, _NEEDED = 1, 2
"""The flags of a packet that resets interned names, and of one that uses them."""

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
"""The types of a track event."""

_BUFFER_BYTES = 1 << 20
"""Packets are small, so they are written in pieces of this size."""


class _Packet:
    """The field numbers of a `TracePacket`."""

    TIMESTAMP, SEQUENCE, EVENT, INTERNED, FLAGS, TRACK = 8, 10, 11, 12, 13, 60


class _Track:
    """The field numbers of a `TrackDescriptor`, and of its process and thread."""

    UUID, NAME, PROCESS, THREAD, PARENT, COUNTER = 1, 2, 3, 4, 5, 8
    PID, TID, THREAD_NAME, PROCESS_NAME = 1, 2, 5, 6


class _Event:
    """The field numbers of a `TrackEvent`."""

    CATEGORY, TYPE, NAME, TRACK, VALUE, FLOW, LAST_OF_FLOW = 3, 9, 10, 11, 44, 47, 48


class _Interned:
    """The field numbers of `InternedData`, and of one interned text."""

    CATEGORIES, NAMES, ID, TEXT = 1, 2, 1, 2


class Perfetto:
    """One file; ranks are processes."""

    name = "perfetto"
    title = "Perfetto protobuf, for ui.perfetto.dev"
    suffix = ".pftrace"
    is_folder = False
    name_copies = 0
    row_bytes = MappingProxyType(
        {"steps": 60, "spans": 60, "kernels": 110, "collectives": 60, "samples": 32}
    )

    def write(self, window: Window, path: Path) -> None:
        with open(path, "xb", buffering=_BUFFER_BYTES) as file:
            file.writelines(message(1, packet) for packet in _Encoder().packets(window))


def varint(value: int) -> bytes:
    """Return a whole number in base 128, least significant digit first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Return a field that holds a whole number."""
    return varint(field << 3) + varint(value & 0xFFFFFFFFFFFFFFFF)


def fixed(field: int, form: str, value: float) -> bytes:
    """Return a field of eight bytes, packed by a `struct` format."""
    return varint(field << 3 | 1) + struct.pack(form, value)


def message(field: int, content: bytes) -> bytes:
    """Return a field that holds a message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    """Return a field that holds a text."""
    return message(field, value.encode("utf-8", "replace"))


class _Encoder:
    """Encodes one sequence; a name is sent with the first packet that uses it."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._tracks = 0

    def packets(self, window: Window) -> Iterator[bytes]:
        """Yield the packets of a window: ranks, then their tracks, then their counters."""
        yield number(_Packet.SEQUENCE, SEQUENCE) + number(_Packet.FLAGS, _CLEARED)
        for rank in sorted(window.shifts):
            process = number(_Track.PID, rank + 1) + text(_Track.PROCESS_NAME, f"rank {rank}")
            uuid = number(_Track.UUID, _process_track(rank))
            yield _describe_track(uuid + message(_Track.PROCESS, process))
        for track in tracks(window):
            yield from self.encode_track(track)
        for counter in counters(window):
            yield from self.encode_counter(counter)

    def encode_track(self, track: Track) -> Iterator[bytes]:
        self._tracks += 1
        uuid = _process_track(track.rank) + self._tracks
        thread = (
            number(_Track.PID, track.rank + 1)
            + number(_Track.TID, self._tracks)
            + text(_Track.THREAD_NAME, track.label)
        )
        yield _describe_track(
            number(_Track.UUID, uuid)
            + number(_Track.PARENT, _process_track(track.rank))
            + message(_Track.THREAD, thread)
        )
        if track.instants:
            for each in track.slices:
                yield self.encode_slice(each, _INSTANT, uuid, _Event.FLOW)
        else:
            yield from self.encode_stack(track, uuid)

    def encode_stack(self, track: Track, uuid: int) -> Iterator[bytes]:
        """Yield beginnings and ends in the order of a stack; at one time, ends come first."""
        end = number(_Event.TYPE, _END) + number(_Event.TRACK, uuid)
        open_ends: list[int] = []
        for each in track.slices:
            while open_ends and open_ends[-1] <= each.start_ns:
                yield _event(open_ends.pop(), end)
            yield self.encode_slice(each, _BEGIN, uuid, _Event.LAST_OF_FLOW)
            open_ends.append(each.end_ns)
        while open_ends:
            yield _event(open_ends.pop(), end)

    def encode_slice(self, each: Slice, kind: int, uuid: int, flow_field: int) -> bytes:
        fresh = b""
        name, category = self._names.get(each.name), self._categories.get(each.category)
        if name is None:
            name = self._names[each.name] = len(self._names) + 1
            own = number(_Interned.ID, name) + text(_Interned.TEXT, each.name)
            fresh += message(_Interned.NAMES, own)
        if category is None:
            category = self._categories[each.category] = len(self._categories) + 1
            own = number(_Interned.ID, category) + text(_Interned.TEXT, each.category)
            fresh += message(_Interned.CATEGORIES, own)
        event = (
            number(_Event.CATEGORY, category)
            + number(_Event.TYPE, kind)
            + number(_Event.NAME, name)
            + number(_Event.TRACK, uuid)
        )
        if each.flow is not None:
            event += fixed(flow_field, "<Q", each.flow)
        if fresh:
            fresh = message(_Packet.INTERNED, fresh)
        return _event(each.start_ns, event, fresh)

    def encode_counter(self, counter: Counter) -> Iterator[bytes]:
        self._tracks += 1
        uuid = _process_track(counter.rank) + self._tracks
        yield _describe_track(
            number(_Track.UUID, uuid)
            + text(_Track.NAME, counter.label)
            + number(_Track.PARENT, _process_track(counter.rank))
            + message(_Track.COUNTER, b"")
        )
        head = number(_Event.TYPE, _COUNTER) + number(_Event.TRACK, uuid)
        for reading in counter.readings:
            yield _event(reading.time_ns, head + fixed(_Event.VALUE, "<d", reading.value))


def _process_track(rank: int) -> int:
    """Return the number of a rank's own track, far from those of all other ranks."""
    return (rank + 1) << 32


def _describe_track(content: bytes) -> bytes:
    head = number(_Packet.SEQUENCE, SEQUENCE) + number(_Packet.FLAGS, _NEEDED)
    return head + message(_Packet.TRACK, content)


def _event(time_ns: int, event: bytes, more: bytes = b"") -> bytes:
    """Return the packet of an event."""
    return (
        number(_Packet.TIMESTAMP, max(0, time_ns))
        + number(_Packet.SEQUENCE, SEQUENCE)
        + message(_Packet.EVENT, event)
        + more
        + number(_Packet.FLAGS, _NEEDED)
    )


EXPORTER = Perfetto()
