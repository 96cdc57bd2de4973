"""Two runs, or more, as a document."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from profkit.analysis.config_join import HARMLESS
from profkit.analysis.costs import HIDDEN_EXCHANGE, INPUT
from profkit.analysis.estimate import scale
from profkit.analysis.overview import build_overview
from profkit.analysis.views.pictures import StepPoint
from profkit.errors import UnreadableError
from profkit.explain.explained import Explained
from profkit.explain.gate import Judgement, Outcome
from profkit.explain.kernel_ledger import KernelLedger
from profkit.explain.ledger import Ledger
from profkit.explain.rules.base import Case
from profkit.report import cause_words, ledger_words
from profkit.report.code_sections import changed_lines
from profkit.report.document import (
    TONES,
    CauseTexts,
    Chart,
    Document,
    Grid,
    Section,
    Waterfall,
)
from profkit.report.log_words import is_log, sample_unit
from profkit.report.overview_document import Illustrated, illustrate, quality, ranks_section, strip
from profkit.report.sharded_sections import exchange_places
from profkit.report.words import interval_words, level_words
from profkit.text import amount, percent, plural, signed
from profkit.trace import Trace

BASE, TARGET = "base", "target"
PAGE_KERNELS, SCREEN_KERNELS = 20, 5
"""Kernels of a phase that a page and a screen show; all of them are in the JSON."""

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
        *changed_lines(view, BASE, TARGET),
        *kernels(view, is_page=is_page),
        *exchange_places(view.exchange, view.ledger),
        causes(view),
        differences(view, is_page=is_page),
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
        subtitle="Why the two runs differ",
        verdict=ledger_words.verdict_name(ledger.verdict),
        tone=TONES[ledger.verdict],
        summary=ledger_words.verdict_words(ledger, unit_of(case)),
        figures=tuple(_figures(view)),
        warnings=view.caveats,
        sections=tuple(sections),
        copied=tuple(copied),
    )


def _figures(view: Explained) -> Iterator[tuple[str, str, str]]:
    ledger, case = view.ledger, view.case
    for side, name, own, run in (
        (BASE, case.base_name, ledger.total.base, case.before.trace),
        (TARGET, case.target_name, ledger.total.target, case.after.trace),
    ):
        unit = sample_unit(run.manifest.config)
        speed, where = ledger_words.pace(ledger, own, run, unit)
        yield side, speed, f"{where}: {name}" if where else name
    change = ledger.change
    label = "time per step and rank"
    if ledger.per_sample:
        label = f"time per {unit_of(case).removesuffix('s')} and rank"
    yield label, signed(change.value, percent), interval_words(change, percent)


def gates(judgements: Sequence[Judgement]) -> Iterator[Section]:
    rows = []
    for judged in judgements:
        outcome = f"{_MARKS[judged.outcome]} {judged.outcome.value}"
        rows.append((str(judged.gate), outcome, judged.why))
    if rows:
        yield Section("Gate", grid=Grid(("limit", "outcome", "why"), tuple(rows)))


# -- rows ------------------------------------------------------------------------------------------


def unit_of(case: Case) -> str:
    """Return the plural of what both sides train on, or `samples` if they name it differently."""
    units = {sample_unit(case.base.config), sample_unit(case.target.config)}
    return units.pop() if len(units) == 1 else "samples"


def rows_that_add_up(view: Explained) -> Section:
    """Return the rows in time per step of the base's batch, which is the same for both sides."""
    ledger = view.ledger
    factor = ledger.samples_per_step
    cells = []
    named = []
    for row in ledger.rows:
        named.append((row.name, row))
        for part in row.inside:
            named.append((f"{row.name} › {part.name}", part))
    for name, row in [*named, ("total", ledger.total)]:
        cells.append(tuple(ledger_words.row_cells(ledger, row, name, factor)))
    header = ("", BASE, TARGET, "difference", level_words(ledger.total.delta.level), "verdict")
    grid = Grid(header, tuple(cells), frozenset({1, 2, 3, 4}), total=True)
    notes = tuple(_notes_on_rows(view))
    charts: list[tuple[str, Chart]] = []
    base, target = ledger.total.base.value, ledger.total.target.value
    if base > 0 and target > 0:
        falls = tuple((row.name, scale(row.delta, factor)) for row in ledger.rows)
        charts.append(("", Waterfall((BASE, base * factor), falls, (TARGET, target * factor))))
    return Section("Where the time goes", notes, tuple(charts), grid)


