"""Lines of the user's code: those of one run, and those that differ between two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from profkit.analysis.flames import Flame
from profkit.analysis.losses import TRAINS
from profkit.analysis.overview import Overview
from profkit.analysis.stack_samples import MOST_NAME_CHARS, Place
from profkit.analysis.stacks import FEWEST_SAMPLES, LEAST_SHARE, CodeView, HowSpent, PhaseLines
from profkit.analysis.views.code import CodeScreenView
from profkit.analysis.worker_lines import WorkerLines
from profkit.frame.device_times import PhaseClock
from profkit.frame.estimate import Estimate
from profkit.frame.phases import UNKNOWN
from profkit.show.document import (
    NAMED,
    Column,
    Document,
    Section,
    Table,
    Tone,
    data_columns,
    missing,
)
from profkit.show.figures import NS, SHARE, SIGNED_NS
from profkit.text import duration, percent, plural, shorten

if TYPE_CHECKING:  # a report of one run does not load what compares two
    from profkit.explain.explained import Explained

BASE, TARGET = "base", "target"

MOST_LINES = 5
"""Lines of a phase that are shown; all of them are in the JSON."""

MOST_FUNCTIONS = 3
"""Functions of a phase that are shown, if several of their lines have a part of the time."""

MOST_CHANGES = 12

MANY_UNSURE = 0.1
"""A larger share of samples that came too late to show their line is reported."""

LATE = (
    "came too late to show their line, which busy Python or a busy machine causes; the intervals "
    "of the lines allow for that."
)
AS_WHOLE = "So the function is compared as a whole."
SAMPLED = "Shares of samples of the training thread's stack, in the used steps."
HOST_TIMES = (
    "The times are the host's: the device may still compute what an earlier line has launched."
)


def _sampled(*clocks: PhaseClock) -> str:
    """Return what the figures are shares of; with a device, also that it works later."""
    if {PhaseClock.HOST}.issuperset(clocks):
        return SAMPLED
    return f"{SAMPLED} {HOST_TIMES}"


def code_sections(run: Overview) -> Iterator[Section]:
    """Yield the top lines of each phase with more than a few percent of the step."""
    view = run.code
    ranks = [
        {"rank": rank, "lines": Table(CHANGES, lines)} for rank, lines in run.rank_lines.items()
    ]
    yield Section(key="code_of_ranks", facts=ranks)
    yield Section(key="code", facts=code_facts(view), missing=view is None)
    if view is None:
        return
    notes = [_sampled(run.clock)]
    if view.folder:
        notes.append(f"Files are below {view.folder}")
    rows: list[_Shown] = []
    has_functions = False
    for part in view.phases:
        if part.step_share < LEAST_SHARE:
            continue
        if part.judged:
            rows.extend(_line_rows(part, view.folder))
            functions = _function_rows(part, view.folder)
            has_functions = has_functions or bool(functions)
            rows.extend(functions)
        else:
            seen = plural(part.samples, "sample")
            least = f"at least {FEWEST_SAMPLES} for an interval"
            notes.append(f"{part.phase}: {seen} only, so no line is named: {least}.")
    if has_functions:
        notes.append("The time of a whole function is that of its lines, which count here again.")
    if has_many_late(view):
        notes.append(f"{percent(view.unsure / view.samples, 0)} of the samples {LATE}")
    if view.lost:
        seen = plural(view.lost, "more sample")
        notes.append(f"{seen} had a stack that was not stored or cannot be read.")
    title = "Where in the code"
    brief = Section(title, table=_lines_table("phase", _rows_in_brief(view)))
    yield Section(title, tuple(notes), table=_lines_table("phase", rows), brief=brief)
    yield from _how_section(view)
    if run.rank_lines:
        yield _rank_section(run)


def _rows_in_brief(view: CodeView) -> list[_Shown]:
    """Return the lines that cost most, those that train nothing first."""
    rows: list[_Shown] = []
    for part in view.phases:
        if part.judged and part.step_share >= LEAST_SHARE:
            for line in part.lines[:MOST_LINES]:
                place = line.place.words(view.folder)
                rows.append(_Shown(part.phase, line.share, line.step_ns.value, place, line.how))
    rows.sort(key=lambda row: (row.label in TRAINS, -row.step_ns))
    return rows[:MOST_IN_BRIEF]


def has_many_late(view: CodeView) -> bool:
    """Return true if so many samples came late that the intervals are much wider."""
    return view.unsure > MANY_UNSURE * view.samples


class _Shown(NamedTuple):
    """A line for people; the label of its phase stands on the first one only."""

    label: str
    share: Estimate
    step_ns: float
    line: str
    how: str = ""


def _lines_table(first: str, rows: Sequence[_Shown]) -> Table:
    columns = [
        Column("", first, lambda row: row.label),
        Column("", "share", lambda row: row.share, SHARE, interval=True),
        Column("", "per step", lambda row: row.step_ns, NS),
        Column("", "line", lambda row: row.line),
    ]
    if any(row.how for row in rows):
        columns.append(Column("", "mostly", lambda row: row.how))
    return Table(columns, rows)


def _how_section(view: CodeView) -> Iterator[Section]:
    """Yield how the thread spent each phase: computing, waiting for a core, or blocked."""
    rows = []
    for part in view.phases:
        if part.how is not None and part.step_share >= LEAST_SHARE:
            rows.append((part.phase, part.how))
    if rows:
        yield Section(
            "How the training thread spends its phases",
            ("Shares of the samples, by what the kernel says of the thread.",),
            table=Table(HOW, rows),
            brief=NAMED,
        )


def _line_rows(part: PhaseLines | WorkerLines, folder: str) -> Iterator[_Shown]:
    shown = [line for line in part.lines if line.share.value >= LEAST_SHARE][:MOST_LINES]
    label = part.phase if isinstance(part, PhaseLines) else "workers"
    for line in shown:
        how = line.how if line.place.line else ""
        yield _Shown(label, line.share, line.step_ns.value, line.place.words(folder), how)
        label = ""
    left = len(part.lines) - len(shown)
    if left:
        rest = Estimate(1 - sum(line.share.value for line in shown))
        yield _Shown(label, rest, rest.value * part.step_ns, plural(left, "other line"))


def _function_rows(part: PhaseLines, folder: str) -> list[_Shown]:
    """Return the functions that take considerably longer than their longest line."""
    longest: dict[tuple[str, str], float] = {}
    for line in part.lines:
        longest.setdefault((line.place.file, line.place.function), line.share.value)
    rows = []
    for whole in part.functions:
        own = longest.get((whole.place.file, whole.place.function), 0.0)
        if whole.share.value - own >= LEAST_SHARE:
            place = whole.place.words(folder)
            rows.append(_Shown("", whole.share, whole.step_ns.value, place))
    return rows[:MOST_FUNCTIONS]


def _rank_section(run: Overview) -> Section:
    """Return the lines on which one rank certainly spends more or less time than the others."""
    rows = []
    for rank, changes in run.rank_lines.items():
        for place, change in enumerate(changes[:MOST_LINES]):
            rows.append(("" if place else str(rank), change))
    folder = run.code.folder if run.code else ""
    columns = (
        Column("", "rank", lambda row: row[0]),
        Column("", "phase", lambda row: row[1].phase),
        Column("", "per step", lambda row: row[1].target, NS),
        Column("", "others", lambda row: row[1].base, NS),
        Column("", "difference", lambda row: row[1].difference, SIGNED_NS, interval=True),
        Column("", "line", lambda row: row[1].place.words(folder)),
    )
    note = "Lines on which a rank certainly spends more or less time than the mean of the others."
    table = Table(columns, rows)
    return Section("Lines of single ranks", (note, _sampled(run.clock)), table=table)


# -- for programs ----------------------------------------------------------------------------------


def _of_place(read: Callable[[Place], Any]) -> Callable[[Any], Any]:
    return lambda each: read(each.place)


PLACE = (
    Column("file", None, _of_place(lambda place: place.file if place.line else None)),
    Column("line", None, _of_place(lambda place: place.line or None)),
    Column("function", None, _of_place(lambda place: place.function if place.line else None)),
    Column("calls", None, _of_place(lambda place: place.below)),
    Column("why_no_line", None, _of_place(lambda place: None if place.line else place.file)),
    Column("whole_function", None, _of_place(lambda place: place.lines or None)),
)
LINE_DATA = (*PLACE, *data_columns("share", "samples", "how", ns_per_step="step_ns"))

HOW = (
    Column("", "phase", lambda row: row[0]),
    Column("", "computing", lambda row: row[1].computing, SHARE),
    Column("", "waiting for a core", lambda row: row[1].no_core, SHARE),
    Column("", "blocked", lambda row: row[1].blocked, SHARE, interval=True),
    Column("", "mostly by", lambda row: row[1].mostly),
)

CHANGES = (
    Column("", "line", _of_place(lambda place: place.words()), stretches=True),
    Column("phase", "phase", lambda change: change.phase, role=str),
    Column("base_ns_per_step", BASE, lambda change: change.base, NS),
    Column("target_ns_per_step", TARGET, lambda change: change.target, NS),
    Column(
        "difference_ns_per_step", "difference", lambda change: change.difference, SIGNED_NS, True
    ),
    *PLACE,
    *data_columns(certain="is_sure"),
)
"""The lines of two runs, or of one rank, whose `base` is the mean of the other ranks."""


def code_facts(view: CodeView | None) -> dict[str, Any] | None:
    """Return all lines and functions of each phase."""
    if view is None:
        return None
    phases = (
        *data_columns("phase", "samples", ns_per_step="step_ns", share_of_step="step_share"),
        Column("how", None, lambda part: how_facts(part.how)),
        Column("samples_needed", None, lambda part: FEWEST_SAMPLES),
        Column("lines", None, lambda part: Table(LINE_DATA, part.lines if part.judged else ())),
        Column(
            "functions", None, lambda part: Table(LINE_DATA, part.functions if part.judged else ())
        ),
    )
    counts = {"samples": view.samples, "samples_lost": view.lost, "samples_late": view.unsure}
    return counts | {"phases": Table(phases, view.phases)}


def how_facts(how: HowSpent | None) -> dict[str, Any] | None:
    if how is None:
        return None
    shares = {"computing": how.computing, "core_wait": how.no_core, "blocked": how.blocked}
    return {f"{name}_share": share for name, share in shares.items()} | {"blocked_by": how.mostly}


def worker_facts(found: WorkerLines | None) -> dict[str, Any] | None:
    """Return all lines of the loader's workers."""
    if found is None:
        return None
    return {
        "workers": found.workers,
        "samples": found.samples,
        "samples_lost": found.lost,
        "samples_needed": FEWEST_SAMPLES,
        "ns_per_step": found.step_ns,
        "lines": Table(LINE_DATA, found.lines),
    }


