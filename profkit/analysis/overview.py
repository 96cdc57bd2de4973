"""The figures of one run, for `report` and for the terminal interface."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.bandwidth import LinkUse, link_use
from profkit.analysis.ceilings import Ceilings
from profkit.analysis.change_context import explained_changes
from profkit.analysis.kernels.device_view import DeviceView, build_device_view
from profkit.analysis.kernels.view import KernelsView, kernels_of
from profkit.analysis.kernels.windows import KernelWindows, kernel_windows
from profkit.analysis.line_changes import LineChange
from profkit.analysis.long_steps import LongSteps, find_long_steps
from profkit.analysis.losses import Losses, find_losses
from profkit.analysis.memory.ledger import MemoryLedger, find_ledgers
from profkit.analysis.phase_shares import PhaseShare, phases_of
from profkit.analysis.place_costs import ShardedExchange, sharded_exchange
from profkit.analysis.rank_lines import lines_by_rank
from profkit.analysis.run_change import RunChange
from profkit.analysis.stacks import CodeView, code_of
from profkit.analysis.thinned import Thinned, find_thinned
from profkit.analysis.utilisation import Utilisation, find_utilisation
from profkit.analysis.worker_lines import WorkerLines, view_workers
from profkit.errors import UnreadableError
from profkit.frame.compiling import Compiling, find_compiling
from profkit.frame.costs import RunCosts
from profkit.frame.device_times import DeviceTimes, PhaseClock, is_own
from profkit.frame.estimate import FEWEST_STEPS, Estimate, Ints, estimate_ratios
from profkit.frame.exchange import Exchange, LateRank
from profkit.frame.gaps import UnknownPlace
from profkit.frame.notices import find_notices, is_log
from profkit.frame.own_cost import OwnCost
from profkit.frame.run_frame import SHARED_ENDS, UNTIMED_EXCHANGE, PhaseBasis, RunFrame, frame_of
from profkit.frame.selection import Selection
from profkit.text import safe_text, shell_word
from profkit.trace import Trace
from profkit.trace.flag import Flag, FlagKind
from profkit.trace.sharing import DATA_PARALLEL, OWN_SAMPLES, Sharing
from profkit.vocab import RunState

_NO_STEPS = (
    "{run}: holds no steps; it ended before the first one did,"
    " or they are damaged (see 'profkit verify {word}')"
)
_NO_STEPS_IMPORTED = (
    "{run}: holds no steps; the imported source has none, or they are damaged"
    " (see 'profkit verify {word}'); 'profkit report {word}' shows what there is"
)


@dataclass(frozen=True)
class Overview:
    """The figures of one run."""

    name: str
    path: str
    workload: str
    framework: str
    state: RunState
    why: str
    world_size: int
    ranks_seen: int
    config: Mapping[str, Any]
    throughput: Estimate
    step_ns: Estimate
    phases: tuple[PhaseShare, ...]
    steps_seen: int
    selection: Selection
    first_loss: float | None
    last_loss: float | None
    exchange: Exchange | None
    late_rank: LateRank | None
    own_cost: OwnCost
    quality: tuple[str, ...]
    kernels: KernelWindows | None = None
    by_kernel: KernelsView | None = None
    """The same kernels by name, and those of other tools' captures, which have no windows.

    If a run is very large, these are the kernels of one rank.
    """
    devices: DeviceView | None = None
    """Device time; null if no work of a device was recorded."""
    links: tuple[LinkUse, ...] = ()
    flags: tuple[Flag, ...] = ()
    changed: tuple[str, ...] = ()
    """The tables that are not as they were written: their figures are shown without a verdict."""
    code: CodeView | None = None
    """Lines of the user's code; null if no stack was sampled."""
    rank_lines: Mapping[int, tuple[LineChange, ...]] = field(default_factory=dict)
    """Lines on which a rank certainly spends another time than the mean of the others, the base."""
    worker_lines: WorkerLines | None = None
    """Lines of the loader's workers; null if they were not sampled."""
    unknown_places: tuple[UnknownPlace, ...] = ()
    silent_ranks: int = 0
    """Ranks without a step that can be read: the job's number of samples is not known then."""
    clock: PhaseClock = PhaseClock.HOST
    costs: RunCosts | None = None
    """With device times, the ledger's costs: the phases are their parts."""
    sharing: Sharing = OWN_SAMPLES
    """The ranks that train on the same samples."""
    sharded: ShardedExchange | None = None
    """The exchange by dimension; `None` unless the job has several, or modules, or messages."""
    device_times: DeviceTimes | None = None
    """The device times that were recorded; `None` if the run is not profkit's, or on no device."""
    compiling: Compiling | None = None
    """What the framework's compiler did; `None` if nothing was seen of one."""
    changes: tuple[RunChange, ...] = ()
    """The changes of the step time while the run lasted."""
    long_steps: LongSteps = field(default_factory=LongSteps)
    """The few steps that took far longer than the others."""
    losses: Losses = field(default_factory=Losses)
    """Time that is not spent on training."""
    utilisation: Utilisation | None = None
    """MFU and its factors; null if operations were not counted."""
    memory: tuple[MemoryLedger, ...] = ()
    """What held the device's memory; empty if no snapshot was taken."""
    thinned: Thinned | None = None
    """What a long run kept; null if it kept all steps. `selection` is then a sample of steps."""

    @property
    def steps_used(self) -> int:
        return self.thinned.used if self.thinned else len(self.selection.steps)

    @property
    def left_out(self) -> Mapping[str, int]:
        """How many of all steps are excluded for each reason."""
        if self.thinned:
            return self.thinned.left_out
        return self.selection.left_out

    @property
    def exchange_timed(self) -> bool:
        """False if only the device sees the exchange, and was not asked."""
        return self.costs is None or self.costs.exchange_timed

    @property
    def has_pipeline(self) -> bool:
        return self.sharded is not None and self.sharded.pipeline is not None

    @property
    def judged(self) -> bool:
        return self.throughput.judged and self.is_whole

    @property
    def times_hold(self) -> bool:
        """False if the run's times are not what was measured."""
        return not (self.bad_times or self.changed)

    @property
    def is_whole(self) -> bool:
        """False if the throughput is not that of all ranks, as they were recorded."""
        return self.times_hold and not self.silent_ranks

    @property
    def bad_times(self) -> tuple[str, ...]:
        """Implausible times of imported events: figures are shown without a verdict."""
        return tuple(flag for flag in self.flags if flag.kind is FlagKind.BAD_TIMES)

    @property
    def samples_known(self) -> bool:
        """True if the run reports what its steps trained on; times and shares do not need it."""
        return not (math.isnan(self.throughput.value) and self.step_ns.value > 0)

    @property
    def steps_needed(self) -> int:
        """The number of further steps that would give an interval."""
        return max(0, FEWEST_STEPS - len(self.selection.steps))


