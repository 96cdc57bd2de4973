"""Two runs, or more, as a document."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from operator import attrgetter
from typing import Any

from profkit.analysis.config_join import HARMLESS
from profkit.analysis.overview import build_overview
from profkit.analysis.views.pictures import StepPoint
from profkit.errors import UnreadableError
from profkit.explain import cell_words
from profkit.explain.cells import Cell
from profkit.explain.compared import Compared, Pair
from profkit.explain.coverage import Coverage
from profkit.explain.explained import Explained
from profkit.explain.gate import Judgement, Outcome
from profkit.explain.ledger import Ledger, Row, Verdict, why_not
from profkit.explain.rules.base import Case, Specific
from profkit.explain.titles import title_of
from profkit.explain.verdict import Between
from profkit.frame.costs import DATA, HIDDEN_EXCHANGE, RunCosts
from profkit.frame.estimate import Estimate, scale
from profkit.report import cause_words, ledger_words
from profkit.report.cells_section import cells_section
from profkit.report.changed_kernels import kernels, precision
from profkit.report.code_sections import BASE, TARGET, changed_lines
from profkit.report.log_words import is_log, sample_unit
from profkit.report.memory_document import changed_memory
from profkit.report.overview_document import Illustrated, illustrate, quality, ranks_section, strip
from profkit.report.scaling_document import scaling
from profkit.report.sharded_sections import exchange_places
from profkit.show.document import (
    NAMED,
    Cause,
    Chart,
    Column,
    Document,
    Fact,
    Section,
    Table,
    Tone,
    Waterfall,
    data_columns,
)
from profkit.show.figures import (
    WORDS,
    Unit,
    interval_words,
)
from profkit.text import amount, duration, percent, plural, safe_text, signed
from profkit.trace import Trace

TONES = {
    Verdict.REGRESSION: Tone.BAD,
    Verdict.IMPROVEMENT: Tone.GOOD,
    Verdict.PROBABLE_REGRESSION: Tone.BAD,
    Verdict.PROBABLE_IMPROVEMENT: Tone.GOOD,
    Verdict.NEUTRAL: Tone.PLAIN,
    Verdict.CANNOT_JUDGE: Tone.UNSURE,
}
MOST_LINES = 20
"""Lines of a comparison before a reader asks for everything."""

MOST_ROWS, FEWER_ROWS = 3, 1
"""Rows in brief, without the sum of the others and the total; the second if there is no room."""

MOST_CAUSES, LONGEST_EVIDENCE = 3, 94
"""Causes in brief; the first has its evidence if it is not longer, which is a line."""

SCREEN_DIFFERENCES = 12
"""Differences that a screen shows; a page shows all of them."""

_MARKS = {Outcome.PASSED: "✓", Outcome.FAILED: "✗", Outcome.NOT_JUDGED: "?"}


def illustrate_sides(base: Trace, target: Trace) -> dict[str, Illustrated]:
    """Return each side's own figures; a run without a step has none."""
    found = {}
    for side, trace in ((BASE, base), (TARGET, target)):
        with contextlib.suppress(UnreadableError):
            found[side] = illustrate(trace, build_overview(trace))
    return found


