"""Lanes of a timeline, made from one rank's tables.

A lane is a row that can be shown: phases, regions, a device, a stream or a communicator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from profkit.analysis.timeline.levels import Codes, Level, Pieces, first_begun, innermost
from profkit.frame.device_clock import exposed_spans, has_device_times, works
from profkit.frame.estimate import Ints
from profkit.vocab import PHASES


class Group(str, Enum):
    """The subject of a row of the timeline."""

    PHASES = "phases"
    """The innermost phase of the thread that trains, on the device's clock if that is known."""

    REGIONS = "regions"
    """Regions inside phases, and what other threads do."""

    DEVICES = "devices"
    """All kernels of a device."""

    STREAMS = "streams"
    """The kernels of one stream."""

    COLLECTIVES = "collectives"
    """The collectives of one communicator."""


TABLE_OF: Final[Mapping[Group, str]] = {
    Group.PHASES: "spans",
    Group.REGIONS: "spans",
    Group.DEVICES: "kernels",
    Group.STREAMS: "kernels",
    Group.COLLECTIVES: "collectives",
}

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "spans": (
        "start_ns",
        "end_ns",
        "phase",
        "name",
        "depth",
        "thread",
        "device_start_ns",
        "device_end_ns",
    ),
    "kernels": ("start_ns", "end_ns", "category", "name", "device", "stream"),
    "collectives": ("start_ns", "end_ns", "op", "communicator"),
}
"""The columns read of each table; an event's details are read when somebody asks for them."""

_DEEPEST = 64
"""Regions that are nested deeper share a row."""


@dataclass(frozen=True)
class Lane:
    """One row that can be shown; its pieces' rows are places in the group's table."""

    group: Group
    label: str
    level: Level
    only_stream: str = ""
    """The label of a device's only stream, whose row would be the same."""

    def at_least(self, shortest_ns: int) -> Lane:
        """Return the lane without pieces that are shorter."""
        return dataclasses.replace(self, level=self.level.at_least(shortest_ns))


def streams_of(devices: Sequence[Lane]) -> tuple[Lane, ...] | None:
    """Return the streams over the same pieces, if there are devices and each has one stream."""
    streams = []
    for lane in devices:
        if not lane.only_stream:
            return None
        streams.append(Lane(Group.STREAMS, lane.only_stream, lane.level))
    return tuple(streams) or None


def lanes_of(group: Group, rows: pa.Table) -> list[Lane]:
    """Return all lanes of a group that one rank has, from the rows of the group's table."""
    return list(_BUILDERS[group](rows)) if rows.num_rows else []


class _Threads(NamedTuple):
    """The spans of one rank by thread and depth."""

    names: list[str]
    training: int
    """The thread with the most time in phases."""
    shelves: list[tuple[int, int, Pieces]]
    kinds: tuple[str, ...]


def _threads(spans: pa.Table, place: Ints | None = None) -> _Threads:
    events, kinds = _events(spans, "phase", "name", first=PHASES, place=place)
    thread, names = _compact(spans["thread"])
    depth = np.clip(spans["depth"].to_numpy(), 0, _DEEPEST - 1).astype(np.int64)
    outer_ns = np.where(depth, 0, events.ends - events.starts)
    training = int(np.argmax(np.bincount(thread, weights=outer_ns)))
    shelves = []
    for key, places in _groups(thread * _DEEPEST + depth):
        shelves.append((*divmod(key, _DEEPEST), first_begun(events.chosen(places))))
    return _Threads(names, training, shelves, kinds)


def phase_lanes(spans: pa.Table) -> Iterator[Lane]:
    """Yield the row of the thread that trains: what the device does, if its times are known."""
    threads = _threads(spans)
    if has_device_times(spans).any():
        count = spans.num_rows
        numbered = spans.append_column("rank", pa.array(np.zeros(count, dtype=np.int32)))
        numbered = numbered.append_column("place", pa.array(np.arange(count)))
        unknown = works(numbered) & ~has_device_times(numbered)
        shown = exposed_spans(numbered.filter(pa.array(~unknown)))
        threads = _threads(shown, shown["place"].to_numpy())
    levels = [pieces for thread, _, pieces in threads.shelves if thread == threads.training]
    yield Lane(Group.PHASES, "phases", Level(innermost(levels), threads.kinds))


