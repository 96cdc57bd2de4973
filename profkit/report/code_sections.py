"""Lines of the user's code: those of one run, and those that differ between two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from profkit.analysis.device_times import PhaseClock
from profkit.analysis.flames import Flame
from profkit.analysis.overview import Overview
from profkit.analysis.phases import UNKNOWN
from profkit.analysis.stack_samples import MOST_NAME_CHARS
from profkit.analysis.stacks import FEWEST_SAMPLES, LEAST_SHARE, CodeView, PhaseLines
from profkit.analysis.worker_lines import WorkerLines
from profkit.report.document import Grid, Section
from profkit.report.words import interval_range, share_range
from profkit.text import duration, percent, plural, shorten, signed

if TYPE_CHECKING:  # a report of one run does not load what compares two
    from profkit.explain.explained import Explained

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
    if view is None:
        return
    notes = [_sampled(run.clock)]
    if view.folder:
        notes.append(f"Files are below {view.folder}")
    rows: list[tuple[str, ...]] = []
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
    yield Section("Where in the code", tuple(notes), grid=_lines_grid("phase", rows))
    if run.rank_lines:
        yield _rank_section(run)


def has_many_late(view: CodeView) -> bool:
    """Return true if so many samples came late that the intervals are much wider."""
    return view.unsure > MANY_UNSURE * view.samples


def _lines_grid(first: str, rows: Sequence[tuple[str, ...]]) -> Grid | None:
    header = (first, "share", "95 % interval", "per step", "line")
    return Grid(header, tuple(rows), frozenset({1, 2, 3})) if rows else None


def _line_rows(part: PhaseLines | WorkerLines, folder: str) -> Iterator[tuple[str, ...]]:
    shown = [line for line in part.lines if line.share.value >= LEAST_SHARE][:MOST_LINES]
    label = part.phase if isinstance(part, PhaseLines) else "workers"
    for line in shown:
        share, bounds = percent(line.share.value), share_range(line.share)
        yield label, share, bounds, duration(line.step_ns.value), line.place.words(folder)
        label = ""
    left = len(part.lines) - len(shown)
    if left:
        rest = 1 - sum(line.share.value for line in shown)
        yield label, percent(rest), "", duration(rest * part.step_ns), plural(left, "other line")


def _function_rows(part: PhaseLines, folder: str) -> list[tuple[str, ...]]:
    """Return the functions that take considerably longer than their longest line."""
    longest: dict[tuple[str, str], float] = {}
    for line in part.lines:
        longest.setdefault((line.place.file, line.place.function), line.share.value)
    rows: list[tuple[str, ...]] = []
    for whole in part.functions:
        share = whole.share.value
        if share - longest.get((whole.place.file, whole.place.function), 0.0) >= LEAST_SHARE:
            figures = percent(share), share_range(whole.share), duration(whole.step_ns.value)
            rows.append(("", *figures, whole.place.words(folder)))
    return rows[:MOST_FUNCTIONS]


def _rank_section(run: Overview) -> Section:
    """Return the lines on which one rank certainly spends more or less time than the others."""
    rows = []
    for rank, changes in run.rank_lines.items():
        label = str(rank)
        for change in changes[:MOST_LINES]:
            figures = duration(change.target.value), duration(change.base.value)
            difference = signed(change.difference.value)
            bounds = interval_range(change.difference, duration)
            place = change.place.words(run.code.folder if run.code else "")
            rows.append((label, change.phase, *figures, difference, bounds, place))
            label = ""
    header = ("rank", "phase", "per step", "others", "difference", "95 % interval", "line")
    note = "Lines on which a rank certainly spends more or less time than the mean of the others."
    grid = Grid(header, tuple(rows), frozenset({2, 3, 4, 5}))
    return Section("Lines of single ranks", (note, _sampled(run.clock)), grid=grid)


def worker_section(found: WorkerLines | None) -> Iterator[Section]:
    """Yield the lines that the loader's workers ran while the job trained."""
    if found is None:
        return
    whose = plural(found.workers, "worker")
    about = (
        f"Shares of samples of {whose}, in the used steps. Times are those of all workers of a "
        "rank per step. They overlap with the training."
    )
    cost = f"The sampler used {percent(found.sampler_share)} of a processor in each worker."
    notes = [about, cost]
    if found.folder:
        notes.append(f"Files are below {found.folder}")
    if not found.judged:
        seen = plural(found.samples, "sample")
        notes.append(f"{seen} only, so no line is named: at least {FEWEST_SAMPLES} are needed.")
    if found.lost:
        seen = plural(found.lost, "more sample")
        notes.append(f"{seen} had a stack that was not stored or cannot be read.")
    grid = _lines_grid("in", list(_line_rows(found, found.folder)))
    yield Section("In the loader's workers", tuple(notes), grid=grid)


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
        note += " To see its lines, record with --stacks loop."
    return (note,)


# -- two runs --------------------------------------------------------------------------------------


def changed_lines(view: Explained, base: str, target: str) -> Iterator[Section]:
    """Yield the lines whose time certainly differs."""
    found = view.lines
    if found is None:
        return
    sampled = _sampled(view.case.before.costs.clock, view.case.after.costs.clock)
    matched = "Lines are matched by file, number and function: an edit moves those below."
    notes = [f"{sampled} {matched}"]
    late = []
    for name, evidence in ((base, view.case.before), (target, view.case.after)):
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
    rows = []
    for change in sure[:MOST_CHANGES]:
        figures = duration(change.base.value), duration(change.target.value)
        difference = signed(change.difference.value)
        bounds = interval_range(change.difference, duration)
        rows.append((change.phase, *figures, difference, bounds, change.place.words()))
    header = ("phase", base, target, "difference", "95 % interval", "line")
    grid = Grid(header, tuple(rows), frozenset({1, 2, 3, 4})) if rows else None
    yield Section("Lines whose time differs", tuple(notes), grid=grid)
