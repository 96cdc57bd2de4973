"""Two or more runs, read and compared: the values that text and JSON both render."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow.compute as pc

from profkit import plugins
from profkit.analysis.ceilings import Ceilings
from profkit.analysis.change_words import say_change
from profkit.analysis.code_changes import find_code_changes
from profkit.analysis.config_join import (
    HARMLESS,
    NOT_SAID,
    Difference,
    Recorded,
    find_caveats,
    find_recorded,
    find_unlike,
    join_config,
)
from profkit.analysis.kept_ceilings import load_ceilings
from profkit.analysis.line_changes import LineChanges, compare_lines
from profkit.analysis.overview import counted_ranks, silent_ranks
from profkit.analysis.repeats import check_repeats, pool_costs
from profkit.analysis.run_change import ChangeKind
from profkit.analysis.run_changes import LEAST_OTHER_BATCH, find_changes
from profkit.explain.between import carry, find_order, is_evident, judge_between
from profkit.explain.cell_places import locate
from profkit.explain.cells import Cell, Cells, divide_gap
from profkit.explain.claims import find_all, rank
from profkit.explain.coverage import Coverage, cover
from profkit.explain.evidence import Evidence
from profkit.explain.exchange_ledger import ExchangeLedger, compare_places
from profkit.explain.kernel_ledger import KernelLedger, compare_kernels
from profkit.explain.ledger import Ledger, compare
from profkit.explain.meeting import Meeting, find_meeting
from profkit.explain.policy import POLICY
from profkit.explain.precision import PrecisionAccount, account_for
from profkit.explain.predict.removal import predict_without
from profkit.explain.rules.amp_without_effect import PRECISION, is_mixed
from profkit.explain.rules.base import Case, Cause, is_material, trains_on_host
from profkit.explain.scaling import ScalingRow, scaling_table
from profkit.explain.turned import find_gains
from profkit.explain.verdict import Verdict
from profkit.frame.columns import durations, places_in
from profkit.frame.costs import RunCosts
from profkit.frame.device_clock import exposed_spans
from profkit.frame.device_times import PhaseClock, device_of, is_own
from profkit.frame.estimate import USUAL_LEVEL, Estimate, divide, scale
from profkit.frame.notices import find_unmeasured, is_log
from profkit.frame.run_frame import frame_of
from profkit.frame.selection import WARM_UP, including_batches
from profkit.notebook import ShownInNotebook
from profkit.text import amount, duration, percent, plural
from profkit.trace import RunManifest, Trace
from profkit.trace.flag import FlagKind
from profkit.trace.sharing import AT_LEAST
from profkit.vocab import ZERO_GRAD, Phase

SLOW_STARTS = 3
"""The first steps of a run that are much slower than the others; later ones differ by less."""

BothCeilings: TypeAlias = tuple[Ceilings | None, Ceilings | None]
"""The ceilings of the machines that the base and the target ran on, if they are known."""


@dataclass(frozen=True)
class Explained(ShownInNotebook):
    """The gap between two runs, its causes, and the caveats that a reader must know."""

    case: Case
    causes: tuple[Cause, ...]
    caveats: tuple[str, ...]
    kernels: KernelLedger | None = None
    exchange: ExchangeLedger | None = None
    """The exchange by place; null unless a run is sharded, and all waits were timed."""
    lines: LineChanges | None = None
    """Lines of code by phase; null unless both runs sampled stacks."""
    precision: PrecisionAccount | None = None
    """The captured steps by what precision can do; null without kernels of both runs."""

    @property
    def changes_precision(self) -> bool:
        """True if one run alone is in mixed precision, and neither trains on a CPU."""
        case, mixed = self.case, []
        for run, evidence in ((case.base, case.before), (case.target, case.after)):
            if is_log(evidence.trace) and not run.config.get(PRECISION):
                return False  # the log does not say it
            mixed.append(is_mixed(run, evidence))
        return mixed[0] != mixed[1] and not trains_on_host(case)

    @property
    def recorded(self) -> Recorded:
        """The kinds of settings of which it is known whether they differ."""
        return find_recorded(self.case.base, self.case.target)

    @property
    def ledger(self) -> Ledger:
        return self.case.ledger

    @property
    def cells(self) -> Cells:
        """The parts of the gap, which add up to it."""
        return self.case.cells

    @property
    def coverage(self) -> Coverage | None:
        """The part of the gap that the causes explain, or `None` without a sure gap."""
        return cover(self.case, self.causes)

    @property
    def told_cells(self) -> tuple[Cell, ...]:
        """The cells that are surely there, in the direction of the gap, the largest first.

        If the gap may have either direction, those of rows that changed are told, whichever way.
        """
        evident = self.ledger.evident
        is_gain = evident.is_gain if evident else self.ledger.total.delta.value < 0
        told = sorted(self.cells.told(gains=is_gain), key=lambda cell: -abs(cell.ns))
        if evident:  # what the verdict follows from is told first
            told.sort(key=lambda cell: not is_evident(cell))
        elif self.ledger.verdict is Verdict.CANNOT_JUDGE:
            changed = self.ledger.changed_rows
            other = [cell for cell in self.cells.told(gains=not is_gain) if cell.row in changed]
            told = sorted(told + other, key=lambda cell: (cell.row not in changed, -abs(cell.ns)))
        return tuple(told)

    @property
    def open_cells(self) -> tuple[Cell, ...]:
        """Those of which no cause takes most."""
        return tuple(
            each for each in self.told_cells if not is_claimed(each, self.causes, self.ledger)
        )


def is_claimed(cell: Cell, causes: Sequence[Cause], ledger: Ledger) -> bool:
    """Return true if causes in the cell's row cost most of it."""
    found_ns = 0.0
    for cause in causes:
        if cell.row in cause.rows and cause.cost_ns and cause.is_gain == (cell.ns < 0):
            found_ns += cause.cost_ns.value
    return found_ns >= POLICY.place_share * abs(cell.ns) * ledger.samples_per_step


