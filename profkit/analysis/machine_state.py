"""Load of a machine while a run's steps ran, and waits for its cores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.columns import names_and_codes, readings_of
from profkit.frame.estimate import Floats, Ints

AFTER_NS = 1_500_000_000
"""Readings are about a second apart, so the one after the last step still covers it."""


@dataclass(frozen=True)
class MachineState:
    """Load on the machines of a run, on average over its steps."""

    cores: float
    others: float
    """Cores that other processes used, or that the host of a virtual machine withheld."""
    waited: float | None
    """Seconds per second that the run's threads were ready and had no core, over all of them."""

    @property
    def share_of_others(self) -> float:
        return self.others / self.cores


def read_machine_state(
    samples: pa.Table, cores: int, begin_ns: int, end_ns: int
) -> MachineState | None:
    """Return the load between two times, or `None` if the machine was not read.

    The last reading before counts as well: it is where the growth of a counter begins.
    """
    busy = _growth(samples, "host", "cpu_busy_seconds", begin_ns, end_ns)
    own = _growth(samples, "process", "cpu_seconds", begin_ns, end_ns)
    if not busy or not own:
        return None
    workers = _growth(samples, "host", "worker_cpu_seconds", begin_ns, end_ns)
    stolen = _growth(samples, "host", "cpu_stolen_seconds", begin_ns, end_ns)
    seconds = max(length for _, length in busy)
    others = _per_second(busy) + _per_second(stolen) - _per_second(own)
    # A worker counts for as long as it lived.
    others -= _sum_grown(workers) / seconds
    waits = _growth(samples, "process", "cpu_wait_seconds", begin_ns, end_ns)
    waited = None
    if waits:
        of_workers = _growth(samples, "host", "worker_cpu_wait_seconds", begin_ns, end_ns)
        waited = _per_second(waits) + _sum_grown(of_workers) / seconds
    return MachineState(cores * len(busy), max(0.0, others), waited)


def mean_state(states: list[MachineState]) -> MachineState:
    """Return the mean of the states of several runs."""
    waits = [state.waited for state in states if state.waited is not None]
    waited = float(np.mean(waits)) if len(waits) == len(states) else None
    loads = np.array([(state.cores, state.others) for state in states])
    cores, others = loads.mean(axis=0).tolist()
    return MachineState(cores, others, waited)


def _sum_grown(growths: list[tuple[float, float]]) -> float:
    return sum(grown for grown, _ in growths)


def _per_second(growths: list[tuple[float, float]]) -> float:
    """Return the sum of the rates of several counters."""
    return sum(grown / seconds for grown, seconds in growths)


def _growth(
    samples: pa.Table, source: str, metric: str, begin_ns: int, end_ns: int
) -> list[tuple[float, float]]:
    """Return how much each counter grew, and in how many seconds."""
    rows = readings_of(samples, source, metric)
    rows = rows.filter(pc.less_equal(rows["time_ns"], end_ns + AFTER_NS)).sort_by("time_ns")
    _, device = names_and_codes(rows["device"])
    lanes = rows["rank"].to_numpy().astype(np.int64) * (device.max(initial=0) + 2) + device
    times: Ints = rows["time_ns"].to_numpy()
    values: Floats = rows["value"].to_numpy()
    found = []
    for lane in np.unique(lanes):
        time_ns, value = times[lanes == lane], values[lanes == lane]
        first = max(0, int(np.searchsorted(time_ns, begin_ns, side="right")) - 1)
        time_ns, value = time_ns[first:], value[first:]
        if len(time_ns) > 1 and time_ns[-1] > time_ns[0]:
            # A thread that ends takes its share of a total along, so the total may fall.
            grown = float(np.maximum(np.diff(value), 0.0).sum())
            found.append((grown, float(time_ns[-1] - time_ns[0]) / 1e9))
    return found
