"""Sampled counters of one run while its used steps ran, and the load that they show."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.columns import readings_of
from profkit.frame.estimate import Estimate, Floats, Ints, student_95
from profkit.text import safe_text

READING_INTERVAL_NS = 1_500_000_000
"""Counters are read about once per second, so the reading after the last step still covers it."""

MIN_READINGS_FOR_INTERVAL = 3
"""The mean of fewer readings has no interval, because their spread is not known."""

FULL_MACHINE_SHARE = 0.8
"""A machine is full if more than this share of its cores is in use: hardly one is free."""


@dataclass(frozen=True)
class Load:
    """Processor use in cores: of the ranks themselves, their workers and the machine."""

    cores: float
    own: float | None
    workers: float
    machine: float | None
    switches_per_s: float | None
    """Involuntary context switches of the ranks' own processes."""
    threads: float | None = None
    """Threads of the ranks' own processes, running or asleep."""
    runnable: float | None = None
    """Threads of the machine that run or could run, on average."""
    python_threads: float | None = None
    """Cores that Python threads of the ranks use, other than their main threads."""
    ranks: int = 0
    """The ranks that the load is about; 0 if that is not known."""
    host: str = ""
    """The host of these ranks, if the run has several: it is the fullest of them."""
    cores_from: str = ""
    """The host whose cores were counted."""
    started: float = 0.0
    """Cores of processes that the ranks started and that are no loader workers."""

    @property
    def others(self) -> float | None:
        """Cores used by all processes but the ranks and their loader workers."""
        if self.machine is None or self.own is None:
            return None
        return self.machine - self.own - self.workers

    @property
    def used(self) -> float:
        """Cores in use, as far as they were read."""
        if self.machine is None:
            return (self.own or 0.0) + self.workers + self.started
        return self.machine

    @property
    def full(self) -> bool:
        """True if hardly a core is free."""
        return self.used > FULL_MACHINE_SHARE * self.cores

    @property
    def where(self) -> str:
        """Where the cores are, as the end of a sentence; empty if the run has one host."""
        if not self.host:
            return ""
        known = ""
        if self.cores_from != self.host:
            known = f", if it has as many as {safe_text(self.cores_from)}"
        return f" on its fullest host, {safe_text(self.host)}{known}"


@dataclass(frozen=True)
class Counters:
    """The samples of a run between two times on the clock of its first rank."""

    samples: pa.Table
    begin_ns: int
    end_ns: int

    def series(self, source: str, metric: str) -> Iterator[tuple[Ints, Floats]]:
        """Yield times and values of the readings of each rank and device, in order of time."""
        rows = readings_of(self.samples, source, metric)
        is_late_enough = pc.greater_equal(rows["time_ns"], self.begin_ns)
        is_early_enough = pc.less_equal(rows["time_ns"], self.end_ns + READING_INTERVAL_NS)
        rows = rows.filter(pc.and_(is_late_enough, is_early_enough)).sort_by("time_ns")
        _, device = dictionary_codes(rows["device"])
        lane = rows["rank"].to_numpy().astype(np.int64) * (device.max(initial=0) + 2) + device
        times, values = rows["time_ns"].to_numpy(), rows["value"].to_numpy()
        for each in np.unique(lane):
            yield times[lane == each], values[lane == each]

    def rate(self, source: str, metric: str) -> Estimate | None:
        """Return the mean growth of a counter per second, or `None` if it was not read twice."""
        rates = []
        for times, values in self.series(source, metric):
            if len(times) > 1:
                rates.append(np.diff(values) / (np.diff(times) / 1e9))
        return estimate_mean(np.concatenate(rates)) if rates else None

    def level(self, source: str, metric: str) -> float | None:
        """Return the mean of a reading, or `None` if there is no reading."""
        readings: list[float] = []
        for _, values in self.series(source, metric):
            readings += values.tolist()
        return float(np.mean(readings)) if readings else None


def read_load(counters: Counters, cores: float, ranks: int) -> Load | None:
    """Return the load of a machine, or `None` if it was not read while the used steps ran."""
    own = counters.rate("process", "cpu_seconds")
    if own is None:
        return None
    machine = counters.rate("host", "cpu_busy_seconds")
    threads = counters.level("process", "threads_count")
    switches = counters.rate("process", "involuntary_switches_count")
    python_threads = counters.rate("process", "python_threads_cpu_seconds")
    workers, begins, ends = 0.0, [], []
    for times, values in counters.series("host", "worker_cpu_seconds"):
        if len(times) > 1:
            workers += float(values[-1] - values[0])
            begins.append(times[0])
            ends.append(times[-1])
    if begins:  # each worker counts for as long as it existed
        workers = float(workers / ((max(ends) - min(begins)) / 1e9))
    return Load(
        cores=cores,
        own=own.value * ranks,
        workers=workers,
        machine=machine.value if machine else None,
        threads=None if threads is None else threads * ranks,
        switches_per_s=switches.value if switches else None,
        runnable=counters.level("host", "run_queue_count"),
        python_threads=python_threads.value * ranks if python_threads else None,
        ranks=ranks,
    )


def estimate_mean(values: Floats) -> Estimate:
    """Return the mean of independent readings, without an interval if they are too few."""
    mean = float(values.mean())
    if len(values) < MIN_READINGS_FOR_INTERVAL:
        return Estimate(mean)
    half = student_95(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def dictionary_codes(column: pa.ChunkedArray) -> tuple[list[str], Ints]:
    """Return the distinct names of a column, and the index of each row's name; -1 is null."""
    whole = column.combine_chunks()
    codes = whole.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return whole.dictionary.to_pylist(), np.asarray(codes, dtype=np.int64)
