"""What a run recorded beside its costs, in the figures that causes are told by.

Each figure is made when it is first asked for, and is null where nothing recorded it.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.costs import RunCosts
from profkit.analysis.estimate import Z_95, Estimate, Floats, Ints, as_floats, scale, student_95
from profkit.analysis.exchange import LateRank, find_late_rank, split_exchange
from profkit.analysis.exposed import INPUT_PIECES
from profkit.analysis.kernels.categories import COPY_CATEGORIES, MATRIX_WORK
from profkit.analysis.kernels.device_time import HOST
from profkit.analysis.kernels.groups import KernelGroup
from profkit.analysis.kernels.view import KernelsView, kernels_of
from profkit.analysis.lateness import RankWork, rank_work
from profkit.analysis.phases import step_times
from profkit.analysis.selection import EPOCH_START, PARTIAL_BATCH
from profkit.trace import Trace
from profkit.vocab import Phase

AUTOCAST = "autocast_ratio"
SKIPPED = "skipped step"
WORKER_THREADS = "loader worker"
PAGEABLE = "Pageable"
MAKING = tuple(piece for piece in INPUT_PIECES if piece != "queue")
"""What is done to a batch; in the queue it waits."""

_READING_NS = 1_500_000_000
"""Counters are read about once a second: the reading behind the last step still tells of it."""

_FEWEST_READINGS = 3


@dataclass(frozen=True)
class Load:
    """Who used the processors, in cores: the ranks' own processes, their loader workers, and everything else on the machine."""

    cores: float
    own: float | None
    workers: float
    machine: float | None
    switches_per_s: float | None
    """Involuntary ones, of the ranks' own processes."""
    threads: float | None = None
    """Of the ranks' own processes, whether they run or sleep."""

    @property
    def others(self) -> float | None:
        """What neither the ranks nor their workers used."""
        return (
            None
            if self.machine is None or self.own is None
            else self.machine - self.own - self.workers
        )

    @property
    def full(self) -> bool:
        """Whether hardly a core was left over."""
        used = self.machine if self.machine is not None else (self.own or 0.0) + self.workers
        return used > 0.8 * self.cores


@dataclass(frozen=True)
class Loader:
    """How batches were made: processor and waiting time by piece, in ns a step and rank, whoever waited for it."""

    pieces: Mapping[str, float]
    workers: int
    """Worker processes of a rank; 0 where the loop makes its batches itself."""


@dataclass(frozen=True)
class Exchanges:
    """The gradient exchange in numbers, a step and rank."""

    messages: float
    message_bytes: float
    buckets: int
    """Different buckets of a step."""
    beside: float
    """Collectives that are not the gradients' own, as those of synchronised batch normalisation."""

    @property
    def rounds(self) -> float:
        """How often each bucket travels in a step."""
        return self.messages / self.buckets if self.buckets else 0.0


@dataclass(frozen=True)
class Windows:
    """The captured steps: calls and time by category, a step and rank. Operators stand in for kernels on a CPU."""

    calls: float
    busy_ns: float
    by_category: Mapping[str, float]
    calls_by_category: Mapping[str, float]
    calls_by_phase: Mapping[str, float]
    pageable_share: float | None
    """Of the time of copies to the device, what comes from memory that is not pinned; null where there are no copies."""
    tensor_core_share: float | None
    """Of the time of matrix work on a device, where the kernels' names tell."""
    launch_bound_share: float | None
    """Of the kernels' time, what is in calls that an idle device waited for; null on a CPU and where launches are not known."""
    on_host: bool

    @property
    def matrix_share(self) -> float:
        """Of all time, what matrix work takes."""
        return (
            sum(self.by_category.get(name, 0.0) for name in MATRIX_WORK) / self.busy_ns
            if self.busy_ns
            else 0.0
        )

    @property
    def mean_ns(self) -> float:
        return self.busy_ns / self.calls if self.calls else math.nan