MOST_IN_BRIEF = 3

_BOXES = (
    *data_columns("depth", "start", "share", own="is_own"),
    *PLACE,
)


def code_screen(view: CodeScreenView) -> Document:
    """Return the document of the screen of lines."""
    flames = (
        *data_columns("phase", "samples", ns_per_step="step_ns"),
        Column("boxes", None, lambda flame: Table(_BOXES, flame.boxes)),
    )
    columns = (
        Column("", "phase", lambda row: row.phase, role=str),
        Column("", "share", lambda row: row.line.share, SHARE, interval=True),
        Column("", "per step", lambda row: row.line.step_ns, NS),
        Column("", "line", lambda row: row.line.place.words(view.folder), stretches=True),
    )
    notes = tuple(_screen_notes(view))
    data = {
        "rank": view.rank,
        "why_empty": view.why_empty or None,
        "code": code_facts(view.code),
        "code_of_workers": worker_facts(view.workers),
        "flames": Table(flames, view.flames),
    }
    lines = Section("Where in the code", notes, table=Table(columns, view.rows))
    return Document("", "", "", Tone.PLAIN, "", sections=(lines,), data=data)


def _screen_notes(view: CodeScreenView) -> Iterator[str]:
    """Yield what was sampled, and where no line is named."""
    code, workers = view.code, view.workers
    words = [view.why_empty] if view.why_empty else []
    if code is not None:
        words.append(f"{plural(code.samples, 'sample')} of the training thread")
    if workers is not None:
        seen = plural(workers.samples, "sample")
        words.append(f"{seen} of {plural(workers.workers, 'loader worker')}")
    yield ", ".join(words)
    if view.folder:
        yield f"files are below {view.folder}"
    if code is not None and code.lost:
        yield f"{plural(code.lost, 'more sample')} had a stack that cannot be read"
    few = [f"{phase} ({seen:,})" for phase, seen in view.too_few]
    if few:
        needed = view.samples_needed
        yield f"fewer than {needed} samples, so no line is named: {', '.join(few)}"