def explain(base: Trace, target: Trace, ceilings: BothCeilings = (None, None)) -> Explained:
    """Compare two runs and ask every rule for causes."""
    return explain_repeats([base], [target], ceilings)


def explain_repeats(
    bases: Sequence[Trace], targets: Sequence[Trace], ceilings: BothCeilings = (None, None)
) -> Explained:
    """Compare two sides of several repeats each.

    Rows are about all repeats; all other evidence is about the run of middle speed.
    """
    check_repeats(bases)
    check_repeats(targets)
    before = list(map(Evidence, bases))
    after = list(map(Evidence, targets))
    return explain_sides(before, after, ceilings)


def explain_sides(
    bases: Sequence[Evidence], targets: Sequence[Evidence], ceilings: BothCeilings = (None, None)
) -> Explained:
    """Compare two sides of repeats that were read before."""
    before, after = _middle(bases), _middle(targets)
    manifests = before.trace.manifest, after.trace.manifest
    unlike = [*find_unlike(*_with_devices(before.trace, after.trace))]
    for run in (*bases, *targets):
        for place in run.trace.changed:
            unlike.append(f"{run.trace.name} was changed since it was written ({place})")
    unlike += _uneven_starts(bases, targets)
    ledger = compare(
        _pool(bases),
        _pool(targets),
        unlike=unlike,
        differences=_find_differences(before.trace, after.trace),
    )
    if impossible := doubt_efficiency(before.trace, after.trace, ledger):
        ledger = dataclasses.replace(ledger, unlike=(*ledger.unlike, impossible))
    cells = divide_gap(ledger, bases, targets)
    ledger = dataclasses.replace(ledger, total=dataclasses.replace(ledger.total, delta=cells.whole))
    ledger = judge_between(ledger, bases, targets)
    kernels = compare_kernels(before, after, ledger, ceilings)
    cells = locate(cells, ledger, before, after, kernels)
    case = Case(side_name(bases), side_name(targets), *manifests, ledger, before, after, cells)
    rules, broken = plugins.RULES.load_all()
    caveats = [*find_caveats(*manifests), *log_caveats(before.trace, after.trace)]
    caveats += part_caveats(before, after)
    caveats += reset_caveats(before, after, ledger)
    if not ledger.per_sample:
        caveats.append(
            "nothing says how many samples a step trains on, so steps are compared; that is fair "
            "only if the batches are equal"
        )
    if (level := ledger.total.delta.level) < USUAL_LEVEL:
        caveats.append(
            f"few steps: the intervals are those of an exact test over {before.costs.steps} and "
            f"{after.costs.steps} steps, at {percent(level, 0)}"
        )
    caveats += find_order(bases, targets)
    caveats += change_caveats(ledger, (*bases, *targets))
    for name, error in broken.items():
        caveats.append(f"the rule {name} could not be loaded: {error}")
    causes = [*find_all(case, rules.values()), *find_gains(case, rules.values())]
    falls = ledger.total.delta.value < 0
    causes = rank(predict_without(case, causes), falls=falls)
    case = dataclasses.replace(case, ledger=carry(ledger, causes, cells))
    # After the rules: reading their tables may show more damage.
    caveats += _flags([run.trace for run in (*bases, *targets)])
    lines = _compare_lines(before, after, ledger)
    exchange = compare_places(ledger, before, after)
    view = Explained(case, tuple(causes), tuple(caveats), kernels, exchange, lines)
    if kernels is not None and view.changes_precision:
        view = dataclasses.replace(view, precision=account_for(kernels))
    return view


