"""The histories of a folder, or of a baseline, as a document and as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from profkit.analysis.run_series import Change
from profkit.analysis.views.history import Histories, History, PastRun, describe_setting
from profkit.explain.past import Past
from profkit.report.document import Document, Grid, RunsOverTime, Section, Tone
from profkit.report.history_chart import text_plot
from profkit.report.ledger_json import estimate
from profkit.report.words import NO_FIGURE, interval_words
from profkit.text import duration, percent, plural, safe_text

SHOWN_LEFT_OUT = 8
"""Runs without a figure that a screen names; all of them are in the JSON."""

HINT = "a history needs complete runs of one setting: 'profkit run' or 'profkit trace' make them"


def histories(found: Histories, place: str, *, is_page: bool = False) -> Document:
    """Return the histories, the one with the newest run first; a page has charts of its own."""
    sections = [section(each, is_page=is_page) for each in found.found]
    if found.left_out:
        lines = [(name, why) for name, why in found.left_out[:SHOWN_LEFT_OUT]]
        more = len(found.left_out) - len(lines)
        ending = f"and {plural(more, 'more run')}" if more else ""
        grid = Grid(("", ""), tuple(lines))
        sections.append(Section("Runs without a figure", grid=grid, ending=ending))
    verdict, tone, summary = "no history", Tone.UNSURE, HINT
    if found.found:
        verdict, tone = verdict_of(found.found[0])
        summary = words(found.found[0])[-1]
    return Document(
        title=f"History of {place}",
        subtitle=f"Time per sample and rank of the runs in {place}",
        verdict=verdict,
        tone=tone,
        summary=summary,
        figures=(),
        warnings=(),
        sections=tuple(sections),
    )


def verdict_of(history: History) -> tuple[str, Tone]:
    course = history.course
    if course.why_not:
        return "inconclusive", Tone.UNSURE
    if not course.changes:
        return "no change", Tone.PLAIN
    slower = course.changes[-1].share.value > 0
    return ("slower", Tone.BAD) if slower else ("faster", Tone.GOOD)


def words(history: History) -> list[str]:
    """Return what the history shows, oldest first; the last sentence is about the present."""
    course, runs = history.course, history.runs
    if course.why_not:
        return [f"{plural(len(runs), 'run')}: {course.why_not}"]
    if not course.changes:
        return [f"no change was found in {plural(len(runs), 'run')}: {usual_words(runs)}"]
    return [change_words(history, change) for change in course.changes]


def usual_words(runs: Sequence[PastRun]) -> str:
    """Return how much the runs differ, which says how small a change can be seen."""
    times = np.array([run.ns for run in runs])
    unit = "sample" if runs[-1].per_sample else "step"
    low, median, high = (duration(each, 3) for each in np.quantile(times, (0, 0.5, 1)))
    spread = percent(float(times.std(ddof=1) / times.mean()))
    return (
        f"a {unit} takes {low} to {high}, median {median} (standard deviation {spread} of the mean)"
    )


def change_words(history: History, change: Change) -> str:
    """Return a change with its first run, its size and its interval."""
    first, before = history.runs[change.at], history.runs[change.at - 1]
    commit = ""
    if first.commit:
        commit = f", commit {first.commit} after {before.commit or 'an unknown one'}"
    unit = "sample" if first.per_sample else "step"
    more = "more" if change.share.value > 0 else "less"
    size = percent(abs(change.share.value))
    interval = interval_words(change.share, percent)
    return (
        f"since {safe_text(first.name)} ({_date(first)}{commit}) a {unit} takes {size} {more} time "
        f"({interval})"
    )


def section(history: History, *, is_page: bool) -> Section:
    chart = chart_of(history)
    rows = []
    for run, plot in zip(history.runs, text_plot(chart), strict=True):
        time_of = duration(run.ns, 4)
        row = (_date(run), run.name, run.commit or NO_FIGURE, time_of)
        rows.append(row if is_page else (*row, plot))
    unit = "sample" if history.runs[-1].per_sample else "step"
    header = ("", "run", "commit", f"time per {unit}") + (() if is_page else ("",))
    grid = Grid(header, tuple(rows), frozenset({3}))
    sentences = [f"{sentence[0].upper()}{sentence[1:]}." for sentence in words(history)]
    title = describe_setting(history.setting)
    return Section(title, tuple(sentences), (("", chart),), grid)


def chart_of(history: History) -> RunsOverTime:
    """Return the runs with the level of each stretch between two changes."""
    edges = [0, *(change.at for change in history.course.changes), len(history.runs)]
    levels = []
    for number, first in enumerate(edges[:-1]):
        stretch = [run.ns for run in history.runs[first : edges[number + 1]]]
        levels.append((first, edges[number + 1], float(np.exp(np.log(stretch).mean()))))
    runs = tuple((run.name, run.ns) for run in history.runs)
    return RunsOverTime(runs, tuple(levels))


def _date(run: PastRun) -> str:
    if run.created_ns <= 0:
        return NO_FIGURE
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.created_ns / 1e9))


# -- a run against its baselines -------------------------------------------------------------------


def past_section(past: Past) -> Section:
    """Return how the target compares with the runs that were its baseline."""
    history = past.history
    target, runs = history.runs[-1], plural(len(history.runs) - 1, "earlier baseline")
    unit = "sample" if target.per_sample else "step"
    sentence = f"{runs} of this setting: inconclusive, {past.why_not}."
    if past.change is not None:
        change, more = past.change, "more" if past.change.value > 0 else "less"
        sure = ""
        if change.low is not None and change.high is not None and change.low <= 0 <= change.high:
            sure = "; runs differ by as much without a change"
        sentence = (
            f"Against {plural(past.level, 'run')} at the present level, a {unit} takes "
            f"{percent(abs(change.value))} {more} time ({interval_words(change, percent)}){sure}."
        )
    notes = [sentence]
    if history.course.changes:
        before = change_words(history, history.course.changes[-1])
        notes.append(f"The baseline itself changed: {before}.")
    return Section("Against all earlier baselines", tuple(notes))


# -- JSON ------------------------------------------------------------------------------------------


def as_json(found: Histories, place: str) -> dict[str, Any]:
    """Return what `profkit history --json` prints."""
    left_out = [{"run": name, "why": why} for name, why in found.left_out]
    made = [history_json(each) for each in found.found]
    return {"folder": place, "histories": made, "runs_left_out": left_out}


def history_json(history: History) -> dict[str, Any]:
    runs = []
    for run in history.runs:
        row = {"run": run.name, "created_ns": run.created_ns, "commit": run.commit or None}
        runs.append(row | {"ns_per_sample": run.ns, "per_sample": run.per_sample})
    return {
        "setting": list(history.setting),
        "runs": runs,
        "changes": changes_json(history),
        "level_since": history.runs[history.course.since].name,
        "why_not_judged": history.course.why_not or None,
    }


def changes_json(history: History) -> Sequence[dict[str, Any]]:
    rows = []
    for change in history.course.changes:
        first = history.runs[change.at]
        row = {"first_run": first.name, "commit": first.commit or None, "run_number": change.at}
        rows.append(row | {"change_share": estimate(change.share)})
    return rows


def past_json(past: Past) -> dict[str, Any]:
    """Return the target against its earlier baselines, which are the runs before the last one."""
    return {
        **history_json(past.history),
        "runs_at_level": past.level,
        "change_share": estimate(past.change) if past.change else None,
        "why_no_change": past.why_not or None,
    }
