"""The rows that a timeline can show of one rank, made from its tables: phases, regions, devices, streams, collectives."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from profkit.analysis.estimate import Ints
from profkit.analysis.timeline.levels import Codes, Level, Pieces, first_begun, innermost
from profkit.vocab import PHASES


class Group(str, Enum):
    """What a row of the timeline is about."""

    PHASES = "phases"
    """What the thread that trains is in: the innermost phase."""

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
    "spans": ("start_ns", "end_ns", "phase", "name", "depth", "thread"),
    "kernels": ("start_ns", "end_ns", "category", "name", "device", "stream"),
    "collectives": ("start_ns", "end_ns", "op", "communicator"),
}
"""What is read of each table. A timeline needs no more than this before somebody asks for an event's details."""


@dataclass(frozen=True)
class Lane:
    """One row that can be shown; its pieces' rows are places in the group's table."""

    group: Group
    label: str
    level: Level
    only_stream: str = ""
    """Of a device all of whose kernels are of one stream, what that is called: its row would be the same."""

    def at_least(self, shortest_ns: int) -> Lane:
        """The same without what is shorter."""
        return dataclasses.replace(self, level=self.level.at_least(shortest_ns))


def streams_of(devices: Sequence[Lane]) -> tuple[Lane, ...] | None:
    """The streams of devices that have one each, over the same pieces; `None` where some has several, or there is no device."""
    if not devices or not all(lane.only_stream for lane in devices):
        return None
    return tuple(Lane(Group.STREAMS, lane.only_stream, lane.level) for lane in devices)


def lanes_of(group: Group, rows: pa.Table) -> list[Lane]:
    """All lanes of a group that one rank has, from the rows of the group's table."""
    return list(_BUILDERS[group](rows)) if rows.num_rows else []


def _phase_lanes(spans: pa.Table) -> Iterator[Lane]:
    threads = _threads(spans)
    levels = [pieces for thread, _, pieces in threads.shelves if thread == threads.training]
    yield Lane(Group.PHASES, "phases", Level(innermost(levels), threads.kinds))


def _region_lanes(spans: pa.Table) -> Iterator[Lane]:
    """A row for each thread and depth, but for the phases of the thread that trains."""
    threads = _threads(spans)
    for thread, depth, pieces in threads.shelves:
        if (thread != threads.training or depth) and len(pieces):
            name = threads.names[thread]
            yield Lane(
                Group.REGIONS, f"+{depth} {name}" if depth else name, Level(pieces, threads.kinds)
            )


class _Threads(NamedTuple):
    """The spans of one rank by thread and depth."""

    names: list[str]
    training: int
    """The thread with the most time in phases."""
    shelves: list[tuple[int, int, Pieces]]
    kinds: tuple[str, ...]


def _threads(spans: pa.Table) -> _Threads:
    events, kinds = _events(spans, "phase", "name", first=PHASES)
    thread, names = _compact(spans["thread"])
    depth = np.clip(spans["depth"].to_numpy(), 0, _DEEPEST - 1).astype(np.int64)
    training = int(
        np.argmax(np.bincount(thread, weights=np.where(depth, 0, events.ends - events.starts)))
    )
    shelves = [
        (*divmod(key, _DEEPEST), first_begun(events.chosen(places)))
        for key, places in _groups(thread * _DEEPEST + depth)
    ]
    return _Threads(names, training, shelves, kinds)


_DEEPEST = 64
"""Regions that are nested deeper share a row."""


def _device_lanes(kernels: pa.Table) -> Iterator[Lane]:
    events, kinds = _events(kernels, "category", "name")
    device, names = _compact(kernels["device"])
    stream = kernels["stream"].to_numpy()
    for at, places in _groups(device):
        own = events if len(places) == len(events) else events.chosen(places)
        streams = stream if len(places) == len(events) else stream[places]
        only = _stream_label(names[at], int(streams[0])) if (streams == streams[0]).all() else ""
        yield Lane(Group.DEVICES, names[at], Level(first_begun(own), kinds), only)


def _stream_lanes(kernels: pa.Table) -> Iterator[Lane]:
    events, kinds = _events(kernels, "category", "name")
    device, names = _compact(kernels["device"])
    stream = kernels["stream"].to_numpy()
    for at, of_device in _groups(device):
        for number, places in _groups(stream[of_device]):
            yield Lane(
                Group.STREAMS,
                _stream_label(names[at], number),
                Level(first_begun(events.chosen(of_device[places])), kinds),
            )


def _stream_label(device: str, number: int) -> str:
    return f"{device} {'thread' if device == 'cpu' else 'stream'} {number}"


def _collective_lanes(collectives: pa.Table) -> Iterator[Lane]:
    events, kinds = _events(collectives, "op", "op")
    communicator, communicators = _compact(collectives["communicator"])
    for at, places in _groups(communicator):
        yield Lane(
            Group.COLLECTIVES, communicators[at], Level(first_begun(events.chosen(places)), kinds)
        )


_BUILDERS: Final = {
    Group.PHASES: _phase_lanes,
    Group.REGIONS: _region_lanes,
    Group.DEVICES: _device_lanes,
    Group.STREAMS: _stream_lanes,
    Group.COLLECTIVES: _collective_lanes,
}


def _events(
    rows: pa.Table, kind: str, name: str, *, first: Sequence[str] = ()
) -> tuple[Pieces, tuple[str, ...]]:
    """Every row as an event, and what the kinds are called, those of `first` in their own order."""
    codes, kinds = _compact(rows[kind])
    order = sorted(
        range(len(kinds)),
        key=lambda at: (first.index(kinds[at]) if kinds[at] in first else len(first), kinds[at]),
    )
    place = np.empty(len(order), dtype=np.min_scalar_type(len(order)))
    place[order] = np.arange(len(order))
    starts, ends = (rows[column].to_numpy() for column in ("start_ns", "end_ns"))
    names = rows[name].combine_chunks().indices.to_numpy()
    return Pieces(
        starts, ends, place[codes], names, np.arange(len(starts), dtype=np.uint32)
    ), tuple(kinds[at] for at in order)


def _compact(column: pa.ChunkedArray) -> tuple[Codes, list[str]]:
    """Each row's name as a small number, and the names that these stand for. Linear in the rows: nothing is sorted."""
    whole = column.combine_chunks()
    indices = whole.indices.to_numpy()
    present = np.flatnonzero(np.bincount(indices, minlength=1))
    place = np.zeros(int(present[-1]) + 1, dtype=np.int64)
    place[present] = np.arange(len(present))
    names = whole.dictionary
    return place[indices], [str(names[int(at)].as_py()) for at in present]


def _groups(keys: Ints) -> Iterator[tuple[int, Ints]]:
    """The places of each distinct key, in their order."""
    if (keys == keys[0]).all():
        yield int(keys[0]), np.arange(len(keys))
        return
    low, high = int(keys.min()), int(keys.max())
    order = np.argsort(
        (keys - low).astype(np.min_scalar_type(high - low)), kind="stable"
    )  # numbers of two bytes and less are sorted in linear time
    opens = np.flatnonzero(np.diff(keys[order], prepend=keys[order[0]] - 1))
    for places in np.split(order, opens[1:]):
        yield int(keys[places[0]]), places