def _notes_on_rows(view: Explained) -> Iterator[str]:
    """Yield what the rows are about, and what they leave out."""
    ledger, factor = view.ledger, view.ledger.samples_per_step
    unit = "step"
    if ledger.per_sample:
        unit = f"{amount(factor)} {unit_of(view.case)} of a rank (a step of the base)"
    what = "Only exposed time counts, and the rows add up to the total."
    if is_log(view.case.base.config) or is_log(view.case.target.config):
        what = "The rows add up to the total."
        if ledger.find(INPUT) is not None:
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


# -- kernels ---------------------------------------------------------------------------------------


def kernels(view: Explained, *, is_page: bool) -> Iterator[Section]:
    """Yield the phases in the captured steps, then the kernels of each that changed most."""
    found = view.kernels
    if found is None:
        return
    captured = (
        f"{found.noun.capitalize()}s in the captured steps ({found.base_steps:,} and "
        f"{found.target_steps:,} of all ranks)"
    )
    if "imported_from" not in view.case.base.config:
        captured += ", which are slower than others"
    notes = (f"{captured}.", *ledger_words.kernel_words(found, view.ledger))
    rows = []
    for phase in found.phases:
        rows.append((phase, *ledger_words.kernel_cells(found.of_phase(phase))))
    yield Section(f"{found.noun.capitalize()}s", notes, grid=_kernel_grid(rows))
    for phase in found.phases:
        yield from phase_kernels(found, view.ledger, phase, is_page=is_page)


def phase_kernels(
    found: KernelLedger, ledger: Ledger, phase: str, *, is_page: bool
) -> Iterator[Section]:
    most = SCREEN_KERNELS
    if is_page:
        most = PAGE_KERNELS
    shown, others = ledger_words.kernels_to_show(found.of_phase(phase), ledger, most)
    rows = []
    for row in shown:
        rows.append((row.name, *ledger_words.kernel_cells([row])))
    if others:
        label = f"{plural(len(others), 'other row')}, in --json"
        rows.append((label, *ledger_words.kernel_cells(others)))
    if shown:
        title = f"{phase}: {plural(len(shown), found.noun)} that changed"
        yield Section(title, grid=_kernel_grid(rows), folded=is_page)


def _kernel_grid(rows: Sequence[tuple[str, ...]]) -> Grid:
    header = ("", BASE, TARGET, "difference", "calls")
    return Grid(header, tuple(rows), frozenset({1, 2, 3, 4}))


# -- causes and differences ------------------------------------------------------------------------


def causes(view: Explained) -> Section:
    is_gain = view.ledger.total.delta.value < 0
    ending = cause_words.coverage_words(view.coverage, is_gain=is_gain)
    if not view.causes:
        words = cause_words.no_cause_words(view.ledger, view.coverage)
        return Section("Causes", (words,), ending=ending)
    found = []
    for cause in view.causes:
        cost = cause_words.cause_cost(cause, view.ledger)
        evidence = "; ".join(filter(None, (cause.evidence, cause_words.without_words(cause))))
        found.append(CauseTexts(cause_words.cause_name(cause), cost, evidence, cause.remedy))
    notes = (cause_words.doubted_causes(view.ledger),) if view.ledger.doubt else ()
    return Section("Causes", notes, causes=tuple(found), ending=ending)


def differences(view: Explained, *, is_page: bool) -> Section:
    title, found = "Other differences", view.ledger.differences
    if not found:
        return Section(title, (cause_words.no_difference_words(view.recorded),))
    shown = found
    if not is_page:
        shown = found[:SCREEN_DIFFERENCES]
    rows = []
    for each in shown:
        rows.append((each.name, each.base, each.target, each.rows))
    notes = []
    if len(found) > len(shown):
        left = plural(len(found) - len(shown), "more difference")
        notes.append(f"The first {len(shown)}; {left} in --json.")
    elif all(each.rows in HARMLESS for each in found):
        notes.append(
            "None of these is known to affect a row, and nothing else that both recorded differs."
        )
    grid = Grid(("differs", BASE, TARGET, "can affect"), tuple(rows))
    return Section(title, tuple(notes), grid=grid)


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
    return Section("Steps", notes, tuple(charts))
