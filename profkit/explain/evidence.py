"""One run of a comparison: its costs, and the figures that rules read besides."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.kernels.view import KernelsView, kernels_of
from profkit.analysis.stacks import CodeView, code_of
from profkit.analysis.whatif.step_model import ranks_by_host
from profkit.explain.evidence_counters import Counters, Load, dictionary_codes, read_load
from profkit.explain.evidence_kernels import Windows, summarize_windows
from profkit.frame.columns import readings_of, split_ranks
from profkit.frame.costs import RunCosts
from profkit.frame.device_times import rows_of_ranks
from profkit.frame.estimate import Floats, Ints, as_floats
from profkit.frame.exposed import INPUT_PIECES
from profkit.frame.lateness import RankWork
from profkit.frame.parts import count_rank_steps
from profkit.frame.run_frame import PhaseBasis, frame_of
from profkit.trace import Trace
from profkit.vocab import BATCH_ELEMENTS, LOADER_THREAD, LOADER_WORKER, USED, Phase

Figure = TypeVar("Figure")


@dataclass(frozen=True)
class Loader:
    """The making of batches: time by piece in ns per step and rank, of workers or the loop."""

    pieces: Mapping[str, float]
    workers: int
    """Worker processes per rank; 0 if the training process makes its batches itself."""
    in_thread: bool = False
    """True if a thread of that process makes them ahead of the loop, as Paddle's loader does."""


class Evidence:
    """One run of a comparison: its costs, and figures about the same steps.

    Each figure is computed when it is first asked for. It is `None` if nothing recorded it.
    """

    def __init__(self, trace: Trace, costs: RunCosts | None = None) -> None:
        self.trace = trace
        self.costs = costs or frame_of(trace).costs
        self.figures: dict[Callable[[Evidence], Any], Any] = {}
        """The figures that single rules asked for, by the function that computes them."""

    def figure(self, compute: Callable[[Evidence], Figure]) -> Figure:
        """Return `compute(self)`, computed once however many pairs this run is part of."""
        if compute not in self.figures:
            self.figures[compute] = compute(self)
        found: Figure = self.figures[compute]
        return found

    @property
    def used(self) -> Ints:
        """The numbers of the steps that the costs are about."""
        return self.costs.selection.steps

    @functools.cached_property
    def in_all(self) -> Counter[str]:
        """Number of all steps of the run, used ones and by reason, with those only in sums."""
        sums = self.trace.sums
        if not sums.num_rows:
            return Counter({**self.costs.selection.left_out, USED: len(self.used)})
        found = Counter({each.reason: each.steps for each in self.costs.apart})
        steps = count_rank_steps(self.trace.steps, sums) // max(1, len(self.trace.ranks))
        return found + Counter({USED: steps - sum(found.values())})

    @property
    def step_ns(self) -> float:
        if not self.costs.steps:
            return math.nan
        return float(self.costs.wall_ns.sum()) / (self.costs.steps * self.costs.ranks)

    @property
    def step_samples(self) -> float:
        """Samples that one rank trains on per step; 0 if the run does not record them."""
        if not self.costs.steps:
            return 0.0
        return float(self.costs.samples.sum()) / (self.costs.steps * self.costs.ranks)

    @functools.cached_property
    def work(self) -> RankWork:
        """The own work of each rank."""
        return self.basis.work

    @functools.cached_property
    def basis(self) -> PhaseBasis:
        """The rows that the phases of the costs were computed from."""
        return dataclasses.replace(frame_of(self.trace).basis, used=self.used)

    @functools.cached_property
    def exchanges(self) -> Exchanges | None:
        """The collectives, or `None` if the used steps have none."""
        if not self.collectives.num_rows:
            return None
        return summarize_exchanges(self.collectives, len(self.used), self.costs.ranks)

    @functools.cached_property
    def collectives(self) -> pa.Table:
        """The collectives of the used steps."""
        return self.select_used(self.trace.collectives)

    @functools.cached_property
    def outer_spans(self) -> pa.Table:
        """The spans of the used steps that are in no other one."""
        spans = self.trace.spans
        return self.select_used(spans.filter(pc.equal(spans["depth"], pa.scalar(0, pa.int16()))))

    @functools.cached_property
    def loader(self) -> Loader | None:
        """The making of batches, or `None` if the inside of the loader was not timed."""
        spans = self.trace.spans
        rows = self.select_used(spans.filter(pc.equal(spans["phase"], Phase.DATA.value)))
        rows = rows.filter(pc.is_in(rows["name"].cast(pa.string()), pa.array(INPUT_PIECES)))
        if not rows.num_rows:
            return None
        threads, workers = pc.unique(rows["thread"]).to_pylist(), set()
        for thread in threads:
            if thread and thread.startswith(LOADER_WORKER):
                workers.add(thread)
        return Loader(self._mean_ns_by_name(rows), len(workers), LOADER_THREAD in threads)

    @functools.cached_property
    def other_ns(self) -> Mapping[str, float]:
        """Time in the phase `other` in ns per step and rank, by the name of what was done."""
        spans = self.basis.spans
        is_other = pc.equal(spans["phase"], Phase.OTHER.value)
        rows = spans.filter(pc.and_(is_other, pc.equal(spans["depth"], 0)))
        return self._mean_ns_by_name(self.select_used(rows))

    @functools.cached_property
    def kernels(self) -> KernelsView | None:
        """Kernels by name, or `None` if none were captured."""
        view = kernels_of(self.trace)
        return view if view.steps else None

    @functools.cached_property
    def windows(self) -> Windows | None:
        """The captured steps, or `None` if no kernels were captured."""
        return summarize_windows(self.trace, self.kernels) if self.kernels else None

    @functools.cached_property
    def code(self) -> CodeView | None:
        """The lines of the used steps, or `None` if no stack was sampled there."""
        return code_of(self.trace, self.used)

    @functools.cached_property
    def counters(self) -> Counters:
        """The sampled counters while the used steps ran."""
        return self._count(self.trace.samples, self.trace.steps)

    def _count(self, samples: pa.Table, steps: pa.Table) -> Counters:
        rows = self.select_used(steps)
        if not rows.num_rows:
            return Counters(samples, 0, 0)
        begin_ns, end_ns = pc.min(rows["start_ns"]).as_py(), pc.max(rows["end_ns"]).as_py()
        return Counters(samples, begin_ns, end_ns)

    @functools.cached_property
    def load(self) -> Load | None:
        """The processor load, or `None` if the machine was not read while the used steps ran.

        Of several hosts, it is that of the fullest. Only the cores of the first were counted.
        """
        found = self._fullest_load()
        if found is None or self._may_have_workers():
            return found
        return dataclasses.replace(found, workers=0.0, started=found.workers)

    def _may_have_workers(self) -> bool:
        """Return true if processes that a rank started may be workers of its loader."""
        stated = self.trace.manifest.config.get("workers")
        return self.loader is None or self.loader.workers > 0 or bool(stated)

    def _fullest_load(self) -> Load | None:
        cores = self.trace.manifest.environment.get("cpu_count")
        if not isinstance(cores, int):
            return None
        hosts, found = ranks_by_host(self.trace), []
        if len(hosts) < 2:
            return read_load(self.counters, float(cores), self.costs.ranks)
        first = next(iter(hosts))
        for host, ranks in hosts.items():
            own = np.array(ranks)
            samples, steps = (
                rows_of_ranks(self.trace.samples, own),
                rows_of_ranks(self.trace.steps, own),
            )
            load = read_load(self._count(samples, steps), float(cores), len(ranks))
            if load is not None:
                found.append(dataclasses.replace(load, host=host, cores_from=first))
        return max(found, key=operator.attrgetter("used"), default=None)

    def own_ns(self, factor: float) -> float | None:
        """Return the processor time of a rank's own threads per step, times a factor."""
        if self.load is None or self.load.own is None:
            return None
        return factor * self.step_ns * self.load.own / (self.load.ranks or self.costs.ranks)

    def select_used(self, rows: pa.Table) -> pa.Table:
        """Return the rows of the used steps."""
        return rows.filter(pc.is_in(rows["step"], pa.array(self.used.tolist(), pa.int64())))

    def _mean_ns_by_name(self, rows: pa.Table) -> dict[str, float]:
        """Return the time of the rows in ns per step and rank, by name; names of no time go."""
        names, codes = dictionary_codes(rows["name"])
        length = rows["end_ns"].to_numpy() - rows["start_ns"].to_numpy()
        sums = np.bincount(codes, weights=length, minlength=len(names))
        found = {}
        for name, total in zip(names, sums.tolist(), strict=True):
            if total:
                found[name] = total / (len(self.used) * self.costs.ranks)
        return found


