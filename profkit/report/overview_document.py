"""One run as a document."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from profkit.analysis.flames import Flame, build_flames
from profkit.analysis.losses import MEANINGS, Losses
from profkit.analysis.overview import Overview
from profkit.analysis.views.pictures import USED, RankPhases, StepPoint, rank_phases, step_points
from profkit.frame.costs import OUTLIER
from profkit.frame.device_times import PhaseClock
from profkit.frame.estimate import NEGLIGIBLE, Estimate
from profkit.frame.own_cost import OwnCost
from profkit.frame.phases import UNKNOWN
from profkit.frame.run_frame import frame_of
from profkit.report.advice import Answers, advice
from profkit.report.changes_section import changes_section
from profkit.report.code_sections import (
    code_sections,
    flame_section,
    unknown_note,
    worker_section,
)
from profkit.report.compiling_section import compiling_section
from profkit.report.device_sections import (
    device_sections,
    idle_section,
    idle_words,
    launch_notes,
)
from profkit.report.exchange_sections import exchange_sections
from profkit.report.kernel_sections import kernel_sections
from profkit.report.log_words import (
    coverage,
    log_meanings,
    log_quality,
    own_figure,
    sample_unit,
    source_rows,
)
from profkit.report.long_steps_section import long_steps_section
from profkit.report.machine_sections import device_time_data
from profkit.report.memory_document import headline as memory_headline
from profkit.report.memory_document import memory_sections
from profkit.report.sharded_sections import sharded_sections
from profkit.report.steady_section import steady_lanes, steady_section
from profkit.report.utilisation_section import utilisation_section
from profkit.report.whatif_document import NOT_REPLAYED, answers_section
from profkit.report.words import (
    clock_words,
    meaning,
    own_cost_words,
    run_meanings,
    steps_line,
    untimed_words,
    used_words,
    why_not_judged,
)
from profkit.show.document import (
    NAMED,
    Cause,
    Column,
    Document,
    Fact,
    Grid,
    Heat,
    Lanes,
    Quantity,
    Section,
    Shares,
    Strip,
    Table,
    Tone,
    data_columns,
    labelled,
)
from profkit.show.figures import (
    MS,
    NS,
    SHARE,
    WORDS,
    Unit,
    interval_in_brackets,
    interval_words,
    plain,
)
from profkit.text import duration, percent, significant
from profkit.trace import Trace
from profkit.trace.sharing import say_world

NO_ANSWERS = Answers()
OWN_COST = "profkit's cost"
COMPLETE = "complete, no rows dropped"

MOST_LINES = 25
"""Lines of a report before a reader asks for everything."""

HEADROOM = 1.3
"""The axis of a strip of steps ends at this many times the longest steady step."""


@dataclass(frozen=True)
class Illustrated:
    """The figures of one run, and what its charts draw."""

    view: Overview
    points: tuple[StepPoint, ...]
    ranks: RankPhases | None
    flames: tuple[Flame, ...] = ()
    steady: Lanes | None = None


def illustrate(trace: Trace, view: Overview) -> Illustrated:
    basis = frame_of(trace).basis
    flames: tuple[Flame, ...] = ()
    if view.code is not None:
        tables = trace.stacks, trace.frames, trace.steps, trace.spans
        flames = build_flames(view.code, *tables, view.selection.steps)
    return Illustrated(
        view,
        step_points(trace.steps, view.selection),
        rank_phases(basis.frame, basis.used),
        flames,
        steady_lanes(trace),
    )


def overview(
    view: Overview,
    drawn: Illustrated | None = None,
    *,
    answers: Answers | None = NO_ANSWERS,
    next_command: str = "",
) -> Document:
    """Return the document of one run; a page needs `drawn`, plain text does not.

    `answers` are what the run predicts of the job without its causes; `None` if it is too large.
    """
    verdict, tone, summary = "measured", Tone.PLAIN, ""
    if not view.judged:
        verdict, tone, summary = "inconclusive", Tone.UNSURE, why_not_judged(view)
    warnings = []
    if view.own_cost.exceeds_budget(view.step_ns.value):
        warnings.append(over_budget_words(view.own_cost))
    if reduced := view.config.get("reduced"):
        warnings.append(f"reduced for this machine: {reduced}")
    copied = [("trace", view.path)]
    if next_command:
        copied.append(("next", next_command))
    return Document(
        title=view.name,
        subtitle=" · ".join(filter(None, _subtitle(view))),
        headline=headline(view),
        verdict=verdict,
        tone=tone,
        summary=summary,
        advice=advice(view, answers or NO_ANSWERS),
        doubt="" if view.judged else None,
        facts=tuple(_facts(view)),
        warnings=tuple(warnings),
        sections=tuple(_sections(view, drawn, answers)),
        copied=tuple(copied),
        data=run_data(view),
        most_lines=MOST_LINES,
    )


def over_budget_words(cost: OwnCost) -> str:
    """Return by how much profkit slowed a run down; of two figures, the larger that is sure."""
    own, switched = Estimate(cost.hooks_ns or 0.0), cost.switched
    if switched is not None and (switched.low or 0.0) > own.value:
        own = switched
    each = f"{duration(own.value)} per step{interval_in_brackets(own, duration)}"
    return f"profkit cost this run more than 1 % of a step or 0.15 ms: {each}"


def headline(view: Overview) -> str:
    """Return how long a step takes, and where most of it goes, if the run's times say so.

    Where the memory did not suffice, that is the answer.
    """
    if view.memory and view.memory[0].failed is not None:
        return memory_headline(view.memory[0])
    step = view.step_ns
    if not step.value > 0 or not view.times_hold:
        return ""
    words = f"A step takes {duration(step.value)}{interval_in_brackets(step, duration)}"
    if view.clock is PhaseClock.LAUNCH:
        return f"{words}; without device times, nobody knows where it goes."
    largest = max(view.phases, key=lambda part: part.share.value, default=None)
    if largest is not None and largest.name == UNKNOWN:
        return f"{words}; no phase covers {percent(largest.share.value)} of it."
    if view.losses.found or not view.losses.missing:
        return f"{words}; {_lost_words(view)}."
    if largest is not None:
        share, ns = percent(largest.share.value), duration(largest.step_ns.value)
        words += f", the largest part in {largest.name}: {ns}, {share}"
    return f"{words}."


def _lost_words(view: Overview) -> str:
    """Return what costs most without training, or that nothing does."""
    idle, idle_for = idle_words(view.devices)
    if idle > max((loss.share for loss in view.losses.found), default=0.0):
        return idle_for
    if not view.losses.found:
        return "no other part than the training itself takes a significant share of it"
    largest = view.losses.found[0]
    if largest.kind == UNKNOWN:
        return f"no phase covers {percent(largest.share)} of it"
    costs = f"{duration(largest.step_ns.value)}, {percent(largest.share)}"
    if largest.is_apart:
        costs = f"{duration(largest.step_ns.value)} per step on average"  # of other steps, too
    own_meanings = {**log_meanings(view.config), **run_meanings(view)}
    name = own_meanings.get(largest.kind) or MEANINGS.get(largest.kind, largest.kind)
    known = "known " * bool(view.losses.missing)
    return f"the largest {known}loss is {name}: {costs}"


def run_data(view: Overview) -> dict[str, Any]:
    """Return what is known of a run besides its figures, for programs."""
    cost, costs = view.own_cost, view.costs
    data: dict[str, Any] = {
        "run": view.path,
        "advice": advice(view, NO_ANSWERS) or None,
        "workload": view.workload,
        "framework": view.framework,
        "state": view.state,
        "why": view.why,
        "ranks": view.world_size,
        "ranks_seen": view.ranks_seen,
        "config": view.config,
        "verdict": "measured" if view.judged else "cannot judge",
        "steps_seen": view.steps_seen,
        "steps_used": view.steps_used,
        "steps_needed": view.steps_needed,
        "steps_left_out": view.left_out,
        "throughput_covers": coverage(view) or None,
        "step_without_long_ms": Quantity(view.long_steps.others_ns, MS),
        "first_loss": view.first_loss,
        "last_loss": view.last_loss,
        "own_cost_ms_per_step": {
            "hooks": Quantity(cost.hooks_ns, MS),
            "writer": Quantity(cost.writer_ns, MS),
            "collectors": Quantity(cost.collectors_ns, MS),
            "eye": Quantity(cost.eye_ns, MS),
            "total": Quantity(cost.total_ns, MS),
            "by_switching_off": Quantity(cost.switched, MS),
        },
        "own_cost_opening_ms": Quantity(cost.opening_ns, MS),
        "data_quality": view.quality,
        "flags": view.flags,
    }
    if (thinned := view.thinned) is not None:
        lengths = {f"{share:g}": ns for share, ns in thinned.quantiles.items()}
        data["thinned"] = {
            "steps_in_full": thinned.in_full,
            "steps_sampled": len(view.selection.steps),
            "sampled_one_in": thinned.one_in,
            "step_ms_quantiles": Quantity(lengths, MS),
            "quantile_error": thinned.error,
        }
    if view.clock is not PhaseClock.HOST:
        data["phases_clock"] = view.clock
        data["device_times"] = device_time_data(view.device_times)
    if view.clock is not PhaseClock.HOST and costs is not None:
        data["phases_steps"] = {"used": costs.steps, "left_out": costs.selection.left_out}
        data["phases_ranks_without_device_times"] = costs.unclocked
        data["exchange_timed"] = view.exchange_timed
    return data


def _subtitle(view: Overview) -> Iterator[str]:
    config = view.config
    yield view.workload
    yield view.framework
    yield str(config.get("precision") or "")
    yield say_world(view.world_size, config)
    yield str(config.get("device") or "")
    if "batch_size" in config:
        total = ""
        if "global_batch_size" in config:
            total = f", {config['global_batch_size']} in total"
        yield f"batch {config['batch_size']} per rank{total}"
    if "data" in config:
        yield f"data {config['data']}"
    yield used_words(view)


def _loss(loss: float) -> str:
    """Return a loss; one that is no number is measured too, and says so."""
    return significant(loss, 5) if math.isfinite(loss) else str(loss).replace("nan", "NaN")


def _facts(view: Overview) -> Iterator[Fact]:
    throughput, step = view.throughput, view.step_ns
    unit = Unit(lambda value: f"{plain(value)} {sample_unit(view.config)}/s")
    covered = filter(None, (interval_words(throughput, plain), coverage(view)))
    yield Fact("throughput_samples_per_s", "throughput", throughput, unit, ", ".join(covered))
    for label, figure, detail in own_figure(view):
        yield Fact("", label, figure, WORDS, detail)
    yield Fact(
        "step_ms",
        "step",
        step,
        Unit(partial(duration, digits=4), MS.scale),
        interval_words(step, duration),
        folded=True,  # the headline says it
    )
    if (others_ns := view.long_steps.others_ns) is not None:
        meant = f"the mean of the other {view.long_steps.others:,} steps"
        yield Fact("", "without long steps", duration(others_ns, 4), WORDS, meant)
    if view.thinned is not None:
        (_, median_ns), *others = view.thinned.quantiles.items()
        words = ["the median"]
        for steps, length_ns in others:
            words.append(f"{percent(steps, 0)} take at most {duration(length_ns)}")
        words.append(f"to within {percent(view.thinned.error)}")
        yield Fact("", "step times", duration(median_ns), WORDS, ", ".join(words))
    if view.first_loss is not None and view.last_loss is not None:
        last = f"{_loss(view.last_loss)} at the last step"
        first = f"{_loss(view.first_loss)} at the first"
        yield Fact("", "loss", last, WORDS, first, folded=True)
    yield _own_cost_fact(view)


def _own_cost_fact(view: Overview) -> Fact:
    """Return what profkit added to the loop, and what its other threads used of a core."""
    cost, step_ns = view.own_cost, view.step_ns.value
    label = "profkit's own cost"
    if cost.total_ns is None:
        return Fact("", label, "not measured", WORDS, "")
    detail = ""
    if step_ns > 0:
        loop, threads = (cost.hooks_ns or 0.0) / step_ns, cost.threads_ns / step_ns
        each = "a core" if view.ranks_seen == 1 else "a core per rank"
        detail = f"{percent(loop, 3)} of a step, and {percent(threads)} of {each}"
    return Fact("", label, f"at least {duration(cost.hooks_ns or 0.0)} per step", WORDS, detail)


def _sections(
    view: Overview, drawn: Illustrated | None, answers: Answers | None
) -> Iterator[Section]:
    yield from device_sections(view.devices)
    yield from idle_section(view.config)
    yield from phases_section(view)
    yield losses_section(view.losses)
    yield from utilisation_section(view.utilisation)
    if view.memory:
        yield from memory_sections(view.memory, key="memory")
    if answers is None:
        yield NOT_REPLAYED
    elif answers.predictions:
        yield answers_section(answers.predictions)
    yield from changes_section(view)
    yield from long_steps_section(view)
    yield from compiling_section(view)
    yield from code_sections(view)
    yield from worker_section(view.worker_lines)
    if drawn is not None:
        yield from steady_section(drawn.steady)
        yield from flame_section(drawn.flames)
        note = "The wall time of each step, as the mean over its ranks."
        yield Section("Step times", (note,), (("", strip(drawn.points)),))
        yield from ranks_section(drawn, "Ranks")
    yield from exchange_sections(view)
    yield from sharded_sections(view.sharded)
    yield from kernel_sections(view)
    yield quality({"": view})
    if drawn is not None:
        settings = Grid(("setting", "value"), tuple(flat(view.config)))
        yield Section("What ran", table=settings, folded=True)


def phases_section(view: Overview) -> Iterator[Section]:
    """Yield a row for each phase, with the host's time if the device's was measured."""
    meanings = {**log_meanings(view.config), **run_meanings(view)}
    columns = (
        Column("phase", "phase", lambda part: part.name, role=str),
        Column("share", "share", lambda part: part.share, SHARE, interval=True),
        Column("step_ms", "per step", lambda part: part.step_ns, MS),
        Column("host_ms", "host", lambda part: part.host_ns, MS),
        Column("", "what happens", lambda part: meanings.get(part.name) or meaning(part.name)),
    )
    shares = Shares(tuple((part.name, part.share.value) for part in view.phases))
    notes = (*clock_words(view), *launch_notes(view), *unknown_note(view))
    table = Table(columns, view.phases, only_known=True)
    noticed = [part for part in view.phases if abs(part.share.value) > NEGLIGIBLE]
    in_brief = dataclasses.replace(table, shown=noticed) if len(noticed) > 1 else table
    title = "Where a step goes" * bool(view.phases)
    urgent = (*untimed_words(view), *launch_notes(view), *unknown_note(view))
    brief = Section(title, urgent, (("", shares),), in_brief, kept=True)
    yield Section(title, notes, (("", shares),), table, brief=brief, key="phases")
    unknown = data_columns("after", "before", ns_per_step="step_ns")
    yield Section(key="unknown_places", table=Table(unknown, view.unknown_places))


LOSSES = data_columns("kind", "share", "evidence", cost_ns_per_step="step_ns")


def losses_section(lost: Losses) -> Section:
    """Return the time that is not spent on training, the costliest first."""
    notes: tuple[str, ...] = ()
    if not lost.found and not lost.missing:
        notes = ("none found: nothing else takes a significant share of a step",)
    ending = ""
    if lost.missing:
        ending = "there may be more" if lost.found else "not known"
        ending += f": {lost.missing}"
    causes, besides = [], []
    for loss in lost.found:
        cost = f"{duration(loss.step_ns.value)} per step, {percent(loss.share)}"
        causes.append(Cause(loss.kind, cost, loss.evidence, ""))
        if loss.is_apart and loss.kind != OUTLIER:  # long steps have a section
            besides.append(causes[-1])
    title = "Time not spent on training"
    return Section(
        title,
        notes,
        table=Table(LOSSES, lost.found),
        causes=tuple(causes),
        ending=ending,
        brief=Section(title, causes=tuple(besides)) if besides else NAMED,
        key="losses",
        facts={"missing": lost.missing or None},
    )


def strip(points: Sequence[StepPoint], others: Sequence[StepPoint] = ()) -> Strip:
    """Return a strip whose axis fits the steady steps; `others` are of a run shown below it."""
    both = (*points, *others)
    steady = [point.high_ns for point in both if point.kind == USED]
    highest = max(steady or [point.high_ns for point in both])
    return Strip(tuple(points), HEADROOM * highest)


def ranks_section(run: Illustrated, title: str) -> Iterator[Section]:
    """Yield the heat map, if there are ranks to compare."""
    found = run.ranks
    if found is None:
        return
    notes: tuple[str, ...] = ()
    if len(found.ranks) < found.ranks_in_all:
        notes = (f"The {len(found.ranks)} ranks that differ most, of {found.ranks_in_all:,}.",)
    rows = [(rank, *times) for rank, times in zip(found.ranks, found.step_ns, strict=True)]
    columns = [Column("", "rank", itemgetter(0))]
    for place, phase in enumerate(found.phases, start=1):
        columns.append(Column("", phase, itemgetter(place), NS))
    yield Section(title, notes, (("", Heat(found)),), Table(columns, rows, drawn=True))


def quality(sides: Mapping[str, Overview], *, with_flags: bool = True) -> Section:
    """Return what limits the confidence in the figures, and what measuring them cost.

    With more than one run, each row is labelled with its side.
    """
    rows = []
    for side, view in sides.items():
        prefix = f"{side}: " if side else ""
        if view.left_out:
            rows.append((f"{prefix}steps", steps_line(view)))
        rows.append((f"{prefix}{OWN_COST}", own_cost_words(view)))
        rows.append((f"{prefix}data quality", quality_words(view)))
        for label, text in source_rows(view.config):
            rows.append((f"{prefix}{label}".strip(), text))
        for flag in view.flags if with_flags else ():
            rows.append((f"{prefix}flag", flag))
    title, brief = "Confidence and data quality", NAMED
    usual = ("steps", OWN_COST)
    missing = filter(lambda row: not row[0].endswith(usual) and row[1] != COMPLETE, rows)
    if rows_in_brief := tuple(missing):
        brief = Section(title, table=labelled(rows_in_brief), kept=True)
    return Section(title, table=labelled(rows), brief=brief)


def quality_words(view: Overview) -> str:
    """Return what is missing in a run."""
    return "; ".join([*view.quality, *log_quality(view)]) or COMPLETE


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested settings as dotted names with values; settings without a value are omitted."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
            continue
        is_nan = isinstance(value, float) and math.isnan(value)
        if value is not None and value != "" and not is_nan:
            yield f"{prefix}{name}", str(value)