def explained(
    view: Explained,
    judgements: Sequence[Judgement] = (),
    sides: Mapping[str, Illustrated] | None = None,
) -> Document:
    """Return the document of two runs.

    `sides` are the runs' own figures, by `base` and `target`, for a page. Without them the document
    is one for a screen: it has no charts, and shorter lists.
    """
    ledger, case = view.ledger, view.case
    is_page = sides is not None
    sections = [
        *gates(judgements),
        rows_that_add_up(view),
        cells_section(view.cells, view.told_cells),
        *changed_lines(view),
        *kernels(view, is_page=is_page),
        *precision(view),
        *changed_memory(case.before.trace, case.after.trace),
        *exchange_places(view.exchange, view.ledger),
        causes(view),
        replace(differences(view, is_page=is_page), brief=NAMED if view.causes else None),
        steps(ledger, sides or {}),
    ]
    copied = []
    if sides:
        views = {side: illustrated.view for side, illustrated in sides.items()}
        if TARGET in sides:
            sections += ranks_section(sides[TARGET], "Ranks of the target")
        sections.append(quality(views, with_flags=False))  # they are among the caveats
        for side, run in views.items():
            copied.append((f"{side}: trace", run.path))
    return Document(
        title=f"{case.base_name} → {case.target_name}",
        subtitle="Why the two runs differ" if is_page else "",
        verdict=ledger_words.verdict_name(ledger.verdict),
        tone=TONES[ledger.verdict],
        summary=ledger_words.verdict_words(ledger),
        doubt=ledger_words.doubt_words(ledger),
        most_lines=MOST_LINES,
        headline=headline(view),
        facts=tuple(_facts(view)),
        warnings=view.caveats,
        sections=tuple(sections),
        copied=tuple(copied),
        data=gap_data(view),
    )


LARGER = 0.9
"""A cause is said before the largest cell if it costs about as much, or more."""


def headline(view: Explained) -> str:
    """Return how much the time changed, in which row, and the first cause."""
    ledger = view.ledger
    if not math.isfinite(ledger.change.value):
        return ""
    change = ledger_words.change_words(ledger, unit_of(view.case), is_short=True)
    verdict = ledger_words.verdict_name(ledger.verdict).capitalize()
    words = f"{verdict}: {change}"
    if ledger.verdict is Verdict.NEUTRAL:  # what is not shown has no place and no cause
        return f"{words}."
    told = view.told_cells
    if told:
        left = cell_words.MOST_WORDS - cell_words.count_words(words)
        larger = _larger_cause(view, told[0])
        tail = cell_words.tail(told[0], view.cells.step, left, larger)
        if ledger.evident and (told[0].ns < 0) != (ledger.total.delta.value < 0):
            return f"{verdict}: {tail}, although {change}."  # the machine hides it in the sum
        return f"{words}; {tail}."
    row, total = ledger.largest, ledger.total.delta.value
    if row is not None and len(ledger.rows) > 1 and total and math.isfinite(row.delta.value):
        share = row.delta.value / total
        words += f"; {'all' if share > 1 else percent(share, 0)} of that is {row.name}"
    if view.causes:
        less = "less " if view.causes[0].is_gain else ""
        words += f", likely by {less}{title_of(view.causes[0].kind)}"
    return f"{words}."


def _larger_cause(view: Explained, cell: Cell) -> str:
    """Return the words for a first cause that holds as much as the largest cell.

    One that only repeats where time is spent, or that may be the machine's, says no more than that.
    """
    first = next(iter(view.causes), None)
    if first is None or first.cost_ns is None or first.is_gain != (cell.ns < 0):
        return ""
    says_less = first.specific in (Specific.TIME, Specific.PLACE, Specific.MACHINE)
    if says_less or first.cost_ns.value < LARGER * abs(cell.ns) * view.cells.step:
        return ""
    words = f"{duration(first.cost_ns.value)} {'less' if first.is_gain else 'more'}"
    if first.specific is Specific.SETTING:  # it can be the reason, and nothing shows that it is
        return f"{words} with another {safe_text(first.detail)}"
    return f"{words} by {title_of(first.kind)}"


def compared(view: Compared, pairs: Sequence[Pair]) -> Document:
    """Return two sides as `explained`, or the scaling of more with the comparisons of pairs."""
    if not view.scaling:
        return explained(view.between(pairs[0]))
    document = scaling(view.scaling)
    return replace(document, data={"pairs": [explained(view.between(pair)) for pair in pairs]})


