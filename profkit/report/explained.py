"""Two runs, or more, read and compared: the frozen values that text and JSON both render."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profkit import plugins
from profkit.analysis.ceilings import Ceilings
from profkit.analysis.config_join import find_caveats, find_unlike, join_config
from profkit.analysis.costs import RunCosts, run_costs
from profkit.analysis.evidence import Evidence
from profkit.analysis.kernel_ledger import KernelLedger, compare_kernels
from profkit.analysis.ledger import Ledger, compare
from profkit.analysis.meeting import find_meeting
from profkit.analysis.overview import silent_ranks, steady_steps
from profkit.analysis.rank_sums import Mapper, SpanSums, add_sums, sum_ranks
from profkit.analysis.repeats import check_repeats, pool_costs
from profkit.analysis.scaling import ScalingRow, scaling_table
from profkit.ceilings import load_ceilings
from profkit.rules._base import Case, Finding, find_all
from profkit.text import plural
from profkit.trace import Trace


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


def explain(base: Trace, target: Trace, ceilings: tuple[Ceilings | None, Ceilings | None] = (None, None), each: Mapper | None = None) -> Explained:
    """Compare two runs and ask every rule; `ceilings` are those of the machines that they ran on, where they are known.

    `each` makes every rank's sums where it likes; without it they are made here, of all ranks at once.
    """
    return explain_repeats([base], [target], ceilings, each)


def explain_repeats(
    bases: Sequence[Trace], targets: Sequence[Trace], ceilings: tuple[Ceilings | None, Ceilings | None] = (None, None), each: Mapper | None = None
) -> Explained:
    """The same of several runs of each side. Rows are about all of them; what else was recorded is looked at in the run of middle speed."""
    for traces in (bases, targets):
        check_repeats(traces)
    sides = [[Evidence(trace, _costs_by_rank(trace, each)[0] if each else run_costs(trace)) for trace in traces] for traces in (bases, targets)]
    before, after = map(_middle, sides)
    base, target = before.trace, after.trace
    manifests = base.manifest, target.manifest
    pooled = [pool_costs([side.costs for side in runs]) for runs in sides]
    changed = [place for trace in (*bases, *targets) for place in _changed(trace)]
    ledger = compare(*pooled, unlike=[*find_unlike(*manifests), *changed], differences=join_config(*manifests))
    case = Case(_name(base, bases), _name(target, targets), *manifests, ledger, before, after)
    rules, broken = plugins.RULES.load_all()
    caveats = [*find_caveats(*manifests), *_samples_caveat(ledger), *(f"the rule {name} could not be loaded: {error}" for name, error in broken.items())]
    return Explained(
        case,
        find_all(case, rules.values()),
        (*caveats, *(flag for trace in (*bases, *targets) for flag in _flags(trace))),
        compare_kernels(before, after, ledger, ceilings),
    )


def _middle(runs: Sequence[Evidence]) -> Evidence:
    """The run whose steps are neither the fastest nor the slowest; of two, the faster."""
    return sorted(runs, key=lambda run: run.step_ns)[(len(runs) - 1) // 2]


def _name(trace: Trace, repeats: Sequence[Trace]) -> str:
    return trace.name + (f" and {plural(len(repeats) - 1, 'repeat')}" if len(repeats) > 1 else "")


def _samples_caveat(ledger: Ledger) -> list[str]:
    return [] if ledger.per_sample else ["nothing says how many samples a step trains on, so steps are compared; that is fair for equal batches alone"]


def _changed(trace: Trace) -> list[str]:
    return [f"{trace.name} was changed since it was written ({place})" for place in trace.changed]


def _flags(trace: Trace) -> list[str]:
    silent = silent_ranks(trace)
    missing = [f"{silent:,} of {plural(trace.manifest.world_size, 'rank')} left no steps; the rows are about the others"] if silent else []
    return [f"{trace.name}: {flag}" for flag in (*trace.manifest.flags, *missing, *trace.problems)]


def scale_runs(traces: Sequence[Trace], each: Mapper = map) -> tuple[ScalingRow, ...]:
    """How a job scales over these runs, the first of which is the base; `each` makes every rank's sums."""
    runs, meetings = [], []
    for trace in traces:
        costs, sums = _costs_by_rank(trace, each)
        runs.append((trace.name, trace.manifest.world_size, costs))
        meetings.append(find_meeting(trace.collectives, sums, costs.selection.steps, load_ceilings(trace.manifest.environment)))
    return scaling_table(runs, meetings)


def _costs_by_rank(trace: Trace, each: Mapper) -> tuple[RunCosts, dict[int, SpanSums]]:
    """The costs of a run of which spans are read rank by rank; damage, which only who reads it sees, is looked at here as well."""
    if not trace.steps.num_rows:
        return run_costs(trace), {}
    sums = sum_ranks(trace, steady_steps(trace).steps, each)
    for rank in trace.ranks:
        if sums[rank.rank].damaged:
            rank.table("spans")
    return run_costs(trace, add_sums(list(sums.values()))), sums