@dataclass(frozen=True, eq=False)
class Evidence:
    """One run of a comparison: its costs, and what else it recorded of the same steps."""

    trace: Trace
    costs: RunCosts

    @property
    def used(self) -> Ints:
        return self.costs.selection.steps

    @property
    def step_ns(self) -> float:
        return (
            float(self.costs.wall_ns.sum()) / (self.costs.steps * self.costs.ranks)
            if self.costs.steps
            else math.nan
        )

    @property
    def step_samples(self) -> float:
        """Samples that one rank trains on in a step; 0 where nothing says."""
        return (
            float(self.costs.samples.sum()) / (self.costs.steps * self.costs.ranks)
            if self.costs.steps
            else 0.0
        )

    # -- ranks -----------------------------------------------------------------------------------

    @functools.cached_property
    def late_rank(self) -> LateRank | None:
        exchange = split_exchange(self.trace.collectives, self.trace.spans, self.used)
        return (
            find_late_rank(exchange, self.trace.steps, self.trace.spans, self.used)
            if exchange
            else None
        )

    @functools.cached_property
    def work(self) -> RankWork:
        return rank_work(self.trace.steps, self.trace.spans, self.used)

    @functools.cached_property
    def exchanges(self) -> Exchanges | None:
        """`None` where no collective of the used steps was recorded."""
        rows = self._of_used(self.trace.collectives)
        if not rows.num_rows:
            return None
        gradients = rows.filter(rows["bucket"].is_valid())
        per_step = 1 / (len(self.used) * self.costs.ranks)
        return Exchanges(
            messages=gradients.num_rows * per_step,
            message_bytes=float(pc.mean(gradients["bytes"]).as_py() or 0.0),
            buckets=len(pc.unique(gradients["bucket"])),
            beside=(rows.num_rows - gradients.num_rows) * per_step,
        )

    # -- input -----------------------------------------------------------------------------------

    @functools.cached_property
    def loader(self) -> Loader | None:
        """`None` where the inside of the loader was not timed."""
        rows = self._of_used(
            self.trace.spans.filter(pc.equal(self.trace.spans["phase"], Phase.DATA.value))
        )
        rows = rows.filter(pc.is_in(rows["name"].cast(pa.string()), pa.array(INPUT_PIECES)))
        if not rows.num_rows:
            return None
        names, codes = _codes(rows["name"])
        length = rows["end_ns"].to_numpy() - rows["start_ns"].to_numpy()
        sums = np.bincount(codes, weights=length, minlength=len(names)) / (
            len(self.used) * self.costs.ranks
        )
        workers = {
            thread
            for thread in pc.unique(rows["thread"]).to_pylist()
            if thread and thread.startswith(WORKER_THREADS)
        }
        return Loader(
            {name: float(total) for name, total in zip(names, sums, strict=True) if total},
            len(workers),
        )

    @functools.cached_property
    def epoch_start_ns(self) -> Estimate | None:
        """What the first step of an epoch waits for input beyond a usual one, spread over all steps; `None` without a later epoch."""
        starts = self.costs.selection.which.get(EPOCH_START)
        if starts is None or not self.costs.steps:
            return None
        waits, usual = (self._phase_ns(Phase.DATA.value, steps) for steps in (starts, self.used))
        share = len(starts) / (len(starts) + len(self.used))
        found = estimate_mean(waits - usual.mean())
        return scale(found, share)

    @functools.cached_property
    def short_share(self) -> float:
        """Of the steps that trained, the share with fewer samples than is usual."""
        short = len(self.costs.selection.which.get(PARTIAL_BATCH, ()))
        return short / (short + self.costs.steps) if self.costs.steps else 0.0

    @functools.cached_property
    def short_adds_ns(self) -> float:
        """What a sample takes longer of a GPU where the steps with fewer samples than is usual are counted, too."""
        short = self.costs.selection.which.get(PARTIAL_BATCH)
        if short is None or not (self.costs.steps and self.costs.samples_known):
            return 0.0
        rows = self.trace.steps.filter(
            pc.is_in(
                self.trace.steps["step"],
                pa.array([*self.used.tolist(), *short.tolist()], pa.int64()),
            )
        )
        wall_ns = pc.sum(rows["end_ns"]).as_py() - pc.sum(rows["start_ns"]).as_py()
        return float(
            wall_ns / pc.sum(rows["sample_count"]).as_py()
            - self.costs.wall_ns.sum() / self.costs.samples.sum()
        )

    @functools.cached_property
    def bad_samples(self) -> int:
        """Samples that could not be read and are told one by one."""
        return int(
            pc.sum(
                pc.starts_with(self.trace.samples["metric"].cast(pa.string()), "bad_sample:")
            ).as_py()
            or 0
        )

    # -- the step --------------------------------------------------------------------------------

    @functools.cached_property
    def skipped_share(self) -> float:
        """Of the used steps, the share in which no optimizer stepped because gradients were not finite."""
        spans = self.trace.spans
        named = self._of_used(spans.filter(pc.equal(spans["name"], SKIPPED)))
        noted = self._readings("workload", "skipped_steps").num_rows
        every = max(1, self.trace.steps.num_rows)
        return (
            max(
                named.num_rows / self.costs.ranks / len(self.used),
                noted / every,
                self._lowered_scales / every,
            )
            if len(self.used)
            else 0.0
        )

    @property
    def _lowered_scales(self) -> int:
        """How often the gradient scaler went down, which it does after each overflow: an optimizer that is fused skips such a step itself, unseen."""
        steps = self.trace.steps.sort_by([("rank", "ascending"), ("step", "ascending")])
        scale, rank = as_floats(steps["grad_scale"]), steps["rank"].to_numpy()
        return int(((np.diff(scale) < 0) & (np.diff(rank) == 0)).sum())

    @functools.cached_property
    def making_ns(self) -> Mapping[int, float]:
        """What each rank's batches take to be read, decoded and collated, whoever does it: ns a step."""
        spans = self.trace.spans
        rows = self._of_used(
            spans.filter(pc.is_in(spans["name"].cast(pa.string()), pa.array(MAKING)))
        )
        rank, length = (
            rows["rank"].to_numpy(),
            rows["end_ns"].to_numpy() - rows["start_ns"].to_numpy(),
        )
        return {
            int(each): float(length[rank == each].sum()) / len(self.used)
            for each in np.unique(rank)
        }

    @functools.cached_property
    def beside(self) -> Mapping[str, float]:
        """What is no training, by its name: ns a step and rank."""
        spans = self.trace.spans
        rows = self._of_used(
            spans.filter(
                pc.and_(pc.equal(spans["phase"], Phase.OTHER.value), pc.equal(spans["depth"], 0))
            )
        )
        names, codes = _codes(rows["name"])
        sums = np.bincount(
            codes,
            weights=rows["end_ns"].to_numpy() - rows["start_ns"].to_numpy(),
            minlength=len(names),
        )
        return {
            name: float(total) / (len(self.used) * self.costs.ranks)
            for name, total in zip(names, sums, strict=True)
            if total
        }

    @functools.cached_property
    def autocast(self) -> bool | None:
        """Whether models were called with autocast on; null where nobody looked."""
        values = self._readings("framework", AUTOCAST)["value"].to_numpy()
        return bool((values > 0).any()) if len(values) else None

    @functools.cached_property
    def kernels(self) -> KernelsView | None:
        """Kernels by name; `None` where none of any step were captured."""
        view = kernels_of(self.trace)
        return view if view.steps else None

    @functools.cached_property
    def windows(self) -> Windows | None:
        """`None` where no kernels of any step were captured."""
        view = self.kernels
        return (
            None
            if view is None
            else Windows(
                calls=view.calls / view.steps,
                busy_ns=view.total_ns / view.steps,
                by_category=_by_category(view, lambda group: group.total_ns / view.steps),
                calls_by_category=_by_category(view, lambda group: group.calls / view.steps),
                calls_by_phase=self._calls_by_phase(view),
                pageable_share=_pageable_share(view),
                tensor_core_share=view.tensor_core_share,
                launch_bound_share=view.launch_bound_share,
                on_host=view.devices == (HOST,),
            )
        )

    def _calls_by_phase(self, view: KernelsView) -> dict[str, float]:
        found: Counter[str] = Counter()
        for rank in self.trace.ranks:
            if rank.rank in view.ranks:
                names, codes = _codes(rank.select("kernels", ["phase"])[0]["phase"])
                found.update(
                    dict(
                        zip(
                            names,
                            np.bincount(codes[codes >= 0], minlength=len(names)).tolist(),
                            strict=True,
                        )
                    )
                )
        return {name: calls / view.steps for name, calls in found.items() if calls}

    # -- the machine -----------------------------------------------------------------------------

    @functools.cached_property
    def load(self) -> Load | None:
        """`None` where the machine was not read while the used steps ran."""
        cores = self.trace.manifest.environment.get("cpu_count")
        own = self.rate("process", "cpu_seconds")
        if not isinstance(cores, int) or own is None:
            return None
        return Load(
            cores=float(cores),
            own=own.value * self.costs.ranks,
            workers=self._worker_cores(),
            machine=None
            if (machine := self.rate("host", "cpu_busy_seconds")) is None
            else machine.value,
            threads=None
            if (threads := self.level("process", "threads_count")) is None
            else threads * self.costs.ranks,
            switches_per_s=None
            if (switches := self.rate("process", "involuntary_switches_count")) is None
            else switches.value,
        )

    @functools.cached_property
    def garbage_ns(self) -> Estimate | None:
        """What collections of garbage take of a step, on average over the ranks."""
        rate = self.rate("garbage", "pause_seconds")
        if rate is None:
            return None
        if not rate.judged:
            rate = of_events(rate.value, self._gain("garbage", "collections_count"))
        return scale(rate, self.step_ns)

    def rate(self, source: str, metric: str) -> Estimate | None:
        """By how much a counter grows in a second, on average over what it is read of; `None` where it was not read twice."""
        rates = [found for series in self._series(source, metric) if len(found := _growth(*series))]
        return estimate_mean(np.concatenate(rates)) if rates else None

    def _gain(self, source: str, metric: str) -> float:
        """By how much a counter grew in all, over everything it is read of."""
        return float(sum(values[-1] - values[0] for _, values in self._series(source, metric)))

    def level(self, source: str, metric: str) -> float | None:
        """The mean of a reading over the used steps; `None` where there is none."""
        values = [
            reading for _, series in self._series(source, metric) for reading in series.tolist()
        ]
        return float(np.mean(values)) if values else None

    def _worker_cores(self) -> float:
        """All workers together; each counts for as long as it was there."""
        series = [
            (times, values)
            for times, values in self._series("host", "worker_cpu_seconds")
            if len(times) > 1
        ]
        if not series:
            return 0.0
        seconds = (
            max(times[-1] for times, _ in series) - min(times[0] for times, _ in series)
        ) / 1e9
        return float(sum(float(values[-1] - values[0]) for _, values in series) / seconds)

    @functools.cached_property
    def _period(self) -> tuple[int, int]:
        """The clock of the first rank, from its first used step to the reading behind its last."""
        rows = self._of_used(self.trace.steps)
        return (
            (pc.min(rows["start_ns"]).as_py(), pc.max(rows["end_ns"]).as_py())
            if rows.num_rows
            else (0, 0)
        )

    def _series(self, source: str, metric: str) -> Iterator[tuple[Ints, Floats]]:
        """Times and values of each rank's and device's readings, in order, while the used steps ran."""
        begin, end = self._period
        rows = self._readings(source, metric)
        rows = rows.filter(
            pc.and_(
                pc.greater_equal(rows["time_ns"], begin),
                pc.less_equal(rows["time_ns"], end + _READING_NS),
            )
        ).sort_by("time_ns")
        _, device = _codes(rows["device"])
        lane = rows["rank"].to_numpy().astype(np.int64) * (device.max(initial=0) + 2) + device
        for each in np.unique(lane):
            yield rows["time_ns"].to_numpy()[lane == each], rows["value"].to_numpy()[lane == each]

    # -- tables ----------------------------------------------------------------------------------

    def _readings(self, source: str, metric: str) -> pa.Table:
        samples = self.trace.samples
        return samples.filter(
            pc.and_(pc.equal(samples["metric"], metric), pc.equal(samples["source"], source))
        )

    def _of_used(self, rows: pa.Table) -> pa.Table:
        return rows.filter(pc.is_in(rows["step"], pa.array(self.used.tolist(), pa.int64())))

    def _phase_ns(self, phase: str, steps: Ints) -> Floats:
        times = step_times(self.trace.steps, self.trace.spans, steps)
        return np.asarray(
            times.parts[times.names.index(phase)] if phase in times.names else np.zeros(len(steps))
        )


