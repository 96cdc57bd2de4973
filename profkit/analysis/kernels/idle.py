"""Gaps in the work of a device, and why the device had nothing to do in each.

A gap belongs to the work that ends it. If this work was launched only after the device had run dry,
or began as soon as it was launched, the host was late: because it had waited for the device itself,
or because it was busy with something else. If the work was launched before, it waited in a queue.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.kernels.categories import COPY_CATEGORIES
from profkit.frame.columns import codes_of, equals, readings_of, rows_of_rank
from profkit.frame.estimate import Ints
from profkit.frame.intervals import split_lanes
from profkit.vocab import HOST_SYNC, KERNELS

LATE, SYNCHRONISED, QUEUED = range(3)
"""Why a device was idle: the host was late, had waited for the device, or was neither."""

LAUNCH_LATENCY_NS: Final = 20_000
"""A kernel that begins this soon after its launch has not waited in a queue."""
HOST = "cpu"
"""The device of operators that stand in for kernels."""
_NO_STEP = -1
_NEVER = np.iinfo(np.int64).max


class Gaps(NamedTuple):
    """The times in which a device had nothing to do, with the rows of its work around them."""

    start: Ints
    end: Ints
    before: Ints
    """The work that ended last before the gap."""
    after: Ints

    @property
    def length(self) -> Ints:
        return np.asarray(self.end - self.start)


def device_lanes(kernels: pa.Table) -> Ints:
    """Return a number for the rank and device of each kernel."""
    rank = kernels["rank"].to_numpy().astype(np.int64)
    return np.asarray(rank * 2**31 + codes_of(kernels["device"]))


def find_gaps(kernels: pa.Table, lane: Ints) -> Gaps:
    """Return every gap between the work of one lane; each moment is in one gap at most."""
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    launch = kernels["launch_ns"].fill_null(_NEVER).to_numpy()
    order = np.lexsort((launch, start, lane))
    before, after = [], []
    for rows in split_lanes(order, lane):
        reach = np.maximum.accumulate(end[rows])
        last = np.maximum.accumulate(np.where(end[rows] == reach, np.arange(len(rows)), 0))
        opens = np.flatnonzero(start[rows][1:] > reach[:-1])
        before.append(rows[last[opens]])
        after.append(rows[opens + 1])
    if not before:
        nothing = np.empty(0, dtype=np.int64)
        return Gaps(nothing, nothing, nothing, nothing)
    earlier, later = np.concatenate(before), np.concatenate(after)
    return Gaps(end[earlier], start[later], earlier, later)


def gaps_in_steps(kernels: pa.Table) -> Gaps:
    """Return the gaps of each device before work of a step, each once.

    However many steps overlap on a device, it is idle once. The gap before the first step of a
    capture window is not the job's. Between the steps of a CPU the job does not run operators only.
    """
    gaps = find_gaps(kernels, device_lanes(kernels))
    step = kernels["step"].fill_null(_NO_STEP).to_numpy()
    on_host = equals(kernels["device"], HOST)[gaps.after]
    later, earlier = step[gaps.after], step[gaps.before]
    follows = (earlier >= later - np.where(on_host, 0, 1)) | (earlier == _NO_STEP)
    kept = np.flatnonzero((later != _NO_STEP) & follows)
    return Gaps(*(values[kept] for values in gaps))


def idle_reasons(kernels: pa.Table, gaps: Gaps, samples: pa.Table | None = None) -> Ints:
    """Return the reason of each gap.

    `samples` hold the waits of the host, if its calls were recorded. Otherwise only a copy to the
    host just before a gap shows that the host waited.
    """
    launch = kernels["launch_ns"]
    known = launch.is_valid().to_numpy()[gaps.after]
    launched = launch.fill_null(0).to_numpy()[gaps.after]
    late = known & ((launched >= gaps.start) | (gaps.end - launched < LAUNCH_LATENCY_NS))
    if samples is None:
        waited = equals(kernels["category"], COPY_CATEGORIES["DtoH"])[gaps.before]
        waited &= late | ~known
    else:
        waited = late & _waited(kernels["rank"].to_numpy()[gaps.after], gaps.start, samples)
    reasons = np.where(late, LATE, QUEUED)
    reasons[waited] = SYNCHRONISED
    return reasons


def _waited(rank: Ints, moment: Ints, samples: pa.Table) -> npt.NDArray[np.bool_]:
    """Return whether the host of each rank was waiting for its device at each moment."""
    waits = readings_of(samples, KERNELS, HOST_SYNC)
    found = np.zeros(len(moment), dtype=bool)
    for each in pc.unique(waits["rank"]).to_pylist():
        own, mine = rows_of_rank(waits, each).sort_by("time_ns"), np.flatnonzero(rank == each)
        ends = own["time_ns"].to_numpy()
        begins = ends - np.rint(own["value"].to_numpy()).astype(np.int64)
        # The earliest begin of all waits that end at the moment or later.
        earliest = np.append(np.minimum.accumulate(begins[::-1])[::-1], _NEVER)
        found[mine] = earliest[np.searchsorted(ends, moment[mine], side="left")] <= moment[mine]
    return found
