"""What was sampled beside the steps of one rank, as rows below the timeline: the most telling first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from profkit.analysis.estimate import Floats, Ints
from profkit.analysis.running_totals import as_rate
from profkit.analysis.timeline.levels import Readings, read_cells
from profkit.vocab import KERNELS

COLUMNS: Final = ("device", "source", "metric", "time_ns", "value")
OWN_SOURCES: Final = frozenset({"profkit", KERNELS})
"""Rows about profkit itself, which say nothing of the job."""

FIRST: Final = (
    "busy_percent",
    "memory_used_bytes",
    "power_watts",
    "sm_clock_mhz",
    "allocated_bytes",
    "queue_depth_batches",
    "cpu_busy_cores",
    "cpu_cores",
    "run_queue_count",
    "resident_bytes",
    "memory_available_bytes",
    "disk_read_bytes_per_s",
    "disk_written_bytes_per_s",
)
"""Metrics that are shown before others, the most telling first."""


@dataclass(frozen=True, eq=False)
class Counter:
    """One metric over time, on the rank's own clock."""

    device: str
    metric: str
    times_ns: Ints
    values: Floats

    def cells(self, borders: Ints) -> Readings:
        return read_cells(self.times_ns, self.values, borders)

    def before(self, time_ns: int) -> float:
        """The last reading before a moment; NaN where there is none."""
        place = int(np.searchsorted(self.times_ns, time_ns, side="left"))
        return float(self.values[place - 1]) if place else math.nan


def counters_of(samples: pa.Table) -> list[Counter]:
    """The counters of one rank, the most telling first. Readings that are no numbers are left out."""
    return sorted(_counters(samples), key=_place)


def _place(counter: Counter) -> tuple[int, bool, str, str]:
    """Those of `FIRST` in its order, then those that change."""
    known = FIRST.index(counter.metric) if counter.metric in FIRST else len(FIRST)
    return (
        known,
        bool(np.ptp(counter.values) == 0) if len(counter.values) else True,
        counter.metric,
        counter.device,
    )


def _counters(samples: pa.Table) -> Iterator[Counter]:
    if not samples.num_rows:
        return
    times, values = samples["time_ns"].to_numpy(), samples["value"].to_numpy()
    keys = [samples[name].combine_chunks() for name in ("device", "source", "metric")]
    codes = np.stack([key.indices.fill_null(-1).to_numpy() for key in keys])
    distinct, which = np.unique(codes, axis=1, return_inverse=True)
    for at, (device, source, metric) in enumerate(distinct.T):
        if str(keys[1].dictionary[int(source)]) in OWN_SOURCES:
            continue
        mine = np.flatnonzero((which.ravel() == at) & np.isfinite(values))
        mine = mine[np.argsort(times[mine], kind="stable")]
        where = "" if device < 0 else str(keys[0].dictionary[int(device)])
        name, read_ns, readings = as_rate(
            str(keys[1].dictionary[int(source)]),
            str(keys[2].dictionary[int(metric)]),
            times[mine],
            values[mine],
        )
        if len(read_ns):
            yield Counter(where, name, read_ns, readings)