def _find_differences(before: Trace, after: Trace) -> Iterator[Difference]:
    """Yield the settings and functions that differ, those without any effect last."""
    settings = join_config(before.manifest, after.manifest)
    found = [*settings, *find_code_changes(before.path, after.path)]
    yield from sorted(found, key=lambda each: each.rows in HARMLESS)


def _with_devices(*runs: Trace) -> Iterator[RunManifest]:
    """Yield the manifests with the devices of the settings, or else those of the ranks."""
    is_stated = all(run.manifest.config.get("device") for run in runs)
    for run in runs:
        config = dict(run.manifest.config)
        if not is_stated:
            config["device"] = device_of(run)
        yield dataclasses.replace(run.manifest, config=config)


def _uneven_starts(bases: Sequence[Evidence], targets: Sequence[Evidence]) -> Iterator[str]:
    """Yield a reason if one side alone is so short that its slow first steps are used.

    What another tool records does not begin with the job's first step.
    """
    left_out = {}
    for side, runs in (("base", bases), ("target", targets)):
        if not all(is_own(run.trace) and run.costs.steps for run in runs):
            return
        if runs[0].trace.is_part:
            return
        counts = [run.costs.selection.left_out.get(WARM_UP, 0) for run in runs]
        left_out[min(SLOW_STARTS, *counts)] = side, runs[0].costs.steps
    if len(left_out) > 1:
        side, steps = left_out[min(left_out)]
        other = "base"
        if side == "base":
            other = "target"
        yield (
            f"the {side}'s first steps, which are slower, are among the {steps:,} that are used, "
            f"because there are so few, and the {other}'s are left out: record more steps"
        )


def _compare_lines(before: Evidence, after: Evidence, ledger: Ledger) -> LineChanges | None:
    """Compare the lines of the runs of middle speed, per step of the base's batch."""
    if before.code is None or after.code is None:
        return None
    factor = 1.0
    if ledger.per_sample and after.step_samples:
        factor = before.step_samples / after.step_samples
    return compare_lines(before.code, after.code, factor)


