"""One run in figures: what `report` prints and what the terminal interface shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.bandwidth import LinkUse, link_use
from profkit.analysis.ceilings import Ceilings
from profkit.analysis.estimate import FEWEST_STEPS, Estimate, estimate_ratios
from profkit.analysis.exchange import Exchange, LateRank, find_late_rank, split_exchange
from profkit.analysis.kernels.view import KernelsView, kernels_of
from profkit.analysis.kernels.windows import KernelWindows, kernel_windows, window_steps
from profkit.analysis.own_cost import OwnCost, own_cost
from profkit.analysis.phases import StepTimes, step_times
from profkit.analysis.selection import Selection, select_steps
from profkit.errors import UnreadableError
from profkit.text import duration, plural, safe_text
from profkit.trace import Trace
from profkit.vocab import BAD_TIMES, FAILURES, HANGS, LOST_GPU, UNMEASURED, WHOLE_STEPS, RunState

DEFAULT_WARM_UP = 10
_MOST_WARM_UP = 1_000_000_000
_MOST_RANKS = 100_000


@dataclass(frozen=True)
class PhaseShare:
    """A phase's part of the steps' wall time."""

    name: str
    share: Estimate
    step_ns: Estimate


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
    """The same kernels by name, and those of other tools' captures, which have no windows; of a very large run those of one rank."""
    links: tuple[LinkUse, ...] = ()
    flags: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """The tables that are not as they were written: figures are shown, and no verdict is given on them."""
    silent_ranks: int = 0
    """Ranks of the job without a step that can be read: what all of them trained on is not known."""

    @property
    def judged(self) -> bool:
        return (
            self.throughput.judged
            and not self.bad_times
            and not self.changed
            and not self.silent_ranks
        )

    @property
    def bad_times(self) -> tuple[str, ...]:
        """What the gate for imported events found: figures are shown, and no verdict is given on them."""
        return tuple(flag for flag in self.flags if flag.startswith(BAD_TIMES))

    @property
    def samples_known(self) -> bool:
        """Whether the run says what its steps trained on; step times and shares hold without."""
        return not (math.isnan(self.throughput.value) and self.step_ns.value > 0)

    @property
    def steps_needed(self) -> int:
        """How many steps more would give an interval."""
        return max(0, FEWEST_STEPS - len(self.selection.steps))


def build_overview(
    trace: Trace, ceilings: Ceilings | None = None, *, with_kernels: bool = True
) -> Overview:
    """The figures of a run; an `UnreadableError` where not one step of it can be read.

    Without kernels, that table, which may be far larger than all others together, is not read.
    """
    steps = trace.steps
    if not steps.num_rows:
        shown = safe_text(str(trace.path))
        raise UnreadableError(
            f"{shown}: holds no steps; it ended before the first one did, or they are damaged (see 'profkit verify {shown}')"
        )
    selection = steady_steps(trace)
    times = step_times(steps, trace.spans, selection.steps)
    exchange = split_exchange(trace.collectives, trace.spans, selection.steps)
    by_kernel = kernels_of(trace, ceilings) if with_kernels else None
    return Overview(
        name=trace.name,
        path=str(trace.path),
        workload=trace.manifest.workload,
        framework=trace.manifest.framework,
        state=trace.manifest.state,
        why=trace.manifest.why,
        world_size=trace.manifest.world_size,
        ranks_seen=len(trace.ranks),
        config=trace.manifest.config,
        **_figures(times, _ranks_spoken_for(trace)),
        steps_seen=len(pc.unique(steps["step"])),
        selection=selection,
        first_loss=_loss(steps, first=True),
        last_loss=_loss(steps, first=False),
        exchange=exchange,
        late_rank=find_late_rank(exchange, steps, trace.spans, selection.steps)
        if exchange
        else None,
        own_cost=own_cost(
            steps, trace.spans, trace.samples, warm_up_of(trace, steps), window_steps(trace.samples)
        ),
        links=link_use(trace.collectives, selection.steps, ceilings),
        by_kernel=by_kernel if by_kernel and by_kernel.calls else None,
        kernels=kernel_windows(trace.kernels, steps, trace.samples, selection.steps)
        if with_kernels
        else None,
        quality=tuple(_quality(trace)),
        flags=trace.manifest.flags,
        changed=trace.changed,
        silent_ranks=silent_ranks(trace),
    )


def steady_steps(trace: Trace) -> Selection:
    """The steps that a run's figures are about."""
    return select_steps(
        trace.steps, warm_up=warm_up_of(trace, trace.steps), windows=window_steps(trace.samples)
    )


