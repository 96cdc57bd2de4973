"""What devices and hosts did over a run: each reading of the collectors as a curve of its lowest, mean and highest values.

Counters that grow from the machine's start become rates. Times are those of each rank's own clock,
from its first step to the end of its last. A collector that this file does not know has curves too:
its readings are shown as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.estimate import Floats, Ints
from profkit.analysis.running_totals import as_rate
from profkit.analysis.views.series import Series, bin_readings
from profkit.errors import UnreadableError
from profkit.trace import Trace
from profkit.trace.reader import RankTrace
from profkit.vocab import COLLECTORS_CPU, FAILURES, HANGS, KERNELS, LOST_GPU, UNMEASURED

SOURCES: Final = ("nvml", "host", "process", "allocator", "garbage")
"""In the order in which a person looks at them; other collectors stand behind."""

NOT_OF_DEVICES: Final = ("profkit", KERNELS, "loader", "clock")
"""What profkit says of itself, and what another view shows."""


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


@dataclass(frozen=True)
class DevicesView:
    """All curves of a run, devices before hosts."""

    curves: tuple[Curve, ...]
    length_ns: int
    """From the first step's start to the last one's end, on the rank where that took longest."""
    lost: tuple[tuple[int, str], ...]
    """Ranks and their devices that stopped answering while the job ran."""

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(curve.source for curve in self.curves))


def build_devices_view(trace: Trace) -> DevicesView:
    """The view of a run; without collectors it has no curves."""
    curves = [curve for rank in trace.ranks for curve in _curves_of(trace, rank)]
    spans = [end - begin for begin, end in (_window(trace, rank.rank) for rank in trace.ranks)]
    return DevicesView(
        tuple(sorted(curves, key=_order)), max(spans, default=0), _lost(trace.samples)
    )


def _order(curve: Curve) -> tuple[int, str, int, str]:
    place = SOURCES.index(curve.source) if curve.source in SOURCES else len(SOURCES)
    return place, curve.source, curve.rank, curve.device or ""


def _window(trace: Trace, rank: int) -> tuple[int, int]:
    own = trace.steps.filter(pc.equal(trace.steps["rank"], rank))
    return (
        (pc.min(own["start_ns"]).as_py() or 0, pc.max(own["end_ns"]).as_py() or 0)
        if own.num_rows
        else (0, 0)
    )


def _curves_of(trace: Trace, rank: RankTrace) -> Iterator[Curve]:
    own = trace.samples.filter(
        pc.and_(pc.equal(trace.samples["rank"], rank.rank), pc.invert(_of_others(trace.samples)))
    )
    begin, end = _window(trace, rank.rank)
    for (source, device, metric), time_ns, values in _readings(own):
        name, time_ns, values = as_rate(source, metric, time_ns, values)  # noqa: PLW2901  # of a running total, its rate from here on
        series = bin_readings(time_ns, values, begin, end)
        if series is not None:
            yield Curve(rank.rank, _host(rank), source, device, name, series)


def _of_others(samples: pa.Table) -> pa.Array:
    """Rows that are no reading of a device or a host."""
    source, metric = samples["source"].cast(pa.string()), samples["metric"].cast(pa.string())
    about_profkit = functools.reduce(
        pc.or_, [pc.starts_with(metric, kind) for kind in (FAILURES, HANGS, UNMEASURED)]
    )
    return pc.or_(
        pc.or_(pc.is_in(source, pa.array(NOT_OF_DEVICES)), about_profkit),
        pc.is_in(metric, pa.array([COLLECTORS_CPU, LOST_GPU])),
    )


def _readings(samples: pa.Table) -> Iterator[tuple[tuple[str, str | None, str], Ints, Floats]]:
    """Each metric of each device, in the order in which they were first read."""
    names = [samples[name].cast(pa.string()).to_pylist() for name in ("source", "device", "metric")]
    places: dict[tuple[str, str | None, str], list[int]] = {}
    for place, key in enumerate(zip(*names, strict=True)):
        places.setdefault(key, []).append(place)
    time_ns, values = samples["time_ns"].to_numpy(), samples["value"].to_numpy()
    for key, mine in places.items():
        yield key, time_ns[mine], values[mine]


def _host(rank: RankTrace) -> str:
    """The name of the rank's machine; nothing where its manifest cannot be read."""
    try:
        return rank.manifest.host
    except UnreadableError:
        return ""


def _lost(samples: pa.Table) -> tuple[tuple[int, str], ...]:
    rows = samples.filter(pc.equal(samples["metric"], LOST_GPU))
    return tuple(
        sorted(
            {
                (rank, str(device))
                for rank, device in zip(
                    rows["rank"].to_pylist(), rows["device"].to_pylist(), strict=True
                )
            }
        )
    )