def estimate_mean(values: Floats) -> Estimate:
    """The mean of independent readings; without an interval where they are too few."""
    mean = float(values.mean())
    if len(values) < _FEWEST_READINGS:
        return Estimate(mean)
    half = student_95(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def of_events(rate: float, count: float) -> Estimate:
    """The rate at which so many events took their time, where a run is too short for its readings to scatter; without an interval where there were none.

    The sum of events whose sizes scatter by as much as their mean has a relative error of sqrt(2 / count): more than
    collections have, which come regularly.
    """
    if not count > 0:
        return Estimate(rate)
    half = Z_95 * rate * math.sqrt(2 / count)
    return Estimate(rate, rate - half, rate + half)


def _growth(times: Ints, values: Floats) -> Floats:
    """What a counter gained between two readings, per second."""
    return np.asarray(np.diff(values) / (np.diff(times) / 1e9)) if len(times) > 1 else np.empty(0)


def _codes(column: pa.ChunkedArray) -> tuple[list[str], Ints]:
    """The distinct names, and each row's place among them; -1 for null."""
    whole = column.combine_chunks()
    return whole.dictionary.to_pylist(), np.asarray(
        whole.indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64
    )


def _by_category(view: KernelsView, figure: Callable[[KernelGroup], float]) -> dict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for group in view.groups:
        found[group.category] += figure(group)
    return dict(found)


def _pageable_share(view: KernelsView) -> float | None:
    copies = [group for group in view.groups if group.category == COPY_CATEGORIES["HtoD"]]
    whole = sum(group.total_ns for group in copies)
    return (
        sum(group.total_ns for group in copies if PAGEABLE in group.name) / whole if whole else None
    )