def warm_up_of(trace: Trace, steps: pa.Table) -> int:
    """The warm-up that the run was started with; else the usual, but at most a fifth of the steps."""
    said = trace.manifest.config.get("warmup")
    if isinstance(said, int) and not isinstance(said, bool):
        return min(max(0, said), _MOST_WARM_UP)
    return min(DEFAULT_WARM_UP, len(pc.unique(steps["step"])) // 5)


def silent_ranks(trace: Trace) -> int:
    """How many ranks left no steps; another tool's file holds what it holds, often rank 0 alone."""
    if "imported_from" in trace.manifest.config:
        return 0
    return max(0, trace.manifest.world_size - len(pc.unique(trace.steps["rank"])))


def _ranks_spoken_for(trace: Trace) -> int:
    """For how many ranks each row speaks: a log of rank 0 may count the samples of all cards."""
    said = trace.manifest.config.get("rows_speak_for_ranks")
    return (
        min(max(1, said), _MOST_RANKS)
        if isinstance(said, int) and not isinstance(said, bool)
        else 1
    )


def _figures(times: StepTimes, ranks_spoken_for: int = 1) -> dict[str, Any]:
    """Throughput, step time and shares, all from the same resamples of the steps."""
    count = len(times.wall_ns)
    if not count:
        nothing = Estimate(math.nan)
        return {"throughput": nothing, "step_ns": nothing, "phases": ()}
    ones = np.ones((1, count))
    parts = len(times.names)
    wall = times.wall_ns[None, :]
    numerators = np.concatenate(
        [times.samples[None, :] * ranks_spoken_for, wall, times.parts, times.parts]
    )
    denominators = np.concatenate(
        [wall / 1e9, ones, np.repeat(wall, parts, axis=0), np.repeat(ones, parts, axis=0)]
    )
    throughput, step_ns, *rest = estimate_ratios(numerators, denominators)
    if not times.samples.any():
        throughput = Estimate(
            math.nan
        )  # other tools' traces do not say how many samples there were; none is not zero a second
    phases = tuple(
        PhaseShare(name, rest[row], rest[parts + row]) for row, name in enumerate(times.names)
    )
    return {"throughput": throughput, "step_ns": step_ns, "phases": phases}


def _loss(steps: pa.Table, *, first: bool) -> float | None:
    """The first or last loss that rank 0, or the first rank there is, recorded."""
    own = steps.filter(pc.equal(steps["rank"], pc.min(steps["rank"])))
    losses = own.sort_by("step")["loss"].drop_null()
    return losses[0 if first else -1].as_py() if len(losses) else None


def _quality(trace: Trace) -> list[str]:
    """What a reader must know before believing the figures; nothing where all is well."""
    notices = []
    if trace.manifest.state is RunState.ABORTED:
        notices.append(f"the run was aborted: {trace.manifest.why}")
    elif trace.manifest.state is RunState.RUNNING:
        notices.append("the run has no end: it still runs, or it was killed")
    notices += _notices_of_ends(trace)
    if trace.missing_ranks:
        notices.append(
            f"no files of {len(trace.missing_ranks)} of {trace.manifest.world_size} ranks"
        )
    notices += _failures(trace)
    notices += _bad_samples(trace)
    if pc.any(pc.equal(trace.samples["metric"], WHOLE_STEPS)).as_py():
        notices.append(
            "the job trains a program of Paddle's static graph: its steps are whole, and what is inside them is unknown"
        )
    notices += trace.problems
    return notices


def _failures(trace: Trace) -> Iterator[str]:
    """Hooks and collectors of profkit's that raised or hung in the job and were left out there, and devices that were lost."""
    for what, count in _most_by_name(trace, FAILURES).items():
        yield f"profkit's {what} failed {plural(int(count), 'time')} and was left out"
    for what, longest in _most_by_name(trace, HANGS).items():
        yield f"profkit's {what} did not answer for {duration(longest)}"
    for what in _most_by_name(trace, UNMEASURED):
        yield f"not measured: {what}"
    lost = trace.samples.filter(pc.equal(trace.samples["metric"], LOST_GPU))
    for rank, device in sorted(
        {
            (rank, str(device))
            for rank, device in zip(
                lost["rank"].to_pylist(), lost["device"].to_pylist(), strict=True
            )
        }
    ):
        yield f"{device} of rank {rank} was lost while it trained; its readings end there"


def _most_by_name(trace: Trace, kind: str) -> dict[str, float]:
    """For each name behind the metric, the sum over the ranks of each rank's last and largest count."""
    rows = trace.samples.filter(pc.starts_with(trace.samples["metric"].cast(pa.string()), kind))
    largest: dict[tuple[int, str], float] = {}
    for rank, metric, value in zip(
        *(rows[name].to_pylist() for name in ("rank", "metric", "value")), strict=True
    ):
        largest[rank, metric] = max(value, largest.get((rank, metric), 0.0))
    names = dict.fromkeys(metric for _, metric in largest)
    combine = sum if kind == FAILURES else max
    return {
        name.removeprefix(kind): combine(
            value for (_, metric), value in largest.items() if metric == name
        )
        for name in names
    }


def _bad_samples(trace: Trace) -> Iterator[str]:
    """Samples that could not be read, of which the run has made something else."""
    met = trace.samples.filter(
        pc.starts_with(trace.samples["metric"].cast(pa.string()), "bad_sample:")
    )
    names = dict.fromkeys(name.partition(":")[2] for name in met["metric"].to_pylist())
    if names:
        yield f"bad samples met {plural(met.num_rows, 'time')}, {plural(len(names), 'file')}, the first: {next(iter(names))}"


def _notices_of_ends(trace: Trace) -> Iterator[str]:
    """What the ranks' end records say; a rank that ended early is told of where the run itself does not say so."""
    dropped, early = 0, []
    for rank in trace.ranks:
        try:
            end = rank.end
        except UnreadableError as error:
            yield str(error)
            continue
        dropped += end.dropped if end else 0
        if end is None or end.reason != RunState.COMPLETE.value:
            early.append(
                f"rank {rank.rank} stopped early: {end.reason if end else 'it wrote no end record'}"
            )
    if dropped:
        yield f"{dropped:,} rows were dropped while recording"
    if trace.manifest.state is RunState.COMPLETE and early:
        yield early[0] + (f" (and {plural(len(early) - 1, 'more rank')})" if early[1:] else "")
