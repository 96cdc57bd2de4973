"""What holds each kernel back: the memory, the arithmetic units, or the host that launches too late.

Null is not known: profilers seldom tell a kernel's bytes and operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.estimate import Floats, Ints

LAUNCH, MEMORY, ARITHMETIC = "launch", "memory", "arithmetic"

LAUNCH_LATENCY_NS: Final = 20_000
"""A kernel that begins this soon after its launch has not waited in a queue."""


@dataclass(frozen=True)
class Places:
    """By kernel: what binds it, and the share of that ceiling that it reaches; both null where they are not known."""

    bound: tuple[str | None, ...]
    share: Floats


def place_kernels(kernels: pa.Table, ceilings: Ceilings, *, precision: str = "fp32") -> Places:
    """Where each kernel stands under the roof: nearest to the ceiling whose minimum time is longest.

    A kernel that found its device idle, for longer than it runs itself, and that began as soon as it
    was launched, is bound by its launch, whatever it computes.
    """
    length = (kernels["end_ns"].to_numpy() - kernels["start_ns"].to_numpy()).astype(np.float64)
    arithmetic = _numbers(kernels["flops"]) / ceilings.matrix_flops_per_s.get(precision, np.nan) * 1e9
    memory = _numbers(kernels["bytes"]) / (ceilings.copy_bytes_per_s or np.nan) * 1e9
    least = np.fmax(arithmetic, memory)
    by_work = np.where(np.nan_to_num(arithmetic) >= np.nan_to_num(memory), ARITHMETIC, MEMORY)
    late = _is_late(kernels, length)
    bound = [LAUNCH if waits else str(kind) if np.isfinite(time) else None for waits, kind, time in zip(late, by_work, least, strict=True)]
    return Places(tuple(bound), np.divide(least, length, out=np.full(len(length), np.nan), where=length > 0))


def _numbers(column: pa.ChunkedArray) -> Floats:
    return np.asarray(column.cast(pa.float64()).fill_null(np.nan).to_numpy(), dtype=np.float64)


def _is_late(kernels: pa.Table, length: Floats) -> npt.NDArray[np.bool_]:
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    idle = _idle_before(kernels, start, end)
    return np.asarray((start - _numbers(kernels["launch_ns"]) < LAUNCH_LATENCY_NS) & (idle > length))


def _idle_before(kernels: pa.Table, start: Ints, end: Ints) -> Ints:
    """How long nothing ran on the kernel's device when it began; 0 for the first."""
    device = kernels["device"].combine_chunks().indices.to_numpy().astype(np.int64) if len(start) else start
    lane = kernels["rank"].to_numpy().astype(np.int64) * 2**31 + device
    order = np.lexsort((end, start, lane))
    idle = np.zeros(len(order), dtype=np.int64)
    for places in np.split(order, np.flatnonzero(np.diff(lane[order])) + 1):
        if len(places):
            idle[places[1:]] = start[places[1:]] - np.maximum.accumulate(end[places])[:-1]
    return np.maximum(idle, 0)
