"""A window as a timeline of nested slices.

Ranks are processes; host threads and device streams are their threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from profkit.exporters.base import BATCH_ROWS, Window

STEPS, LAUNCHES = "steps", "launches"
"""The names of the tracks that hold a rank's steps and its launches."""

_COLUMNS = {
    "steps": ("step", "start_ns", "end_ns"),
    "spans": ("thread", "name", "phase", "start_ns", "end_ns"),
    "kernels": ("device", "stream", "name", "category", "start_ns", "end_ns", "launch_ns"),
    "collectives": ("communicator", "op", "start_ns", "end_ns"),
    "samples": ("device", "metric", "time_ns", "value"),
}
"""The columns of each table that a timeline shows."""


class Slice(NamedTuple):
    """A piece of time; `flow` is the number that it shares with its launch."""

    start_ns: int
    end_ns: int
    name: str
    category: str
    flow: int | None = None


@dataclass(frozen=True)
class Track:
    """One thread of the timeline; if `instants` is true, its slices have no length."""

    rank: int
    label: str
    slices: tuple[Slice, ...]
    instants: bool = False


class Reading(NamedTuple):
    """One value of a counter."""

    time_ns: int
    value: float


@dataclass(frozen=True)
class Counter:
    """One sampled metric of one rank and device."""

    rank: int
    label: str
    readings: tuple[Reading, ...]


def tracks(window: Window) -> Iterator[Track]:
    """Yield every track, rank by rank: steps, host threads, launches, streams, collectives."""
    for rank in sorted(window.shifts):
        steps, launches, shift = [], [], window.shifts[rank]
        for row in _rows(window, "steps", rank):
            begin_ns, end_ns = row["start_ns"] + shift, row["end_ns"] + shift
            steps.append(Slice(begin_ns, end_ns, f"step {row['step']}", "step"))
        yield Track(rank, STEPS, tuple(steps))
        yield from _stacks(rank, _by_label(window, rank, "spans"))
        for place, row in enumerate(_rows(window, "kernels", rank)):
            if _is_launched(row):
                at_ns, flow = row["launch_ns"] + shift, _flow(rank, place)
                launches.append(Slice(at_ns, at_ns, str(row["name"]), "launch", flow))
        if launches:
            yield Track(rank, LAUNCHES, tuple(launches), instants=True)
        yield from _stacks(rank, _by_label(window, rank, "kernels"))
        yield from _stacks(rank, _by_label(window, rank, "collectives"))


def counters(window: Window) -> Iterator[Counter]:
    """Yield every sampled metric of every rank; a reading that is not finite has no place."""
    for rank in sorted(window.shifts):
        readings: dict[str, list[Reading]] = {}
        for row in _rows(window, "samples", rank):
            if not math.isfinite(row["value"]):
                continue
            label = f"{row['metric']} ({row['device'] or 'host'})"
            readings.setdefault(label, []).append(
                Reading(row["time_ns"] + window.shifts[rank], row["value"])
            )
        for label, values in sorted(readings.items()):
            yield Counter(rank, label, tuple(sorted(values)))


def _rows(window: Window, table: str, rank: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of one rank."""
    whole = window.tables[table]
    is_ranks = pc.equal(whole["rank"], pa.scalar(rank, whole["rank"].type))
    for batch in whole.filter(is_ranks).select(_COLUMNS[table]).to_batches(BATCH_ROWS):
        columns = []
        for column in batch.columns:
            columns.append(column.to_pylist())
        for values in zip(*columns, strict=True):
            yield dict(zip(_COLUMNS[table], values, strict=True))


def _by_label(window: Window, rank: int, table: str) -> dict[str, list[Slice]]:
    """Return the slices of a table by the label of their track."""
    found: dict[str, list[Slice]] = {}
    shift = window.shifts[rank]
    for place, row in enumerate(_rows(window, table, rank)):
        flow = None
        if _is_launched(row):
            flow = _flow(rank, place)
        if table == "spans":
            label, name, category = str(row["thread"]), str(row["name"]), str(row["phase"])
        elif table == "kernels":
            label, name = f"{row['device']} stream {row['stream']}", str(row["name"])
            category = str(row["category"])
        else:
            label, name = f"collectives of {row['communicator']}", str(row["op"])
            category = "collective"
        own = Slice(row["start_ns"] + shift, row["end_ns"] + shift, name, category, flow)
        found.setdefault(label, []).append(own)
    return found


def _is_launched(row: dict[str, Any]) -> bool:
    """Return true if the host launched a row's work on a device."""
    return row.get("launch_ns") is not None and row.get("device") != "cpu"


def _flow(rank: int, place: int) -> int:
    """Return the number that a kernel and its launch share, and no other kernel has."""
    return (rank + 1) << 40 | place


def _stacks(rank: int, by_label: dict[str, list[Slice]]) -> Iterator[Track]:
    """Yield a track for each label, and more if slices overlap: a viewer draws only stacks."""
    for label, slices in sorted(by_label.items()):
        for index, part in enumerate(nesting(slices)):
            suffix = f" ({index + 1})" if index else ""
            yield Track(rank, label + suffix, tuple(part))


def nesting(slices: list[Slice]) -> list[list[Slice]]:
    """Split slices into as few lists as possible so that those of each list nest.

    The oldest and longest come first.
    """
    lists: list[list[Slice]] = []
    open_ends: list[list[int]] = []
    for each in sorted(slices, key=lambda slice_: (slice_.start_ns, -slice_.end_ns)):
        for own, ends in zip(lists, open_ends, strict=True):
            while ends and ends[-1] <= each.start_ns:
                ends.pop()
            if not ends or each.end_ns <= ends[-1]:
                own.append(each)
                ends.append(each.end_ns)
                break
        else:
            lists.append([each])
            open_ends.append([each.end_ns])
    return lists
