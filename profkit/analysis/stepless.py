"""What an imported run has whose source knows no steps: collectives, or results of a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.bandwidth import FACTORS
from profkit.frame.device_times import is_own
from profkit.frame.notices import find_notices
from profkit.frame.run_frame import frame_of
from profkit.trace import Trace, verify
from profkit.vocab import UNMEASURED_CALLS, Integrity, RunState


@dataclass(frozen=True)
class CollectiveCount:
    """One operation of one communicator; a call is that of one rank."""

    communicator: str
    op: str
    backend: str
    group_size: int
    ranks: int
    calls: int
    bytes_per_call: float
    ns_per_call: float | None = None
    """The mean time of a call on one rank, with its wait for others; null if not measured."""

    @property
    def bus_bytes_per_s(self) -> float | None:
        """What each link carried meanwhile; null for an operation or a group that is not known."""
        factor = FACTORS.get(self.op)
        if not self.ns_per_call or factor is None or self.group_size < 2:
            return None
        return self.bytes_per_call * factor(self.group_size) * 1e9 / self.ns_per_call


@dataclass(frozen=True)
class Stepless:
    """The contents of a run without steps."""

    name: str
    path: str
    workload: str
    framework: str
    state: RunState
    world_size: int
    ranks_seen: int
    config: Mapping[str, Any]
    collectives: tuple[CollectiveCount, ...]
    quality: tuple[str, ...]
    flags: tuple[str, ...]


def view_stepless(trace: Trace) -> Stepless | None:
    """Return what a run has; `None` if it has steps, or should have some."""
    if trace.steps.num_rows or is_own(trace):
        return None
    if verify(trace.path).state not in (Integrity.COMPLETE, Integrity.ENDED_EARLY):
        return None
    manifest = trace.manifest
    return Stepless(
        name=trace.name,
        path=str(trace.path),
        workload=manifest.workload,
        framework=manifest.framework,
        state=manifest.state,
        world_size=manifest.world_size,
        ranks_seen=len(trace.ranks),
        config=manifest.config,
        collectives=count_collectives(
            trace.collectives, measured=not manifest.config.get(UNMEASURED_CALLS)
        ),
        quality=find_notices(trace, frame_of(trace).device_times),
        flags=manifest.flags,
    )


def count_collectives(rows: pa.Table, *, measured: bool) -> tuple[CollectiveCount, ...]:
    """Count the calls by communicator and operation, the most frequent first.

    Unless they are `measured`, the times in the source are no durations.
    """
    names = ["communicator", "op", "backend"]
    took = pc.subtract(rows["end_ns"], rows["start_ns"])
    rows = rows.select([*names, "group_size", "rank", "bytes"]).append_column("took", took)
    for place, name in enumerate(names):
        rows = rows.set_column(place, name, rows[name].cast(pa.string()))
    sums = [("rank", "count_distinct"), ("rank", "count"), ("bytes", "mean"), ("took", "mean")]
    found = []
    for each in rows.group_by([*names, "group_size"]).aggregate(sums).to_pylist():
        count = CollectiveCount(
            communicator=each["communicator"],
            op=each["op"],
            backend=each["backend"],
            group_size=each["group_size"],
            ranks=each["rank_count_distinct"],
            calls=each["rank_count"],
            bytes_per_call=each["bytes_mean"],
            ns_per_call=each["took_mean"] if measured else None,
        )
        found.append(count)
    found.sort(key=lambda each: (-each.calls, each.communicator, each.op, each.backend))
    return tuple(found)