# -- workers, flame graphs, and time between phases ------------------------------------------------


def worker_section(found: WorkerLines | None) -> Iterator[Section]:
    """Yield the lines that the loader's workers ran while the job trained."""
    yield Section(key="code_of_workers", facts=worker_facts(found), missing=found is None)
    if found is None:
        return
    whose = plural(found.workers, "worker")
    about = (
        f"Shares of samples of {whose}, in the used steps. Times are those of all workers of a "
        "rank per step. They overlap with the training."
    )
    notes = [about]
    if found.folder:
        notes.append(f"Files are below {found.folder}")
    if not found.judged:
        seen = plural(found.samples, "sample")
        notes.append(f"{seen} only, so no line is named: at least {FEWEST_SAMPLES} are needed.")
    if found.lost:
        seen = plural(found.lost, "more sample")
        notes.append(f"{seen} had a stack that was not stored or cannot be read.")
    table = _lines_table("in", list(_line_rows(found, found.folder)))
    yield Section("In the loader's workers", tuple(notes), table=table, brief=NAMED)


def flame_section(flames: Sequence[Flame]) -> Iterator[Section]:
    """Yield a flame graph for each phase, folded."""
    drawn = tuple((flame.phase, flame) for flame in flames if flame.boxes)
    if drawn:
        note = (
            "A box is as wide as the time in a line and in what it called; callers are above. "
            "Boxes of the job's own code are coloured. The title of a box has its whole name and "
            "its time."
        )
        yield Section("Flame graphs", (SAMPLED, note), drawn, folded=True)