def _middle(runs: Sequence[Evidence]) -> Evidence:
    """Return the run of middle speed; of two runs, the faster."""
    return sorted(runs, key=lambda run: run.step_ns)[(len(runs) - 1) // 2]


def _pool(runs: Sequence[Evidence]) -> RunCosts:
    began_ns = [run.trace.manifest.created_ns for run in runs if run.costs.steps]
    return pool_costs([run.costs for run in runs], began_ns)


def side_name(runs: Sequence[Evidence]) -> str:
    """Return the name of the run of middle speed, and the number of its repeats."""
    name = _middle(runs).trace.name
    return f"{name} and {plural(len(runs) - 1, 'repeat')}" if len(runs) > 1 else name


def _flags(traces: Sequence[Trace]) -> Iterator[str]:
    """Yield what is wrong with the runs, each once, with the names of the runs."""
    names: dict[str, list[str]] = {}
    for trace in traces:
        said = trace.manifest.flags
        flags: list[str] = [flag for flag in said if flag.kind is not FlagKind.NO_SAMPLES]
        if trace.dropped:
            flags.append(f"{plural(trace.dropped, 'row')} could not be written")
        silent = silent_ranks(trace)
        if silent:
            ranks = plural(trace.manifest.world_size, "rank")
            missing = f"{silent:,} of {ranks} left no steps"
            if not is_own(trace):
                missing = f"there are no steps of {silent:,} of {ranks} in the imported files"
            flags.append(f"{missing}; the rows are about the others")
        device_times = frame_of(trace).device_times
        if device_times is not None:
            flags += device_times.notices
        for flag in (*flags, *find_unmeasured(trace), *trace.problems):
            names.setdefault(flag, []).append(trace.name)
    for flag, own in names.items():
        yield f"{' and '.join(dict.fromkeys(own))}: {flag}"


def scale_runs(traces: Sequence[Trace]) -> tuple[ScalingRow, ...]:
    """Return how a job scales over runs, the first of which is the base."""
    return scale_sides([read_side([trace]) for trace in traces])


class Side(NamedTuple):
    """Repeats of one job, and where the ranks of the run of middle speed meet."""

    runs: tuple[Evidence, ...]
    meeting: Meeting | None

    @property
    def middle(self) -> Evidence:
        """The run that represents the others in all that cannot be pooled."""
        return _middle(self.runs)


def read_side(traces: Sequence[Trace]) -> Side:
    """Read what comparisons need of repeats, once for all of them."""
    runs = list(map(Evidence, traces))
    middle = _middle(runs)
    meeting = find_meeting(
        frame_of(middle.trace).collectives,
        frame_of(middle.trace).by_rank,
        middle.used,
        load_ceilings(middle.trace.manifest.environment),
        timed=middle.costs.exchange_timed and not middle.costs.unclocked,
    )
    return Side(tuple(runs), meeting)


def scale_sides(sides: Sequence[Side]) -> tuple[ScalingRow, ...]:
    """Return how a job scales over sides, the first of which is the base."""
    runs, meetings = [], []
    for side in sides:
        ranks = side.middle.trace.manifest.world_size
        runs.append((side_name(side.runs), ranks, _pool(side.runs)))
        meetings.append(side.meeting)
    first = sides[0].middle.trace.manifest
    all_samples_known = all(costs.samples_known for _, _, costs in runs)
    rows = []
    for side, row in zip(sides, scaling_table(runs, meetings), strict=True):
        run, why = side.middle.trace.manifest, ""
        if all_samples_known:
            why = doubt(first, run, row.efficiency, join_config(first, run))
        seen = counted_ranks(side.middle.trace) / run.world_size
        speed = scale(row.throughput, seen)
        rows.append(dataclasses.replace(row, doubt=why, throughput=speed))
    return tuple(rows)


# Caveats of a comparison of two parts of one run.
ONE_RUN = (
    "both sides are parts of one run: what changed in between may be the job, its data, or the "
    "machine; the intervals hold the noise within each part"
)


def part_caveats(before: Evidence, after: Evidence) -> Iterator[str]:
    """Yield that both sides are one run, and that its batch changed in between."""
    if not before.trace.is_part:
        return
    yield ONE_RUN
    first, then = before.step_samples, after.step_samples
    if first and then and abs(then / first - 1) > LEAST_OTHER_BATCH:
        yield (
            f"a step trains on {amount(then)} instead of {amount(first)} samples per rank, which "
            "is the job's own change; the rows compare times per sample"
        )


# Caveats of a comparison with a run whose step time changed while it lasted.
LASTING = (ChangeKind.STEP, ChangeKind.DRIFT)


def change_caveats(ledger: Ledger, runs: Sequence[Evidence]) -> Iterator[str]:
    """Yield the largest lasting change of each run whose mean settles nothing.

    Its intervals are wide because it has two levels, and what lies between them has its own causes.
    """
    if ledger.verdict is not Verdict.CANNOT_JUDGE:
        return
    for run in runs:
        if run.trace.is_part:
            continue
        changes = find_changes(run.trace, including_batches(run.costs.selection))
        lasting = [change for change in changes if change.kind in LASTING]
        if lasting:
            change = max(lasting, key=lambda each: abs(each.after_ns.value - each.before_ns.value))
            yield (
                f"{run.trace.name}: {say_change(change)}; its figures are means over both parts: "
                f"see 'profkit explain RUN --at {change.first_step}'"
            )


# The caveat of a comparison of which one side alone times the reset of gradients.
class Resets(NamedTuple):
    """What hooks saw of an optimizer: whether it stepped, and the time of resets per step."""

    steps: bool
    time_ns: float


def reset_caveats(before: Evidence, after: Evidence, ledger: Ledger) -> Iterator[str]:
    """Yield a caveat if only one side's optimizer includes the reset of gradients.

    Hooks time the optimizer's own method alone.
    """
    sides = [(side.figure(read_resets), side.trace) for side in (before, after)]
    (missing, without), (present, timed) = sorted(sides, key=lambda side: side[0].time_ns)
    if missing.time_ns or not missing.steps or not is_material(present.time_ns, ledger):
        return
    yield (
        f"the optimizer of {timed.name} includes {duration(present.time_ns)} per step for the "
        f"gradient reset; {without.name} recorded no such call, so its optimizer includes none"
    )


def read_resets(evidence: Evidence) -> Resets:
    """Return what a run's own hooks saw, on the device's clock if there is one.

    Imported traces name such calls otherwise.
    """
    count, spans = len(evidence.used) * evidence.costs.ranks, evidence.outer_spans
    if not count or not is_own(evidence.trace):
        return Resets(False, 0.0)
    if evidence.costs.clock is not PhaseClock.HOST:  # inner spans are a part of that clock's
        spans = exposed_spans(evidence.select_used(evidence.trace.spans))
        spans = spans.filter(pc.equal(spans["depth"], 0))
    is_reset = places_in(spans["name"], (ZERO_GRAD,)) == 0
    is_optimizer = places_in(spans["phase"], (Phase.OPTIMIZER.value,)) == 0
    steps = bool(np.any(is_optimizer & ~is_reset))
    return Resets(steps, float(durations(spans)[is_reset].sum()) / count)


# Doubts about comparing two logs: efficiencies that cannot be, and what neither states.
HIGHEST = 1.05
"""Two runs of one job differ by as much; a larger gain per rank needs a reason."""

_REASONS = frozenset(
    [
        "framework",
        "precision",
        "batch_size",
        "device",
        "memory_format",
        "xla",
        "dali",
        "loader",
        "workers",
        "data",
        "image_size",
        "compile",
        "workload",
        "cpu",
        "gpu_models",
    ]
)
"""Settings that can make each rank faster; if one differs, the efficiency can be true."""


def log_caveats(base: Trace, target: Trace) -> Iterator[str]:
    """Yield what nothing shows to be alike, because a log does not state it."""
    if not (is_log(base) and is_log(target)):
        return
    for name, words in (("device", "device"), ("rows_speak_for_ranks", "number of ranks")):
        silent = []
        for each in (base, target):
            config = each.manifest.config
            if words == "device" and each.manifest.environment.get("gpu_models"):
                continue  # the description of the system states it
            is_bound = words == "number of ranks" and AT_LEAST in config
            if name not in config or is_bound:
                silent.append(each.name)
        if len(silent) == 2:
            yield f"neither log states its {words}"
        elif silent:
            yield f"{silent[0]} does not state its {words}"


def doubt_efficiency(base: Trace, target: Trace, ledger: Ledger) -> str:
    """Return why two logs cannot be of one job, or nothing if they can."""
    if not (is_log(base) and is_log(target) and ledger.per_sample):
        return ""
    few, many, efficiency = base.manifest, target.manifest, ledger.efficiency
    if few.world_size > many.world_size:
        few, many, efficiency = many, few, divide(ledger.total.target, ledger.total.base)
    return doubt(few, many, efficiency, ledger.differences)


def doubt(
    few: RunManifest, many: RunManifest, efficiency: Estimate, differences: Sequence[Difference]
) -> str:
    """Return why an efficiency cannot be, or nothing if it can.

    More ranks make no rank faster: the least that they do is to exchange gradients.
    """
    if few.world_size >= many.world_size or not efficiency.value > HIGHEST:
        return ""
    if efficiency.low is not None and efficiency.low <= 1:
        return ""
    for each in differences:
        if each.name in _REASONS and NOT_SAID not in (each.base, each.target):
            return ""
    words = (
        f"an efficiency of {percent(efficiency.value, 0)} from {few.world_size} to "
        f"{plural(many.world_size, 'rank')} cannot be: more ranks make no rank faster, so the two "
    )
    if "log_of" in few.config and "log_of" in many.config:
        return words + (
            "logs differ in something that they do not state (precision, batch, machine, number of "
            "ranks), or a figure is wrong"
        )
    return words + "runs differ in something else (machine, its load, data), or a figure is wrong"
