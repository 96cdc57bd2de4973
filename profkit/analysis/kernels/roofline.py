"""Finds what limits each kernel: memory, arithmetic units, or a late launch by the host.

Null means unknown: profilers seldom report a kernel's bytes and operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.kernels.idle import HOST, LAUNCH_LATENCY_NS, device_lanes
from profkit.frame.columns import durations, equals
from profkit.frame.estimate import Floats
from profkit.frame.intervals import split_lanes

LAUNCH, MEMORY, ARITHMETIC = "launch", "memory", "arithmetic"


@dataclass(frozen=True)
class Places:
    """Each kernel's duration, its shortest possible times, and those waited for.

    The shortest times in ns are those that its arithmetic and its bytes allow; NaN if the work or
    the ceiling is not known.
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
        unknown = np.full(len(self.length_ns), np.nan)
        ran = self.length_ns > 0
        return np.asarray(np.divide(self.least_ns, self.length_ns, out=unknown, where=ran))

    def bound(self, place: int) -> str | None:
        """Return what binds one kernel: its launch, whatever it computes, or else its work."""
        if self.launch_bound[place]:
            return LAUNCH
        return bound_by_work(self.arithmetic_ns[place], self.memory_ns[place])


def bound_by_work(arithmetic_ns: float, memory_ns: float) -> str | None:
    """Return the ceiling with the longer shortest time; `None` if neither is known."""
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
    """Place each kernel under the roofline.

    Tensor Cores work at `matrix_precision`, everything else at `precision`. A kernel is bound by
    its launch if it found its device idle, for longer than it runs itself, and began as soon as it
    was launched.
    """
    rates = ceilings.matrix_flops_per_s
    fast, plain = rates.get(matrix_precision or precision, np.nan), rates.get(precision, np.nan)
    on_tensor_cores = kernels["tensor_core"].fill_null(fill_value=False).to_numpy().astype(bool)
    return Places(
        length_ns=durations(kernels).astype(np.float64),
        arithmetic_ns=_numbers(kernels["flops"]) / np.where(on_tensor_cores, fast, plain) * 1e9,
        memory_ns=_numbers(kernels["bytes"]) / (ceilings.copy_bytes_per_s or np.nan) * 1e9,
        launch_bound=_waited_for(kernels),
    )


def _numbers(column: pa.ChunkedArray) -> Floats:
    """Return a column as floats, null as NaN; huge integers of damaged files are rounded."""
    numbers = column.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy()
    return np.asarray(numbers, dtype=np.float64)


def _waited_for(kernels: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which kernels their device waited for; operators on the host have no launch."""
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    lane = device_lanes(kernels)
    order = np.lexsort((end, start, lane))
    idle = np.zeros(len(order), dtype=np.int64)
    for places in split_lanes(order, lane):
        idle[places[1:]] = start[places[1:]] - np.maximum.accumulate(end[places])[:-1]
    launch = kernels["launch_ns"]
    queued = start - launch.fill_null(0).to_numpy()
    soon = launch.is_valid().to_numpy() & (queued < LAUNCH_LATENCY_NS)
    waited = np.maximum(idle, 0) > end - start
    return np.asarray(~equals(kernels["device"], HOST) & soon & waited)
