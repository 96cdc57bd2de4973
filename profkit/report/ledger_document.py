"""Two runs, or more, as a document."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from profkit.analysis.estimate import scale
from profkit.analysis.overview import build_overview
from profkit.errors import UnreadableError
from profkit.explain.explained import Explained
from profkit.explain.gate import Judgement, Outcome
from profkit.explain.kernel_ledger import KernelLedger
from profkit.explain.ledger import Ledger, Row
from profkit.explain.scaling import ScalingRow
from profkit.report import ledger_text
from profkit.report.document import TONES, Cause, Chart, Document, Grid, Section, Tone, Waterfall
from profkit.report.overview_document import Illustrated, illustrate, quality, ranks_section, strip
from profkit.text import amount, duration, percent, plural
from profkit.trace import Trace

TARGET = "target"
MOST_KERNELS = 20
"""Rows of a phase's kernels on a page, where a reader opens it; all are in the JSON."""


def illustrate_sides(base: Trace, target: Trace) -> dict[str, Illustrated]:
    """Each side's own figures; a run without a step has none."""
    found = {}
    for side, trace in (("base", base), (TARGET, target)):
        with contextlib.suppress(UnreadableError):
            found[side] = illustrate(trace, build_overview(trace))
    return found


def explained(
    view: Explained, judgements: Sequence[Judgement], sides: Mapping[str, Illustrated]
) -> Document:
    """`sides` are the runs' own figures, by `base` and `target`; one without a step is not in it."""
    ledger = view.ledger
    return Document(
        title=f"{view.case.base_name} → {view.case.target_name}",
        subtitle="Why the two runs differ",
        verdict=ledger.verdict.value,
        tone=TONES[ledger.verdict],
        summary=ledger_text.verdict_words(ledger),
        figures=tuple(_figures(view)),
        warnings=view.caveats,
        sections=tuple(_sections(view, judgements, sides)),
    )


def _figures(view: Explained) -> Iterator[tuple[str, str, str]]:
    ledger, case = view.ledger, view.case
    for side, name, own, run in (
        ("base", case.base_name, ledger.total.base, case.base),
        (TARGET, case.target_name, ledger.total.target, case.target),
    ):
        speed, _, where = ledger_text.pace(ledger, own, run.world_size).partition(" on ")
        yield side, speed, f"{where}: {name}" if where else name
    change = ledger.change
    interval = (
        ""
        if change.low is None or change.high is None
        else f"95 % interval {percent(change.low)} to {percent(change.high)}"
    )
    yield (
        "time per " + ("sample and rank" if ledger.per_sample else "step and rank"),
        ("+" if change.value > 0 else "") + percent(change.value),
        interval,
    )


def _sections(
    view: Explained, judgements: Sequence[Judgement], sides: Mapping[str, Illustrated]
) -> Iterator[Section]:
    yield from _gates(judgements)
    yield _rows(view.ledger)
    if view.kernels:
        yield from _kernels(view.kernels, view.ledger)
    yield _causes(view)
    yield _differences(view.ledger)
    yield _steps(view.ledger, sides)
    if TARGET in sides:
        yield from ranks_section(sides[TARGET], "Ranks of the target")
    if sides:
        yield quality(tuple((side, each.view) for side, each in sides.items()))


def _gates(judgements: Sequence[Judgement]) -> Iterator[Section]:
    if judgements:
        marks = {Outcome.PASSED: "✓ ", Outcome.FAILED: "✗ ", Outcome.NOT_JUDGED: "? "}
        rows = tuple(
            (str(each.gate), marks[each.outcome] + each.outcome.value, each.why)
            for each in judgements
        )
        yield Section("Gate", grid=Grid(("limit", "outcome", "why"), rows))