def region_lanes(spans: pa.Table) -> Iterator[Lane]:
    """Yield a row for each thread and depth.

    The phases of the thread that trains are a row here if they are shown on the device's clock.
    """
    threads, on_device = _threads(spans), bool(has_device_times(spans).any())
    for thread, depth, pieces in threads.shelves:
        is_shown = thread == threads.training and not depth and not on_device
        if len(pieces) and not is_shown:
            name = threads.names[thread]
            if thread == threads.training and on_device:
                name = f"host {name}"
            label = f"+{depth} {name}" if depth else name
            yield Lane(Group.REGIONS, label, Level(pieces, threads.kinds))


def device_lanes(kernels: pa.Table) -> Iterator[Lane]:
    """Yield a row for each device."""
    events, kinds = _events(kernels, "category", "name")
    device, names = _compact(kernels["device"])
    stream = kernels["stream"].to_numpy()
    for code, places in _groups(device):
        # A single device needs no copy of a table that may be very large.
        own, streams = events, stream
        if len(places) < len(events):
            own, streams = events.chosen(places), stream[places]
        only = ""
        if (streams == streams[0]).all():
            only = _stream_label(names[code], int(streams[0]))
        yield Lane(Group.DEVICES, names[code], Level(first_begun(own), kinds), only)


def stream_lanes(kernels: pa.Table) -> Iterator[Lane]:
    """Yield a row for each stream of each device."""
    events, kinds = _events(kernels, "category", "name")
    device, names = _compact(kernels["device"])
    stream = kernels["stream"].to_numpy()
    for code, of_device in _groups(device):
        for number, places in _groups(stream[of_device]):
            level = Level(first_begun(events.chosen(of_device[places])), kinds)
            yield Lane(Group.STREAMS, _stream_label(names[code], number), level)


def _stream_label(device: str, number: int) -> str:
    return f"{device} {'thread' if device == 'cpu' else 'stream'} {number}"


def collective_lanes(collectives: pa.Table) -> Iterator[Lane]:
    """Yield a row for each communicator."""
    events, kinds = _events(collectives, "op", "op")
    communicator, names = _compact(collectives["communicator"])
    for code, places in _groups(communicator):
        level = Level(first_begun(events.chosen(places)), kinds)
        yield Lane(Group.COLLECTIVES, names[code], level)


_BUILDERS: Final = {
    Group.PHASES: phase_lanes,
    Group.REGIONS: region_lanes,
    Group.DEVICES: device_lanes,
    Group.STREAMS: stream_lanes,
    Group.COLLECTIVES: collective_lanes,
}


def _events(
    rows: pa.Table,
    kind: str,
    name: str,
    *,
    first: Sequence[str] = (),
    place: Ints | None = None,
) -> tuple[Pieces, tuple[str, ...]]:
    """Return every row as an event, and the names of the kinds, those of `first` in its order.

    `place` holds the rows' places in the table, if some of its rows are left out.
    """
    codes, names = _compact(rows[kind])
    preferred = {each: place for place, each in enumerate(first)}
    order = sorted(
        range(len(names)), key=lambda code: (preferred.get(names[code], len(first)), names[code])
    )
    rank = np.empty(len(order), dtype=np.min_scalar_type(len(order)))
    rank[order] = np.arange(len(order))
    starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    name_codes = rows[name].combine_chunks().indices.to_numpy()
    row = np.arange(len(starts), dtype=np.uint32)
    if place is not None:
        row = place.astype(np.uint32)
    kinds = tuple(names[code] for code in order)
    return Pieces(starts, ends, rank[codes], name_codes, row), kinds


def _compact(column: pa.ChunkedArray) -> tuple[Codes, list[str]]:
    """Return each row's name as a small number, and the names that occur.

    It takes linear time: nothing is sorted.
    """
    whole = column.combine_chunks()
    indices = whole.indices.to_numpy()
    present = np.flatnonzero(np.bincount(indices, minlength=1))
    place = np.zeros(int(present[-1]) + 1, dtype=np.int64)
    place[present] = np.arange(len(present))
    names = whole.dictionary.take(pa.array(present)).cast(pa.string()).to_pylist()
    return place[indices], names


def _groups(keys: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each distinct key with its places in ascending order."""
    if (keys == keys[0]).all():
        yield int(keys[0]), np.arange(len(keys))
        return
    low, high = int(keys.min()), int(keys.max())
    # Numbers of two bytes and less are sorted in linear time.
    small = (keys - low).astype(np.min_scalar_type(high - low))
    order = np.argsort(small, kind="stable")
    opens = np.flatnonzero(np.diff(keys[order], prepend=keys[order[0]] - 1))
    for places in np.split(order, opens[1:]):
        yield int(keys[places[0]]), places
