"""Writes the runs of tools that record only collectives, rank by rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from profkit.clock import Anchor
from profkit.errors import ProfkitError
from profkit.hangs.status import FOLDER, IMPORTED, Call, Status
from profkit.importers.base import Imported, Target, clean_name
from profkit.importers.reading import columns
from profkit.importers.reading.sanity import TimeGate
from profkit.trace.flag import Flag, FlagKind
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.vocab import UNMEASURED_CALLS

NO_STEPS = Flag(
    "the file has no steps: there are collectives, but no throughput and no phases", FlagKind.NOTE
)
IMPOSSIBLE = "collectives at impossible times"
MAX_RANKS = 100_000
MAX_NUMBER = 2**62
MAX_GROUP_SIZE = 2**31 - 1
BACKEND = "nccl"


class CollectiveRow(NamedTuple):
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
class CollectiveRows:
    """The collectives read so far, by rank, and what was dropped."""

    by_rank: dict[int, list[CollectiveRow]] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    world_size: int = 1
    dropped: Counter[str] = field(default_factory=Counter)
    flags: list[str] = field(default_factory=list)
    backend: str = BACKEND
    unmeasured: int = 0
    """Rows whose source does not measure how long they took."""
    calls: dict[int, Sequence[Call]] = field(default_factory=dict)
    """The last collectives of each rank, also of those that have not ended."""

    def add(self, row: CollectiveRow) -> None:
        """Keep a row; if its times are impossible, count it instead."""
        if max(abs(row.start_ns), abs(row.end_ns), row.ready_ns or 0) >= MAX_NUMBER:
            self.dropped[IMPOSSIBLE] += 1
            return
        self.by_rank.setdefault(row.rank, []).append(row)
        self.world_size = min(max(self.world_size, row.rank + 1, row.group_size), MAX_RANKS)

    def columns_of(self, rank: int, gate: TimeGate) -> Mapping[str, Any]:
        """Return a rank's rows with possible times as columns, oldest first."""
        rows = self.by_rank[rank]
        times = np.array([(row.start_ns, row.end_ns) for row in rows], dtype=np.int64)
        start, end = times[:, 0], times[:, 1]
        kept = np.flatnonzero(gate.keep(start, end - start, np.zeros(len(rows), dtype=bool)))
        kept = kept[np.argsort(start[kept], kind="stable")]
        communicators, ops, dtypes = [], [], []
        numbers = np.zeros((4, len(kept)), dtype=np.int64)
        is_ready = np.zeros(len(kept), dtype=bool)
        for place, chosen in enumerate(kept.tolist()):
            row = rows[chosen]
            communicators.append(row.communicator)
            ops.append(row.op)
            dtypes.append(row.dtype)
            group_size = min(row.group_size, MAX_GROUP_SIZE)
            numbers[:, place] = row.sequence, row.bytes, group_size, row.ready_ns or 0
            is_ready[place] = row.ready_ns is not None
        sequence, sizes, group_sizes, ready = numbers
        return {
            "communicator": communicators,
            "sequence": sequence,
            "op": ops,
            "bytes": sizes,
            "dtype": dtypes,
            "group_size": group_sizes.astype(np.int32),
            "ready_ns": columns.numbers(ready, is_ready),
            "start_ns": start[kept],
            "end_ns": end[kept],
            "backend": columns.constant(self.backend, len(kept)),
        }


def write_rows(
    importer: str, sources: Sequence[Path], target: Target, rows: CollectiveRows
) -> Imported:
    """Write the run of these rows, each rank's oldest first."""
    with target.new_run(importer, sources) as draft:
        gate = TimeGate()
        for rank in sorted({*rows.by_rank, *rows.calls}):
            host = ""
            if target.options.keep_private:
                host = clean_name(rows.hosts.get(rank, ""))
            manifest = RankManifest(rank, host, 0, "", Anchor(0, 0, 0), world_size=rows.world_size)
            tables = draft.rank(manifest)
            if rank in rows.by_rank:
                tables.write("collectives", rows.columns_of(rank, gate))
        _write_statuses(draft.run, rows)
        draft.dropped.update(rows.dropped)
        draft.flags += [NO_STEPS, *rows.flags, *gate.flags]
        config: dict[str, Any] = {"backend": rows.backend}
        if rows.unmeasured:
            config[UNMEASURED_CALLS] = rows.unmeasured
        return draft.finish(
            RunManifest(
                "",
                world_size=rows.world_size,
                config=config,
            )
        )


def _write_statuses(run: Path, rows: CollectiveRows) -> None:
    """Write what `profkit why` compares: the last collectives of each rank."""
    folder = run / FOLDER
    for rank, calls in rows.calls.items():
        members = []
        for call in calls:
            members.append(max(call.members, default=0) + 1)
        status = Status(
            rank,
            min(max([rows.world_size, rank + 1, *members]), MAX_RANKS),
            clean_name(rows.hosts.get(rank, "")),
            0,
            calls=tuple(calls),
            calls_from=IMPORTED,
        )
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            status.write(folder)
        except OSError as error:
            raise ProfkitError(f"{folder}: cannot be written ({error.strerror})") from error


def count(value: Any, default: int = 0) -> int:
    """Return a whole number of the file that is not negative; `default` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return default
    try:
        found = int(value)
    except ValueError:
        return default
    if not 0 <= found < MAX_NUMBER:
        return default
    return found