def _rows(ledger: Ledger) -> Section:
    """In time of a step of the base's batch, as the text has it."""
    factor = ledger.samples_per_step
    unit = (
        f"per {amount(factor)} samples of a rank (a step of the base)"
        if ledger.per_sample
        else "a step"
    )
    cells = [
        tuple(ledger_text.row_cells(ledger, row, name, factor)) for row, name in _named(ledger)
    ]
    beside = "; ".join(
        f"{row.name} {duration(row.base.value * factor)} and {duration(row.target.value * factor)}"
        for row in ledger.beside
    )
    switched = ledger_text.switched_words(ledger)
    notes = (
        f"Time {unit}. Only exposed time counts, and the rows add up to the total.",
        *([f"Overlapped, and not in the rows: {beside}."] if beside else []),
        *([f"{switched}."] if switched else []),
    )
    grid = Grid(
        ("", "base", TARGET, "difference", "95 % interval", ""),
        tuple(cells),
        frozenset({1, 2, 3, 4}),
        total=True,
    )
    return Section("Where the time goes", notes, _waterfall(ledger, factor), grid)


def _named(ledger: Ledger) -> Iterator[tuple[Row, str]]:
    for row in ledger.rows:
        yield row, row.name
        for part in row.inside:
            yield part, f"{row.name} › {part.name}"
    yield ledger.total, "total"


def _kernels(found: KernelLedger, ledger: Ledger) -> Iterator[Section]:
    """The phases as the captured steps show them, and each of them opened into its operators."""
    header, right = ("", "base", TARGET, "difference", "calls"), frozenset({1, 2, 3, 4})
    whole = tuple(
        (phase, *ledger_text.kernel_cells(found.of_phase(phase))) for phase in found.phases
    )
    notes = (
        ledger_text.kernels_title(found).capitalize() + ".",
        *(f"{words[0].upper()}{words[1:]}." for words in ledger_text.kernel_words(found, ledger)),
    )
    yield Section(f"{found.noun.capitalize()}s", notes, grid=Grid(header, whole, right))
    for phase in found.phases:
        shown, hidden = ledger_text.kernels_to_show(found.of_phase(phase), ledger, MOST_KERNELS)
        rows = [(row.name, *ledger_text.kernel_cells([row])) for row in shown]
        rest = (
            [(ledger_text.other_kernels(hidden), *ledger_text.kernel_cells(hidden))]
            if hidden
            else []
        )
        if shown:
            yield Section(
                f"{phase}: {plural(len(shown), found.noun)} that changed",
                grid=Grid(header, (*rows, *rest), right),
                folded=True,
            )


def _waterfall(ledger: Ledger, factor: float) -> tuple[tuple[str, Chart], ...]:
    total = ledger.total
    if not (total.base.value > 0 and total.target.value > 0):
        return ()
    rows = tuple((row.name, scale(row.delta, factor)) for row in ledger.rows)
    return (
        (
            "",
            Waterfall(
                ("base", total.base.value * factor), rows, (TARGET, total.target.value * factor)
            ),
        ),
    )


def _causes(view: Explained) -> Section:
    causes = tuple(
        Cause(each.kind, ledger_text.finding_cost(each), each.evidence, each.remedy)
        for each in view.findings
    )
    return Section(
        "Causes", () if causes else ("No cause stands out of the noise.",), causes=causes
    )


def _differences(ledger: Ledger) -> Section:
    if not ledger.differences:
        return Section(
            "What else differs",
            ("Nothing else differs: every recorded knob, version and variable is the same.",),
        )
    rows = tuple((each.name, each.base, each.target, each.rows) for each in ledger.differences)
    return Section("What else differs", grid=Grid(("differs", "base", TARGET, "can affect"), rows))


def _steps(ledger: Ledger, sides: Mapping[str, Illustrated]) -> Section:
    notes = tuple(
        f"{side}: {ledger_text.steps_of(costs)}"
        for side, costs in (("base", ledger.base), (TARGET, ledger.target))
    )
    all_points = tuple(point for each in sides.values() for point in each.points)
    return Section(
        "Steps",
        notes,
        tuple((side, strip(each.points, all_points)) for side, each in sides.items()),
    )


def scaling(rows: Sequence[ScalingRow]) -> Document:
    last = rows[-1]
    return Document(
        title=" → ".join(row.name for row in rows),
        subtitle="How the job scales",
        verdict=f"efficiency {percent(last.efficiency.value)} on {plural(last.gpus, 'rank')}",
        tone=Tone.PLAIN,
        summary="",
        figures=(),
        warnings=(),
        sections=(Section("Scaling", verbatim=ledger_text.scaling(rows)),),
    )