def gap_data(view: Explained) -> dict[str, Any]:
    """Return what programs get besides the figures and sections; times are ns per sample."""
    ledger = view.ledger

    def of(row: Row) -> Table:
        return replace(ledger_words.row_table(ledger, [row]), single=True)

    return {
        "base": view.case.base_name,
        "target": view.case.target_name,
        "verdict": ledger.verdict,
        "probability_of_change": ledger.probability,
        "smallest_change_seen_share": ledger.smallest_seen,
        "why_not_judged": why_not(ledger) or None,
        "between_runs": between_data(ledger.between),
        "rows_of_machine": sorted(ledger.unsure_rows),
        "phases_clock": {BASE: ledger.base.clock, TARGET: ledger.target.clock},
        "time_is_per": f"{'sample' if ledger.per_sample else 'step'} and rank",
        "efficiency_share": ledger.efficiency,
        "samples_per_step_and_gpu": ledger.samples_per_step if ledger.per_sample else None,
        "interval_confidence": ledger.total.delta.level,
        "largest_row": ledger.largest.name if ledger.largest else None,
        "total": of(ledger.total),
        "overlapped": ledger_words.row_table(ledger, ledger.beside),
        "profkit_in_all": of(ledger.switched) if ledger.switched else None,
        "explained": coverage_data(view.coverage),
        "caveats": view.caveats,
        "nothing_else_differs": not ledger.differences and any(view.recorded),
        "settings_recorded": view.recorded,
    }


def between_data(found: Between | None) -> dict[str, Any] | None:
    """Return the noise between runs, or null if no change had to be compared with it."""
    if found is None:
        return None
    return {
        "known_from": found.basis,
        "machine_may_have_changed_ns": found.machine_ns,
        "carried_by": found.carried_by,
        "doubt": found.doubt or None,
    }


def coverage_data(found: Coverage | None) -> dict[str, Any] | None:
    """Return what the causes explain of the gap, or null if it is not sure that there is one."""
    if found is None:
        return None
    return {
        "share_of_gap": found.share,
        "at_most": found.is_bound,
        "row_without_cause": found.row or None,
        "row_share_of_gap": found.row_share,
        "settings_that_can_affect_the_row": found.settings,
    }


def _facts(view: Explained) -> Iterator[Fact]:
    ledger, case = view.ledger, view.case
    for side, name, own, run in (
        (BASE, case.base_name, ledger.total.base, case.before.trace),
        (TARGET, case.target_name, ledger.total.target, case.after.trace),
    ):
        unit = sample_unit(run.manifest.config)
        speed, where = ledger_words.pace(ledger, own, run, unit)
        yield Fact("", side, speed, WORDS, f"{where}: {name}" if where else name)
    change = ledger.change
    label = "time per step and rank"
    if ledger.per_sample:
        label = f"time per {unit_of(case).removesuffix('s')} and rank"
    signed_share = Unit(partial(signed, show=percent))
    bounds = interval_words(change, percent)
    yield Fact("change_share", label, change, signed_share, bounds, folded=True)


def gates(judgements: Sequence[Judgement]) -> Iterator[Section]:
    columns = (
        Column("gate", "limit", lambda judged: str(judged.gate)),
        Column("", "outcome", lambda judged: f"{_MARKS[judged.outcome]} {judged.outcome.value}"),
        Column("outcome", None, lambda judged: judged.outcome),
        Column("why", "why", lambda judged: judged.why),
    )
    title = "Gate" * bool(judgements)
    yield Section(title, table=Table(columns, judgements), key="gates", kept=True)


# -- rows ------------------------------------------------------------------------------------------


def unit_of(case: Case) -> str:
    """Return the plural of what both sides train on, or `samples` if they name it differently."""
    units = {sample_unit(case.base.config), sample_unit(case.target.config)}
    return units.pop() if len(units) == 1 else "samples"


def rows_that_add_up(view: Explained) -> Section:
    """Return the rows in time per step of the base's batch, which is the same for both sides."""
    ledger = view.ledger
    notes = tuple(_notes_on_rows(view))
    table = ledger_words.row_table(ledger, ledger.rows, total=True)
    title = "Where the time goes"
    words = f"{title}, per {rows_unit(view)}"
    untimed, brief = tuple(ledger_words.untimed_notes(ledger)), None
    for most in range(FEWER_ROWS, MOST_ROWS + 1):
        brief = Section(words, untimed, table=rows_in_brief(ledger, most), brief=brief, kept=True)
    return Section(title, notes, waterfall(ledger), table, brief=brief, key="rows")