# The collectives of one run in the figures that rules compare.
@dataclass(frozen=True)
class Exchanges:
    """The collectives of a run, per step and rank."""

    messages: float
    """Collectives that carry gradients."""
    message_bytes: float
    buckets: int
    """Different gradient buckets."""


def summarize_exchanges(rows: pa.Table, steps: int, ranks: int) -> Exchanges:
    """Return the figures of these collectives, of so many steps and ranks."""
    gradients = rows.filter(rows["bucket"].is_valid())
    return Exchanges(
        messages=gradients.num_rows / (steps * ranks),
        message_bytes=float(pc.mean(gradients["bytes"]).as_py() or 0.0),
        buckets=len(pc.unique(gradients["bucket"])),
    )


def step_elements(run: Evidence) -> Mapping[int, Floats]:
    """Return the elements of the batch of each used step, by rank; empty if none was read."""
    readings = split_ranks(readings_of(run.trace.samples, "loader", BATCH_ELEMENTS))
    steps, found = split_ranks(run.select_used(run.trace.steps)), {}
    for rank, own in readings.items():
        rows = own.sort_by("time_ns")
        ends = np.sort(steps[rank]["end_ns"].to_numpy())
        last = np.searchsorted(rows["time_ns"].to_numpy(), ends, side="right") - 1
        if len(last) and (last >= 0).all():
            found[rank] = as_floats(rows["value"])[last]
    return found
