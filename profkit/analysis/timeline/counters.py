"""Counters sampled next to the steps of one rank, as rows below the timeline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from profkit.analysis.running_totals import as_rate
from profkit.frame.columns import names_and_codes
from profkit.frame.estimate import Floats, Ints
from profkit.vocab import KERNELS, QUEUE_DEPTH

COLUMNS: Final = ("device", "source", "metric", "time_ns", "value")
OWN_SOURCES: Final = frozenset({"profkit", KERNELS})
"""Collectors of rows about profkit itself, which say nothing of the job."""

FIRST: Final = (
    "busy_percent",
    "memory_used_bytes",
    "power_watts",
    "sm_clock_mhz",
    "allocated_bytes",
    QUEUE_DEPTH,
    "cpu_busy_cores",
    "cpu_cores",
    "run_queue_count",
    "resident_bytes",
    "memory_available_bytes",
    "disk_read_bytes_per_s",
    "disk_written_bytes_per_s",
)
"""Metrics that are shown before others, the most telling first."""


class Readings(NamedTuple):
    """The mean, smallest and largest reading in each cell; NaN if there are none."""

    means: Floats
    lows: Floats
    highs: Floats


@dataclass(frozen=True, eq=False)
class Counter:
    """One metric over time, on the rank's own clock."""

    device: str
    metric: str
    times_ns: Ints
    values: Floats

    @property
    def order(self) -> tuple[int, bool, str, str]:
        """The sort key: the metrics of `FIRST` come first, then those that change."""
        place = FIRST.index(self.metric) if self.metric in FIRST else len(FIRST)
        return place, bool(np.ptp(self.values) == 0), self.metric, self.device

    def cells(self, borders: Ints) -> Readings:
        """Return the readings by the cells between the boundaries."""
        place = np.searchsorted(self.times_ns, borders, side="left")
        first, count = place[:-1], np.diff(place)
        some = count > 0
        shown = Readings(*np.full((3, len(count)), np.nan))
        if some.any():
            inside = self.values[: place[-1]]
            shown.means[some] = np.add.reduceat(inside, first[some]) / count[some]
            shown.lows[some] = np.minimum.reduceat(inside, first[some])
            shown.highs[some] = np.maximum.reduceat(inside, first[some])
        return shown

    def before(self, time_ns: int) -> float:
        """Return the last reading before a moment; NaN if there is none."""
        place = int(np.searchsorted(self.times_ns, time_ns, side="left"))
        return float(self.values[place - 1]) if place else math.nan


def counters_of(samples: pa.Table) -> list[Counter]:
    """Return the counters of one rank, the most telling first, without readings that are NaN."""
    if not samples.num_rows:
        return []
    times, values = samples["time_ns"].to_numpy(), samples["value"].to_numpy()
    devices, device = names_and_codes(samples["device"])
    sources, source = names_and_codes(samples["source"])
    metrics, metric = names_and_codes(samples["metric"])
    keys, which = np.unique(np.stack([device, source, metric]), axis=1, return_inverse=True)
    found = []
    for place, (device_code, source_code, metric_code) in enumerate(keys.T.tolist()):
        if sources[source_code] in OWN_SOURCES:
            continue
        mine = np.flatnonzero((which.ravel() == place) & np.isfinite(values))
        mine = mine[np.argsort(times[mine], kind="stable")]
        name, read_ns, readings = as_rate(
            sources[source_code], metrics[metric_code], times[mine], values[mine]
        )
        if len(read_ns):
            shown = "" if device_code < 0 else devices[device_code]
            found.append(Counter(shown, name, read_ns, readings))
    return sorted(found, key=lambda counter: counter.order)