def rows_in_brief(ledger: Ledger, most: int = MOST_ROWS) -> Table:
    """Return the rows that changed most, the sum of all others, and the total."""
    by_size = sorted(ledger.rows, key=lambda row: -abs(row.delta.value))
    first = [row for row in by_size if ledger.verdict_of(row) is not Verdict.NEUTRAL][:most]
    first = first or by_size[:1]
    rows = list(map(partial(replace, inside=()), first))
    others = tuple(itertools.filterfalse(first.__contains__, ledger.rows))
    if others:
        sides = (sum(side) for side in zip(*map(_means, others), strict=True))
        base, target, difference = map(Estimate, sides)
        exact = sum((row.exact for row in others), Fraction())
        names = tuple(map(attrgetter("name"), others))
        title = plural(len(others), "other row")
        rows.append(Row(title, base, target, difference, exact, sums=names))
    return ledger_words.row_table(ledger, rows, total=True)


def _means(row: Row) -> tuple[float, float, float]:
    return row.base.value, row.target.value, row.delta.value


def waterfall(ledger: Ledger) -> tuple[tuple[str, Chart], ...]:
    """Return the chart from the base to the target, unless a side has no time."""
    factor = ledger.samples_per_step
    base, target = ledger.total.base.value, ledger.total.target.value
    if not (base > 0 and target > 0):
        return ()
    falls = tuple((row.name, scale(row.delta, factor)) for row in ledger.rows)
    return (("", Waterfall((BASE, base * factor), falls, (TARGET, target * factor))),)


def rows_unit(view: Explained) -> str:
    """Return what the times of the rows are for."""
    if not view.ledger.per_sample:
        return "step"
    samples = amount(view.ledger.samples_per_step)
    return f"{samples} {unit_of(view.case)} of a rank (a step of the base)"


def _notes_on_rows(view: Explained) -> Iterator[str]:
    """Yield what the rows are about, and what they leave out."""
    ledger, factor = view.ledger, view.ledger.samples_per_step
    unit = rows_unit(view)
    what = "Only exposed time counts, and the rows add up to the total."
    if is_log(view.case.base.config) or is_log(view.case.target.config):
        what = "The rows add up to the total."
        if ledger.find(DATA) is not None:
            what += " Input is the wait that the log states; it may pass while the device works."
    yield f"Time per {unit}. {what}"
    rare = [row.name for row in ledger.rows if not row.delta.judged]
    if ledger.total.delta.judged and rare:
        names = " and ".join(rare)
        yield f"There is no interval for {names}: too few lines of a log contain it."
    overlapped = []
    for row in ledger.beside:
        name = row.name
        if name == HIDDEN_EXCHANGE and "imported_from" in view.case.base.config:
            name = "communication under other work"
        overlapped.append(f"{name} {ledger_words.both_sides(row, factor)}")
    if overlapped:
        yield f"Overlapped, and not in the rows: {'; '.join(overlapped)}."
    if ledger.unsure_rows:
        yield (
            "A row is inconclusive, too, if the machine may change it as much from run to run: "
            "repeats tell ('profkit run --repeats 3')."
        )
    if words := ledger_words.switched_words(ledger):
        yield f"{words}."
    yield from ledger_words.clock_notes(ledger)


# -- causes and differences ------------------------------------------------------------------------


