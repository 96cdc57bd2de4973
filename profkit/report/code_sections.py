"""Lines of the user's code: those of one run, and those that differ between two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from profkit.analysis.device_times import PhaseClock
from profkit.analysis.flames import Flame
from profkit.analysis.line_changes import LineChange, LineChanges
from profkit.analysis.overview import Overview
from profkit.analysis.phases import UNKNOWN
from profkit.analysis.stack_samples import MOST_NAME_CHARS, Place
from profkit.analysis.stacks import FEWEST_SAMPLES, LEAST_SHARE, CodeView, LineTime, PhaseLines
from profkit.analysis.unknown_places import UnknownPlace
from profkit.analysis.views.code import CodeScreenView
from profkit.analysis.worker_lines import WorkerLines
from profkit.report import view_json
from profkit.report.document import Grid, Section
from profkit.report.words import interval_range, share_range
from profkit.text import duration, percent, plural, shorten, signed

if TYPE_CHECKING:  # a report of one run does not load what compares two
    from profkit.explain.explained import Explained

MOST_LINES = 5
"""Lines of a phase that are shown; all of them are in the JSON."""

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
    for part in view.phases:
        if part.step_share < LEAST_SHARE:
            continue
        if part.judged:
            rows.extend(_line_rows(part, view.folder))
        else:
            seen = plural(part.samples, "sample")
            least = f"at least {FEWEST_SAMPLES} for an interval"
            notes.append(f"{part.phase}: {seen} only, so no line is named: {least}.")
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


# -- JSON ------------------------------------------------------------------------------------------


def code_json(view: CodeView | None) -> dict[str, Any] | None:
    if view is None:
        return None
    phases = []
    for part in view.phases:
        row = {"phase": part.phase, "ns_per_step": part.step_ns, "share_of_step": part.step_share}
        row |= {"samples": part.samples, "samples_needed": FEWEST_SAMPLES}
        phases.append(row | {"lines": list(map(_line_json, part.lines if part.judged else ()))})
    counts = {"samples": view.samples, "samples_lost": view.lost, "samples_late": view.unsure}
    return counts | {"phases": phases}


def _line_json(line: LineTime) -> dict[str, Any]:
    figures = {"share": view_json.of(line.share), "ns_per_step": view_json.of(line.step_ns)}
    return {**_place_json(line.place), **figures, "samples": line.samples}


def _place_json(place: Place) -> dict[str, Any]:
    known = {"file": place.file, "line": place.line, "function": place.function}
    if not place.line:
        known = {"file": None, "line": None, "function": None}
    no_line = None if place.line else place.file
    whole = list(place.lines) if place.lines else None
    return known | {"calls": place.below or None, "why_no_line": no_line, "whole_function": whole}


def workers_json(found: WorkerLines | None) -> dict[str, Any] | None:
    """Return the lines of loader workers; `None` if they were not sampled."""
    if found is None:
        return None
    figures = {"workers": found.workers, "samples": found.samples, "samples_lost": found.lost}
    figures |= {"samples_needed": FEWEST_SAMPLES}
    times = {"ns_per_step": found.step_ns, "sampler_processor_share": found.sampler_share}
    return {**figures, **times, "lines": list(map(_line_json, found.lines))}


def screen_json(view: CodeScreenView) -> dict[str, Any]:
    """Return the JSON of the terminal interface's screen of lines."""
    flames = []
    for flame in view.flames:
        boxes = []
        for box in flame.boxes:
            place = {**_place_json(box.place), "own": box.is_own}
            boxes.append({"depth": box.depth, "start": box.start, "share": box.share, **place})
        figures = {"ns_per_step": flame.step_ns, "samples": flame.samples}
        flames.append({"phase": flame.phase, **figures, "boxes": boxes})
    return {
        "rank": view.rank,
        "why_empty": view.why_empty or None,
        "code": code_json(view.code),
        "code_of_workers": workers_json(view.workers),
        "flames": flames,
    }


def ranks_json(found: Mapping[int, Sequence[LineChange]]) -> list[dict[str, Any]]:
    """Return the lines of single ranks; `base` is the mean of the other ranks."""
    ranks = []
    for rank, changes in found.items():
        ranks.append({"rank": rank, "lines": list(map(_change_json, changes))})
    return ranks


def changes_json(found: LineChanges | None) -> list[dict[str, Any]] | None:
    if found is None:
        return None
    return [_change_json(change) for change in found.lines]


def _change_json(change: LineChange) -> dict[str, Any]:
    return {
        "phase": change.phase,
        **_place_json(change.place),
        "base_ns_per_step": view_json.of(change.base),
        "target_ns_per_step": view_json.of(change.target),
        "difference_ns_per_step": view_json.of(change.difference),
        "certain": change.is_sure,
    }


def unknown_json(places: Sequence[UnknownPlace]) -> list[dict[str, Any]]:
    return [
        {"after": place.after, "before": place.before, "ns_per_step": place.step_ns}
        for place in places
    ]
