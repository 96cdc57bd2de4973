"""Readings of devices and hosts over a run, as curves of lowest, mean and highest values.

Counters that grow from the machine's start become rates. Times are those of each rank's own clock,
from its first step to the end of its last. The readings of unknown collectors are shown unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.running_totals import as_rate
from profkit.analysis.views.series import Series, bin_readings
from profkit.errors import UnreadableError
from profkit.frame.columns import rows_of_rank
from profkit.trace import Trace
from profkit.trace.reader import RankTrace
from profkit.vocab import COLLECTORS_CPU, KERNELS, LOST_GPU

SOURCES: Final = ("nvml", "host", "process", "allocator", "garbage")
"""The order in which collectors are shown; other collectors follow."""

NOT_OF_DEVICES: Final = ("profkit", KERNELS, "loader", "clock")
"""Sources about profkit itself, or shown by another view."""


@dataclass(frozen=True)
class Curve:
    """One reading of one device over the run; `metric` ends in its unit."""

    rank: int
    host: str
    source: str
    device: str | None
    """Null for the host or the process itself."""
    metric: str
    series: Series

    @property
    def is_flat(self) -> bool:
        return self.series.least == self.series.most

    @property
    def order(self) -> tuple[bool, int, str, int, str]:
        """The sort key: what changes first, by collector as in `SOURCES`, rank and device."""
        place = SOURCES.index(self.source) if self.source in SOURCES else len(SOURCES)
        return self.is_flat, place, self.source, self.rank, self.device or ""


@dataclass(frozen=True)
class DevicesView:
    """All curves of a run, devices before hosts."""

    curves: tuple[Curve, ...]
    length_ns: int
    """The time from the first step's start to the last one's end, on the slowest rank."""
    lost: tuple[tuple[int, str], ...]
    """Ranks and their devices that stopped answering while the job ran."""

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(curve.source for curve in self.curves))


def build_devices_view(trace: Trace) -> DevicesView:
    """Return the view of a run; without collectors it has no curves."""
    curves: list[Curve] = []
    lengths_ns: list[int] = []
    source, metric = trace.samples["source"], trace.samples["metric"].cast(pa.string())
    others = pc.is_in(source.cast(pa.string()), pa.array(NOT_OF_DEVICES))
    others = pc.or_(others, pc.is_in(metric, pa.array([COLLECTORS_CPU, LOST_GPU])))
    samples = trace.samples.filter(pc.invert(others))
    for rank in trace.ranks:
        own = rows_of_rank(trace.steps, rank.rank)
        begin, end = pc.min(own["start_ns"]).as_py() or 0, pc.max(own["end_ns"]).as_py() or 0
        lengths_ns.append(end - begin)
        curves += _curves(rank, rows_of_rank(samples, rank.rank), begin, end)
    curves.sort(key=lambda curve: curve.order)
    lost = trace.samples.filter(pc.equal(trace.samples["metric"], LOST_GPU))
    devices = set(zip(lost["rank"].to_pylist(), map(str, lost["device"].to_pylist()), strict=True))
    return DevicesView(tuple(curves), max(lengths_ns, default=0), tuple(sorted(devices)))


def _curves(rank: RankTrace, samples: pa.Table, begin: int, end: int) -> Iterator[Curve]:
    """Yield the curves of one rank, in the order of their first readings."""
    try:
        host = rank.manifest.host
    except UnreadableError:
        host = ""
    names = [samples[name].cast(pa.string()).to_pylist() for name in ("source", "device", "metric")]
    places: dict[tuple[str, str | None, str], list[int]] = {}
    for place, key in enumerate(zip(*names, strict=True)):
        places.setdefault(key, []).append(place)
    time_ns, values = samples["time_ns"].to_numpy(), samples["value"].to_numpy()
    for (source, device, metric), mine in places.items():
        name, times, readings = as_rate(source, metric, time_ns[mine], values[mine])
        series = bin_readings(times, readings, begin, end)
        if series is not None:
            yield Curve(rank.rank, host, source, device, name, series)