def build_overview(
    trace: Trace, ceilings: Ceilings | None = None, *, with_kernels: bool = True
) -> Overview:
    """Return the figures of a run; raise `UnreadableError` if none of its steps can be read.

    Without kernels, that table, which may be far larger than all others, is not read.
    """
    steps, manifest, frame = _steps_of(trace), trace.manifest, frame_of(trace)
    basis, used = frame.basis, frame.selection.steps
    memory, damage = find_ledgers(trace)
    kernels = by_kernel = devices = None
    if with_kernels:
        kernels, by_kernel, devices = _kernel_views(trace, ceilings, used)
    view = Overview(
        name=trace.name,
        path=str(trace.path),
        workload=manifest.workload,
        framework=manifest.framework,
        state=manifest.state,
        why=manifest.why,
        world_size=manifest.world_size,
        ranks_seen=len(trace.ranks),
        config=manifest.config,
        **find_figures(frame),
        selection=frame.selection,
        **_values_of_loss(steps),
        exchange=basis.exchange,
        late_rank=basis.late_rank,
        own_cost=frame.own_cost,
        quality=(*find_notices(trace, frame.device_times), *_exchange_notices(basis), *damage),
        kernels=kernels,
        by_kernel=by_kernel,
        devices=devices,
        links=link_use(frame.collectives, used, ceilings),
        flags=manifest.flags,
        **_lines_of_code(frame, steps),
        changed=trace.changed,
        silent_ranks=silent_ranks(trace),
        clock=basis.clock,
        costs=basis.costs,
        device_times=frame.device_times,
        sharing=trace.sharing,
        sharded=sharded_exchange(trace, basis),
        compiling=find_compiling(trace),
        changes=explained_changes(trace, frame.selection),
        long_steps=find_long_steps(frame),
        memory=memory,
    )
    costs = basis.costs or frame.costs
    losses = find_losses(basis, costs, view.steps_seen, has_pipeline=view.has_pipeline)
    utilisation = find_utilisation(trace, view.step_ns.value, kernels, ceilings)
    return dataclasses.replace(view, losses=losses, utilisation=utilisation)


def _lines_of_code(frame: RunFrame, steps: pa.Table) -> dict[str, Any]:
    trace, used = frame.trace, frame.basis.used
    # A log says how long its parts took, and not where in the step they were.
    known = not (is_log(trace) or frame.lacks_spans)
    return {
        "code": code_of(trace, used),
        "rank_lines": lines_by_rank(trace, used),
        "worker_lines": view_workers(trace.worker_stacks, trace.frames, steps, used),
        "unknown_places": frame.unknown_places(used) if known else (),
    }


def _kernel_views(
    trace: Trace, ceilings: Ceilings | None, used: Ints
) -> tuple[KernelWindows | None, KernelsView | None, DeviceView | None]:
    devices = build_device_view(trace, used)
    windows = kernel_windows(trace.kernels, trace.steps, trace.samples, used)
    by_kernel = kernels_of(trace, ceilings)
    return windows, by_kernel if by_kernel and by_kernel.calls else None, devices


def _steps_of(trace: Trace) -> pa.Table:
    if not trace.steps.num_rows:
        why = _NO_STEPS if is_own(trace) else _NO_STEPS_IMPORTED
        path = str(trace.path)
        raise UnreadableError(why.format(run=safe_text(path), word=shell_word(path)))
    return trace.steps


