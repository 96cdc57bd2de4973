"""How long each device was busy, computed, communicated, and what of the communication nothing hid.

All of the device's work counts, also what no step and no launch is known of. Kernels overlap, so
times are lengths of unions of intervals. Everything is in whole nanoseconds and exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profkit.analysis.estimate import Ints
from profkit.analysis.kernels.categories import COMMUNICATION, COPY_CATEGORIES, MEMSET

HOST = "cpu"
_MOVES = frozenset({*COPY_CATEGORIES.values(), "copy", MEMSET})


@dataclass(frozen=True)
class DeviceTime:
    """One device of one rank, from its first work to its last.

    `compute` is kernels other than communication, `moves` is copies and fills by the driver.
    `overlap` is communication while something computes; `exposed` is the rest of communication.
    """

    rank: int
    device: str
    window_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    moves_ns: int
    overlap_ns: int

    @property
    def idle_ns(self) -> int:
        return self.window_ns - self.busy_ns

    @property
    def exposed_ns(self) -> int:
        return self.communication_ns - self.overlap_ns


def device_times(kernels: pa.Table) -> tuple[DeviceTime, ...]:
    """A row for each rank and device that ran anything; operators on the host are no device's work."""
    return tuple(_times_by_device(kernels))


def _times_by_device(kernels: pa.Table) -> Iterator[DeviceTime]:
    if not kernels.num_rows:
        return
    rank = kernels["rank"].to_numpy().astype(np.int64)
    names, device = _codes(kernels["device"])
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    kind = _kinds(kernels["category"])
    for key in np.unique(rank * len(names) + device).tolist():
        if names[key % len(names)] != HOST:
            mine = np.flatnonzero((rank == key // len(names)) & (device == key % len(names)))
            yield _times(
                key // len(names), names[key % len(names)], start[mine], end[mine], kind[mine]
            )


def _codes(column: pa.ChunkedArray) -> tuple[list[str], Ints]:
    whole = column.unify_dictionaries().combine_chunks()
    return whole.dictionary.to_pylist(), whole.indices.to_numpy().astype(np.int64)


def _kinds(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """0 for computing, 1 for communication, 2 for copies and fills."""
    names, code = _codes(column)
    return np.array(
        [1 if name == COMMUNICATION else 2 if name in _MOVES else 0 for name in names],
        dtype=np.int64,
    )[code]


def _times(rank: int, device: str, start: Ints, end: Ints, kind: Ints) -> DeviceTime:
    compute, communication = (
        covered(start[kind == 0], end[kind == 0]),
        covered(start[kind == 1], end[kind == 1]),
    )
    either = covered(start[kind < 2], end[kind < 2])
    return DeviceTime(
        rank=rank,
        device=device,
        window_ns=int(end.max() - start.min()),
        busy_ns=covered(start, end),
        compute_ns=compute,
        communication_ns=communication,
        moves_ns=covered(start[kind == 2], end[kind == 2]),
        overlap_ns=compute + communication - either,
    )


def covered(start: Ints, end: Ints) -> int:
    """The length of the intervals' union."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(start[1:] - reach[:-1], 0).sum()
    return int(reach[-1] - start[0] - gaps)
