"""What holds each kernel back: the memory, the arithmetic units, or the host that launches too late.

Null is not known: profilers seldom tell a kernel's bytes and operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.estimate import Floats, Ints
from profkit.analysis.kernels.device_time import HOST

LAUNCH, MEMORY, ARITHMETIC = "launch", "memory", "arithmetic"

LAUNCH_LATENCY_NS: Final = 20_000
"""A kernel that begins this soon after its launch has not waited in a queue."""


@dataclass(frozen=True)
class Places:
    """By kernel: how long it ran, the shortest times in ns that its arithmetic and its bytes allow, and whether its device waited for it.

    A time is NaN where the work or the ceiling is not known.
    """

    length_ns: Floats
    arithmetic_ns: Floats
    memory_ns: Floats
    launch_bound: npt.NDArray[np.bool_]

    @property
    def least_ns(self) -> Floats:
        return np.asarray(np.fmax(self.arithmetic_ns, self.memory_ns))

    @property
    def share(self) -> Floats:
        """The share of its ceiling that each kernel reaches."""
        return np.asarray(
            np.divide(
                self.least_ns,
                self.length_ns,
                out=np.full(len(self.length_ns), np.nan),
                where=self.length_ns > 0,
            )
        )

    def bound(self, place: int) -> str | None:
        """What binds one kernel: its launch, whatever it computes; else the ceiling whose shortest time is longest."""
        return (
            LAUNCH
            if self.launch_bound[place]
            else bound_by_work(self.arithmetic_ns[place], self.memory_ns[place])
        )


def bound_by_work(arithmetic_ns: float, memory_ns: float) -> str | None:
    """The ceiling that work stands nearest to; `None` where neither time is known."""
    if math.isnan(arithmetic_ns) and math.isnan(memory_ns):
        return None
    return ARITHMETIC if math.isnan(memory_ns) or arithmetic_ns >= memory_ns else MEMORY


def place_kernels(
    kernels: pa.Table,
    ceilings: Ceilings,
    *,
    precision: str = "fp32",
    matrix_precision: str | None = None,
) -> Places:
    """Where each kernel stands under the roof. Tensor Cores work at `matrix_precision`, everything else at `precision`.

    A kernel that found its device idle, for longer than it runs itself, and that began as soon as it
    was launched, is bound by its launch.
    """
    fast, plain = (
        ceilings.matrix_flops_per_s.get(name, np.nan)
        for name in (matrix_precision or precision, precision)
    )
    on_tensor_cores = kernels["tensor_core"].fill_null(fill_value=False).to_numpy().astype(bool)
    return Places(
        length_ns=(kernels["end_ns"].to_numpy() - kernels["start_ns"].to_numpy()).astype(
            np.float64
        ),
        arithmetic_ns=_numbers(kernels["flops"]) / np.where(on_tensor_cores, fast, plain) * 1e9,
        memory_ns=_numbers(kernels["bytes"]) / (ceilings.copy_bytes_per_s or np.nan) * 1e9,
        launch_bound=_waited_for(kernels),
    )


def _numbers(column: pa.ChunkedArray) -> Floats:
    """Null is NaN. Large integers of damaged files are rounded, and no error."""
    return np.asarray(
        column.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(), dtype=np.float64
    )


def _waited_for(kernels: pa.Table) -> npt.NDArray[np.bool_]:
    """Which kernels their device waited for. An operator on the host is launched by nobody."""
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    if not len(start):
        return np.empty(0, dtype=bool)
    idle = _idle_before(kernels, start, end)
    device = kernels["device"].combine_chunks()
    on_device = ~np.isin(
        device.indices.to_numpy(), pc.indices_nonzero(pc.equal(device.dictionary, HOST)).to_numpy()
    )
    launch = kernels["launch_ns"]
    soon = launch.is_valid().to_numpy() & (
        start - launch.fill_null(0).to_numpy() < LAUNCH_LATENCY_NS
    )
    return np.asarray(on_device & soon & (idle > end - start))


def _idle_before(kernels: pa.Table, start: Ints, end: Ints) -> Ints:
    """How long nothing ran on the kernel's device when it began; 0 for the first."""
    device = kernels["device"].combine_chunks().indices.to_numpy().astype(np.int64)
    lane = kernels["rank"].to_numpy().astype(np.int64) * 2**31 + device
    order = np.lexsort((end, start, lane))
    idle = np.zeros(len(order), dtype=np.int64)
    for places in np.split(order, np.flatnonzero(np.diff(lane[order])) + 1):
        idle[places[1:]] = start[places[1:]] - np.maximum.accumulate(end[places])[:-1]
    return np.maximum(idle, 0)
