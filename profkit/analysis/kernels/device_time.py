"""Time in which each device was busy, computed, communicated, and communicated unhidden.

All of the device's work counts, even if its step or launch is unknown. Kernels overlap, so times
are lengths of unions of intervals. Everything is in whole nanoseconds and exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profkit.analysis.columns import codes_of, names_and_codes
from profkit.analysis.estimate import Ints
from profkit.analysis.intervals import union_length
from profkit.analysis.kernels.categories import COMMUNICATION, COPY_CATEGORIES, MEMSET

HOST = "cpu"
_MOVES = frozenset({*COPY_CATEGORIES.values(), "copy", MEMSET})
_COMPUTING, _COMMUNICATING, _MOVING = range(3)


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

    @classmethod
    def sum_up(cls, rank: int, device: str, start: Ints, end: Ints, kind: Ints) -> DeviceTime:
        """Sum up the work of one device; `kind` says what each piece of work is."""
        computing, communicating = kind == _COMPUTING, kind == _COMMUNICATING
        moving = kind == _MOVING
        compute = union_length(start[computing], end[computing])
        communication = union_length(start[communicating], end[communicating])
        either = union_length(start[~moving], end[~moving])
        return cls(
            rank=rank,
            device=device,
            window_ns=int(end.max() - start.min()),
            busy_ns=union_length(start, end),
            compute_ns=compute,
            communication_ns=communication,
            moves_ns=union_length(start[moving], end[moving]),
            overlap_ns=compute + communication - either,
        )


def device_times(kernels: pa.Table) -> tuple[DeviceTime, ...]:
    """Return a row for each rank and device that ran anything, except for the host."""
    rank = kernels["rank"].to_numpy().astype(np.int64)
    devices, device = names_and_codes(kernels["device"])
    categories, category = names_and_codes(kernels["category"])
    kinds = np.full(len(categories), _COMPUTING, dtype=np.int64)
    for place, name in enumerate(categories):
        if name == COMMUNICATION:
            kinds[place] = _COMMUNICATING
        elif name in _MOVES:
            kinds[place] = _MOVING
    kind = kinds[category]
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    found = []
    for key in np.unique(rank * len(devices) + device).tolist():
        number, place = divmod(key, len(devices))
        if devices[place] != HOST:
            mine = (rank == number) & (device == place)
            found.append(
                DeviceTime.sum_up(number, devices[place], start[mine], end[mine], kind[mine])
            )
    return tuple(found)


def device_lanes(kernels: pa.Table) -> Ints:
    """Return a number for the rank and device of each kernel."""
    rank = kernels["rank"].to_numpy().astype(np.int64)
    return np.asarray(rank * 2**31 + codes_of(kernels["device"]))