def causes(view: Explained) -> Section:
    is_gain = view.ledger.total.delta.value < 0
    ending = cause_words.coverage_words(view.coverage, is_gain=is_gain)
    table = Table(_CAUSES, view.causes)
    still_open = [cell_words.sentence(cell, view.cells.step) for cell in view.open_cells[:1]]
    if view.causes and still_open:
        ending = " ".join([ending, f"Besides: {still_open[0]}"]).strip()
    if not view.causes:
        words = " ".join(still_open) or cause_words.no_cause_words(view.ledger, view.coverage)
        return Section("Causes", (words,), ending=ending, table=table, key="causes", kept=True)
    found = []
    for cause in view.causes:
        cost = cause_words.cause_cost(cause, view.ledger)
        evidence = "; ".join(filter(None, (cause.evidence, cause_words.without_words(cause))))
        tone = Tone.GOOD if cause.is_gain else Tone.BAD
        name = cause_words.cause_name(cause)
        found.append(Cause(name, cost, evidence, cause.remedy, tone))
    notes = (cause_words.doubted_causes(view.ledger),) if view.ledger.doubt else ()
    brief = _causes_in_brief(view, 1, with_evidence=False)
    for most in range(1, MOST_CAUSES + 1):
        brief = replace(_causes_in_brief(view, most), brief=brief)
    brief = replace(brief, notes=notes)
    return Section("Causes", notes, (), table, tuple(found), ending, brief=brief, key="causes")


def _causes_in_brief(view: Explained, most: int, *, with_evidence: bool = True) -> Section:
    """Return the first causes with their costs: the first with what shows it and what to try."""
    found = []
    for place, cause in enumerate(view.causes[:most]):
        cost = cause_words.cause_cost(cause, view.ledger, is_short=True)
        evidence = remedy = ""
        if place == 0:
            remedy = cause.remedy
            if with_evidence and len(cause.evidence) <= LONGEST_EVIDENCE:
                evidence = cause.evidence
        found.append(Cause(cause_words.cause_name(cause), cost, evidence, remedy))
    ending = ""
    if (left := len(view.causes) - most) > 0:
        ending = f"{plural(left, 'more cause')}."
    return Section("Causes", causes=tuple(found), ending=ending, kept=True)


_CAUSES = (
    *data_columns("kind", "share_of_gap", "evidence", "remedy", "is_gain", cause="detail"),
    *data_columns(cost_ns_per_step="cost_ns", step_without_it_ns="without_ns"),
)


def differences(view: Explained, *, is_page: bool) -> Section:
    title, found = "Other differences", view.ledger.differences
    if not found:
        words = cause_words.no_difference_words(view.recorded)
        return Section(title, (words,), table=Table(DIFFERENCES, ()), key="differences")
    shown = found
    if not is_page:
        shown = found[:SCREEN_DIFFERENCES]
    notes = []
    if len(found) > len(shown):
        left = plural(len(found) - len(shown), "more difference")
        notes.append(f"The first {len(shown)}; {left} in --json.")
    elif all(each.rows in HARMLESS for each in found):
        notes.append(
            "None of these is known to affect a row, and nothing else that both recorded differs."
        )
    table = Table(DIFFERENCES, found, shown)
    return Section(title, tuple(notes), table=table, key="differences")


DIFFERENCES = (
    Column("name", "differs", lambda each: each.name, stretches=True),
    Column("base", BASE, lambda each: each.base),
    Column("target", TARGET, lambda each: each.target),
    Column("can_affect", "can affect", lambda each: each.rows),
)


def steps(ledger: Ledger, sides: Mapping[str, Illustrated]) -> Section:
    notes = (
        f"{BASE}: {ledger_words.steps_of(ledger.base)}",
        f"{TARGET}: {ledger_words.steps_of(ledger.target)}",
    )
    all_points: list[StepPoint] = []
    for illustrated in sides.values():
        all_points.extend(illustrated.points)
    charts = []
    for side, illustrated in sides.items():
        charts.append((side, strip(illustrated.points, all_points)))
    used = {BASE: steps_data(ledger.base), TARGET: steps_data(ledger.target)}
    return Section("Steps", notes, tuple(charts), brief=NAMED, key="steps", facts=used)


def steps_data(costs: RunCosts) -> dict[str, Any]:
    """Return the steps behind the rows, and what the excluded ones would add."""
    return {
        "used": costs.steps,
        "needed": costs.steps_needed,
        "apart": Table(APART, costs.apart),
        "ranks_without_device_times": costs.unclocked,
        "exchange_timed": costs.exchange_timed,
    }


APART = data_columns("reason", "steps", excess_ns_per_step_of_the_run="excess_ns")
