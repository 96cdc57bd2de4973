"""A window as a timeline: ranks as processes, host threads and device streams as their threads, slices that nest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from profkit.exporters.base import Window

STEPS, LAUNCHES = "steps", "launches"


class Slice(NamedTuple):
    """Something with a beginning and an end; `flow` is the number that its launch shares with it."""

    start_ns: int
    end_ns: int
    name: str
    category: str
    flow: int | None = None


@dataclass(frozen=True)
class Track:
    """One thread of the picture. `launches` holds instants rather than slices."""

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
    rank: int
    label: str
    readings: tuple[Reading, ...]


def tracks(window: Window) -> Iterator[Track]:
    """Every track, rank after rank: steps, host threads, launches, streams, collectives."""
    for rank in sorted(window.shifts):
        yield Track(rank, STEPS, tuple(_steps(window, rank)))
        yield from _stacks(rank, _by_label(window, rank, "spans"))
        kernels = _by_label(window, rank, "kernels")
        launches = tuple(_launches(window, rank))
        if launches:
            yield Track(rank, LAUNCHES, launches, instants=True)
        yield from _stacks(rank, kernels)
        yield from _stacks(rank, _by_label(window, rank, "collectives"))


def counters(window: Window) -> Iterator[Counter]:
    """Every sampled metric of every rank."""
    for rank in sorted(window.shifts):
        readings: dict[str, list[Reading]] = {}
        for row in _rows(window, "samples", rank):
            label = f"{row['metric']} ({row['device'] or 'host'})"
            readings.setdefault(label, []).append(
                Reading(row["time_ns"] + window.shifts[rank], row["value"])
            )
        for label, values in sorted(readings.items()):
            yield Counter(rank, label, tuple(sorted(values)))


_WANTED = {
    "steps": ("step", "start_ns", "end_ns"),
    "spans": ("thread", "name", "phase", "start_ns", "end_ns"),
    "kernels": ("device", "stream", "name", "category", "start_ns", "end_ns", "launch_ns"),
    "collectives": ("communicator", "op", "start_ns", "end_ns"),
    "samples": ("device", "metric", "time_ns", "value"),
}


def _rows(window: Window, table: str, rank: int) -> Iterator[dict[str, Any]]:
    """The rank's rows with the columns that a timeline shows."""
    whole = window.tables[table]
    mine = whole.filter(_equals(whole["rank"], rank)).select(_WANTED[table])
    for batch in mine.to_batches(max_chunksize=65_536):
        columns = [column.to_pylist() for column in batch.columns]
        for values in zip(*columns, strict=True):
            yield dict(zip(_WANTED[table], values, strict=True))


def _equals(column: pa.ChunkedArray, value: int) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    return pc.equal(column, pa.scalar(value, column.type))


def _steps(window: Window, rank: int) -> Iterator[Slice]:
    shift = window.shifts[rank]
    for row in _rows(window, "steps", rank):
        yield Slice(row["start_ns"] + shift, row["end_ns"] + shift, f"step {row['step']}", "step")


def _by_label(window: Window, rank: int, table: str) -> dict[str, list[Slice]]:
    found: dict[str, list[Slice]] = {}
    shift = window.shifts[rank]
    for place, row in enumerate(_rows(window, table, rank)):
        label, name, category = _describe(table, row)
        flow = (
            _flow(rank, place)
            if row.get("launch_ns") is not None and row.get("device") != "cpu"
            else None
        )
        found.setdefault(label, []).append(
            Slice(row["start_ns"] + shift, row["end_ns"] + shift, name, category, flow)
        )
    return found


def _describe(table: str, row: dict[str, Any]) -> tuple[str, str, str]:
    if table == "spans":
        return str(row["thread"]), str(row["name"]), str(row["phase"])
    if table == "kernels":
        return f"{row['device']} stream {row['stream']}", str(row["name"]), str(row["category"])
    return f"collectives of {row['communicator']}", str(row["op"]), "collective"


def _flow(rank: int, place: int) -> int:
    return (rank + 1) << 40 | place


def _launches(window: Window, rank: int) -> Iterator[Slice]:
    shift = window.shifts[rank]
    for place, row in enumerate(_rows(window, "kernels", rank)):
        if row["launch_ns"] is not None and row["device"] != "cpu":
            yield Slice(
                row["launch_ns"] + shift,
                row["launch_ns"] + shift,
                str(row["name"]),
                "launch",
                _flow(rank, place),
            )


def _stacks(rank: int, by_label: dict[str, list[Slice]]) -> Iterator[Track]:
    """A track for each label, and more where slices overlap without nesting: a viewer draws only stacks."""
    for label, slices in sorted(by_label.items()):
        for index, part in enumerate(nesting(slices)):
            yield Track(rank, label if index == 0 else f"{label} ({index + 1})", tuple(part))


def nesting(slices: list[Slice]) -> list[list[Slice]]:
    """The slices in as few lists as it takes to have each one's nest, oldest and longest first."""
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
