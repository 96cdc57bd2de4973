"""Collectives that a tool recorded by themselves, rank by rank, as runs of the contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from profkit.clock import Anchor
from profkit.importers.base import Imported, Target, clean_name
from profkit.importers.reading import columns
from profkit.importers.reading.sanity import Gate, Ints
from profkit.trace.manifest import RankManifest, RunManifest

NO_STEPS = "the file knows no steps: there is no throughput and no split in it, only collectives"
IMPOSSIBLE = "collectives at times that no clock shows"
MOST_RANKS = 100_000
LARGEST = 2**62


class Row(NamedTuple):
    """One collective on one rank."""

    rank: int
    communicator: str
    sequence: int
    op: str
    bytes: int
    dtype: str
    group_size: int
    ready_ns: int | None
    start_ns: int
    end_ns: int


@dataclass
class Rows:
    """What was read so far: rows by rank, hosts, and what was left out."""

    by_rank: dict[int, list[Row]] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    world_size: int = 1
    dropped: Counter[str] = field(default_factory=Counter)
    flags: list[str] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Keep a row; one whose times no clock can show is counted instead."""
        if max(abs(row.start_ns), abs(row.end_ns), row.ready_ns or 0) >= LARGEST:
            self.dropped[IMPOSSIBLE] += 1
            return
        self.by_rank.setdefault(row.rank, []).append(row)
        self.world_size = min(max(self.world_size, row.rank + 1, row.group_size), MOST_RANKS)


def write_rows(
    importer: str, sources: Sequence[Path], target: Target, rows: Rows, backend: str
) -> Imported:
    """The run of these rows, each rank's oldest first."""
    with target.new_run(importer, sources) as draft:
        gate = Gate()
        for rank, mine in sorted(rows.by_rank.items()):
            host = clean_name(rows.hosts.get(rank, "")) if target.options.keep_private else ""
            tables = draft.rank(
                RankManifest(rank, host, 0, "", Anchor(0, 0, 0), world_size=rows.world_size)
            )
            tables.write("collectives", _columns(mine, gate, backend))
        draft.dropped.update(rows.dropped)
        draft.flags += [NO_STEPS, *rows.flags, *gate.flags]
        return draft.finish(
            RunManifest(
                clean_name(sources[0].name.partition(".")[0]),
                world_size=rows.world_size,
                config={"backend": backend},
            )
        )


def _columns(rows: Sequence[Row], gate: Gate, backend: str) -> Mapping[str, Any]:
    start, end = _numbers([row.start_ns for row in rows]), _numbers([row.end_ns for row in rows])
    kept = np.flatnonzero(gate.keep(start, end - start, np.zeros(len(rows), dtype=bool)))
    kept = kept[np.argsort(start[kept], kind="stable")]
    chosen = [rows[place] for place in kept.tolist()]
    ready = [row.ready_ns for row in chosen]
    return {
        "communicator": [row.communicator for row in chosen],
        "sequence": _numbers([row.sequence for row in chosen]),
        "op": [row.op for row in chosen],
        "bytes": _numbers([row.bytes for row in chosen]),
        "dtype": [row.dtype for row in chosen],
        "group_size": np.array([min(row.group_size, 2**31 - 1) for row in chosen], dtype=np.int32),
        "ready_ns": columns.numbers(
            _numbers([each or 0 for each in ready]),
            np.array([each is not None for each in ready], dtype=bool),
        ),
        "start_ns": start[kept],
        "end_ns": end[kept],
        "backend": columns.constant(backend, len(chosen)),
    }


def _numbers(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64).reshape(-1)


def count(value: Any, default: int = 0) -> int:
    """A whole number of the file that is not below zero; `default` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return default
    try:
        found = int(value)
    except ValueError:
        return default
    return found if 0 <= found < LARGEST else default
