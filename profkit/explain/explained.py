"""Two runs, or more, read and compared: the frozen values that text and JSON both render."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from profkit import plugins
from profkit.analysis.ceilings import Ceilings
from profkit.analysis.config_join import find_caveats, find_unlike, join_config
from profkit.analysis.costs import RunCosts, run_costs
from profkit.analysis.kept_ceilings import load_ceilings
from profkit.analysis.overview import silent_ranks
from profkit.analysis.rank_sums import SpanSums, add_sums, sum_ranks
from profkit.analysis.repeats import check_repeats, pool_costs
from profkit.analysis.selection import steady_steps
from profkit.explain.evidence import Evidence
from profkit.explain.kernel_ledger import KernelLedger, compare_kernels
from profkit.explain.ledger import Ledger, compare
from profkit.explain.meeting import Meeting, find_meeting
from profkit.explain.rules.base import Case, Finding, find_all
from profkit.explain.scaling import ScalingRow, scaling_table
from profkit.text import plural
from profkit.trace import Trace
from profkit.trace.reader import Mapper


@dataclass(frozen=True)
class Explained:
    """The gap between two runs, its causes, and what a reader must mind."""

    case: Case
    findings: tuple[Finding, ...]
    caveats: tuple[str, ...]
    kernels: KernelLedger | None = None

    @property
    def ledger(self) -> Ledger:
        return self.case.ledger


def explain(
    base: Trace, target: Trace, ceilings: tuple[Ceilings | None, Ceilings | None] = (None, None)
) -> Explained:
    """Compare two runs and ask every rule; `ceilings` are those of the machines that they ran on, where they are known."""
    return explain_repeats([base], [target], ceilings)


def explain_repeats(
    bases: Sequence[Trace],
    targets: Sequence[Trace],
    ceilings: tuple[Ceilings | None, Ceilings | None] = (None, None),
) -> Explained:
    """The same of several runs of each side. Rows are about all of them; what else was recorded is looked at in the run of middle speed."""
    for traces in (bases, targets):
        check_repeats(traces)
    before, after = (
        [Evidence(trace, run_costs(trace)) for trace in traces] for traces in (bases, targets)
    )
    return explain_sides(before, after, ceilings)


def explain_sides(
    bases: Sequence[Evidence],
    targets: Sequence[Evidence],
    ceilings: tuple[Ceilings | None, Ceilings | None] = (None, None),
) -> Explained:
    """The same of what was read of both sides already."""
    sides = bases, targets
    before, after = map(_middle, sides)
    manifests = before.trace.manifest, after.trace.manifest
    traces = [run.trace for side in sides for run in side]
    pooled = [pool_costs([run.costs for run in side]) for side in sides]
    changed = [place for trace in traces for place in _changed(trace)]
    ledger = compare(
        *pooled, unlike=[*find_unlike(*manifests), *changed], differences=join_config(*manifests)
    )
    case = Case(side_name(bases), side_name(targets), *manifests, ledger, before, after)
    rules, broken = plugins.RULES.load_all()
    caveats = [
        *find_caveats(*manifests),
        *_samples_caveat(ledger),
        *(f"the rule {name} could not be loaded: {error}" for name, error in broken.items()),
    ]
    return Explained(
        case,
        find_all(case, rules.values()),
        (*caveats, *(flag for trace in traces for flag in _flags(trace))),
        compare_kernels(before, after, ledger, ceilings),
    )


def _middle(runs: Sequence[Evidence]) -> Evidence:
    """The run whose steps are neither the fastest nor the slowest; of two, the faster."""
    return sorted(runs, key=lambda run: run.step_ns)[(len(runs) - 1) // 2]


def side_name(runs: Sequence[Evidence]) -> str:
    """The run of middle speed, and how many others stand beside it."""
    return _middle(runs).trace.name + (
        f" and {plural(len(runs) - 1, 'repeat')}" if len(runs) > 1 else ""
    )


def _samples_caveat(ledger: Ledger) -> list[str]:
    return (
        []
        if ledger.per_sample
        else [
            "nothing says how many samples a step trains on, so steps are compared; that is fair for equal batches alone"
        ]
    )


def _changed(trace: Trace) -> list[str]:
    return [f"{trace.name} was changed since it was written ({place})" for place in trace.changed]


def _flags(trace: Trace) -> list[str]:
    silent = silent_ranks(trace)
    missing = (
        [
            f"{silent:,} of {plural(trace.manifest.world_size, 'rank')} left no steps; the rows are about the others"
        ]
        if silent
        else []
    )
    return [f"{trace.name}: {flag}" for flag in (*trace.manifest.flags, *missing, *trace.problems)]


def scale_runs(traces: Sequence[Trace], each: Mapper = map) -> tuple[ScalingRow, ...]:
    """How a job scales over these runs, the first of which is the base; `each` makes every rank's sums."""
    return scale_sides([read_side([trace], each) for trace in traces])


class Side(NamedTuple):
    """Repeats of one job, and where the ranks of the one of middle speed meet."""

    runs: tuple[Evidence, ...]
    meeting: Meeting | None

    @property
    def middle(self) -> Evidence:
        """The run that speaks for the others where they cannot be pooled."""
        return _middle(self.runs)


def read_side(traces: Sequence[Trace], each: Mapper = map) -> Side:
    """What a comparison needs of repeats, read once for all that they are compared with."""
    read = [_costs_by_rank(trace, each) for trace in traces]
    runs = tuple(Evidence(trace, costs) for trace, (costs, _) in zip(traces, read, strict=True))
    middle = _middle(runs)
    sums = next(found for run, (_, found) in zip(runs, read, strict=True) if run is middle)
    trace = middle.trace
    return Side(
        runs,
        find_meeting(
            trace.collectives,
            sums,
            middle.costs.selection.steps,
            load_ceilings(trace.manifest.environment),
        ),
    )


def scale_sides(sides: Sequence[Side]) -> tuple[ScalingRow, ...]:
    """How a job scales over sides, the first of which is the base."""
    runs = [
        (
            side_name(side.runs),
            side.middle.trace.manifest.world_size,
            pool_costs([run.costs for run in side.runs]),
        )
        for side in sides
    ]
    return scaling_table(runs, [side.meeting for side in sides])


def _costs_by_rank(trace: Trace, each: Mapper) -> tuple[RunCosts, dict[int, SpanSums]]:
    """The costs of a run of which spans are read rank by rank; damage, which only who reads it sees, is looked at here as well."""
    if not trace.steps.num_rows:
        return run_costs(trace), {}
    sums = sum_ranks(trace, steady_steps(trace).steps, each)
    for rank in trace.ranks:
        if sums[rank.rank].damaged:
            rank.table("spans")
    return run_costs(trace, add_sums(list(sums.values()))), sums