def _exchange_notices(basis: PhaseBasis) -> Iterator[str]:
    if not basis.exchange_timed and basis.clock is PhaseClock.DEVICE:
        yield UNTIMED_EXCHANGE
    if basis.exchange is not None and basis.exchange.ends_shared:
        yield SHARED_ENDS


def silent_ranks(trace: Trace) -> int:
    """Return how many ranks without steps may have trained on further samples.

    A log is of all ranks. Ranks that are missing in an imported file may share the samples of the
    others: a trace may have one rank of each tensor-parallel group.
    """
    missing = max(0, trace.manifest.world_size - len(pc.unique(trace.steps["rank"])))
    if not missing or is_log(trace):
        return 0
    noted = trace.ranks[0].manifest.config.get(DATA_PARALLEL)
    if is_own(trace) or not isinstance(noted, Mapping):
        return missing
    if trace.sharing.data_ranks == noted.get("size"):
        return 0
    return missing


def counted_ranks(trace: Trace) -> int:
    """Return the ranks whose times per sample and rank make the job's throughput.

    These are all ranks, except if those without files share the samples of the others.
    """
    world = trace.manifest.world_size
    if is_log(trace) or silent_ranks(trace):
        return world
    return min(world, len(pc.unique(trace.steps["rank"])))


def _values_of_loss(steps: pa.Table) -> dict[str, Any]:
    """Return the first and the last loss of rank 0, or of the lowest rank."""
    own = steps.filter(pc.equal(steps["rank"], pc.min(steps["rank"])))
    losses = own.sort_by("step")["loss"].drop_null()
    first, last = (losses[0].as_py(), losses[-1].as_py()) if len(losses) else (None, None)
    return {"first_loss": first, "last_loss": last}


# Throughput, step time and phases of a run: of its used steps, or exact over all of them.
_MOST_RANKS = 100_000
"""A larger number of ranks that a row speaks for is a mistake in the file."""


def find_figures(frame: RunFrame) -> dict[str, Any]:
    """Return throughput, step time and phases, over all steps if only sums of some were kept."""
    trace = frame.trace
    thinned = find_thinned(trace)
    throughput, step_ns, phases = _estimate(frame)
    if frame.basis.costs:
        phases = phases_of(frame.basis.costs)
    if is_log(trace):
        throughput, step_ns = _or_unknown(throughput), _or_unknown(step_ns)
    found = {"throughput": throughput, "step_ns": step_ns, "phases": phases}
    if thinned is None:
        return {**found, "steps_seen": len(frame.numbers)}
    host_ns = {part.name: part.host_ns for part in phases}
    exact = []
    for part in thinned.phases:
        exact.append(dataclasses.replace(part, host_ns=host_ns.get(part.name)))
    return {
        "throughput": thinned.throughput,
        "step_ns": thinned.step_ns,
        "phases": tuple(exact),
        "steps_seen": thinned.steps,
        "thinned": thinned,
    }


_NO_WIDTH = 1e-9


def _or_unknown(found: Estimate) -> Estimate:
    """Return a figure without an interval of no width: the lines of the log do not vary."""
    if found.low is None or found.high is None:
        return found
    if found.high - found.low > _NO_WIDTH * abs(found.value):
        return found
    return Estimate(found.value)


def _estimate(frame: RunFrame) -> tuple[Estimate, Estimate, tuple[PhaseShare, ...]]:
    """Return throughput, step time and shares, all from the same resamples of the steps."""
    trace, times = frame.trace, frame.times(frame.selection.steps)
    count = len(times.wall_ns)
    if not count:
        return Estimate(math.nan), Estimate(math.nan), ()
    # A log of rank 0 may count all cards' samples, or only its own.
    ranks_per_row = trace.manifest.config.get("rows_speak_for_ranks")
    if not isinstance(ranks_per_row, int) or isinstance(ranks_per_row, bool):
        ranks_per_row = 1
    ranks_per_row = min(max(1, ranks_per_row), _MOST_RANKS)
    parts = len(times.names)
    wall, ones = times.wall_ns[None, :], np.ones((1, count))
    samples = times.samples[None, :] * ranks_per_row
    walls, single_steps = np.repeat(wall, parts, axis=0), np.repeat(ones, parts, axis=0)
    shares = np.isin(np.arange(2 + 2 * parts), np.arange(2, 2 + parts))
    throughput, step_ns, *rest = estimate_ratios(
        np.concatenate([samples, wall, times.parts, times.parts]),
        np.concatenate([wall / 1e9, ones, walls, single_steps]),
        shares=shares,
    )
    if not times.samples.any():
        # Other tools' traces do not say how many samples there were, which is not zero samples.
        throughput = Estimate(math.nan)
    phases = []
    for row, name in enumerate(times.names):
        phases.append(PhaseShare(name, rest[row], rest[parts + row]))
    return throughput, step_ns, () if frame.lacks_spans else tuple(phases)