def unknown_note(view: Overview) -> tuple[str, ...]:
    """Return where the time is that no phase covers, if it is a considerable part of the step."""
    places, step_ns = view.unknown_places, view.step_ns.value
    total = sum(place.step_ns for place in places)
    if not step_ns > 0 or total < LEAST_SHARE * step_ns:
        return ()
    parts = []
    for place in places:
        if place.step_ns >= LEAST_SHARE * total:
            parts.append(f"{duration(place.step_ns)} from {place.after} to {place.before}")
    words = f"{UNKNOWN} is between the phases"
    if view.clock is not PhaseClock.HOST:
        words = f"On the host, {duration(total)} are in no phase"
    note = f"{words}: {', '.join(parts)}."
    if view.code is None and "imported_from" not in view.config:
        note += " To see its lines, record with --lines on."
    return (note,)


# -- two runs --------------------------------------------------------------------------------------


def changed_lines(view: Explained) -> Iterator[Section]:
    """Yield the lines whose time certainly differs."""
    found = view.lines
    if found is None:
        yield from missing("lines")
        return
    sampled = _sampled(view.case.before.costs.clock, view.case.after.costs.clock)
    matched = "Lines are matched by file, number and function: an edit moves those below."
    notes = [f"{sampled} {matched}"]
    late = []
    for name, evidence in ((BASE, view.case.before), (TARGET, view.case.after)):
        if evidence.code is not None and has_many_late(evidence.code):
            late.append(f"the {name}")
    if late:
        notes.append(f"Many samples of {' and of '.join(late)} {LATE}")
    for phase, before, after in found.too_few:
        least = f"one run needs {FEWEST_SAMPLES}, the other {FEWEST_SAMPLES} in all phases"
        notes.append(f"{phase}: {before:,} and {plural(after, 'sample')} only: {least}.")
    if found.moved:
        names = shorten(", ".join({place.function: 1 for place in found.moved}), MOST_NAME_CHARS)
        notes.append(f"{names}: lines make up for each other, as after an edit. {AS_WHOLE}")
    sure = [change for change in found.lines if change.is_sure]
    if not sure:
        notes.append("No line's time certainly differs.")
    first, named, *figures = CHANGES[:5]
    yield Section(
        "Lines whose time differs",
        tuple(notes),
        table=Table((named, *figures, first, *CHANGES[5:]), found.lines, sure[:MOST_CHANGES]),
        key="lines",
    )
