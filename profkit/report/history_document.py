"""The histories of a folder, or of a baseline, as a document and as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from profkit.analysis.run_series import Change
from profkit.analysis.views.history import Histories, History, PastRun, describe_setting
from profkit.explain.past import Past
from profkit.show.document import (
    Column,
    Document,
    RunsOverTime,
    Section,
    Table,
    Tone,
    data_columns,
    labelled,
)
from profkit.show.figures import NO_FIGURE, Unit, interval_words
from profkit.show.history_chart import text_plot
from profkit.text import duration, percent, plural, safe_text

SHOWN_LEFT_OUT = 8
"""Runs without a figure that a screen names; all of them are in the JSON."""

_LEFT_OUT = (Column("run", None, itemgetter(0)), Column("why", None, itemgetter(1)))

HINT = "a history needs complete runs of one setting: 'profkit run' or 'profkit trace' make them"


def histories(found: Histories, place: str, *, is_page: bool = False) -> Document:
    """Return the histories, the one with the newest run first; a page has charts of its own."""
    sections = [section(each, is_page=is_page) for each in found.found]
    if found.left_out:
        lines = [(name, why) for name, why in found.left_out[:SHOWN_LEFT_OUT]]
        more = len(found.left_out) - len(lines)
        ending = f"and {plural(more, 'more run')}" if more else ""
        left_out = labelled(lines)
        sections.append(Section("Runs without a figure", table=left_out, ending=ending))
    verdict, tone, summary = "no history", Tone.UNSURE, HINT
    if found.found:
        verdict, tone = verdict_of(found.found[0])
        summary = words(found.found[0])[-1]
    data = {
        "folder": place,
        "histories": [history_data(each) for each in found.found],
        "runs_left_out": Table(_LEFT_OUT, found.left_out),
    }
    return Document(
        title=f"History of {place}",
        subtitle=f"Time per sample and rank of the runs in {place}",
        verdict=verdict,
        tone=tone,
        summary=summary,
        sections=tuple(sections),
        data=data,
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
    unit = "sample" if history.runs[-1].per_sample else "step"
    rows = list(zip(history.runs, text_plot(chart), strict=True))
    columns = (
        Column("", "", lambda row: _date(row[0])),
        Column("", "run", lambda row: row[0].name),
        Column("", "commit", lambda row: row[0].commit or None),
        Column("", f"time per {unit}", lambda row: row[0].ns, Unit(partial(duration, digits=4))),
        Column("", None if is_page else "", itemgetter(1)),
    )
    sentences = [f"{sentence[0].upper()}{sentence[1:]}." for sentence in words(history)]
    title = describe_setting(history.setting)
    return Section(title, tuple(sentences), (("", chart),), Table(columns, rows))


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
    facts = {
        **history_data(history),
        "runs_at_level": past.level,
        "change_share": past.change,
        "why_no_change": past.why_not or None,
    }
    return Section("Against all earlier baselines", tuple(notes), key="past", facts=facts)


# -- for programs ----------------------------------------------------------------------------------


_RUNS = (*data_columns("created_ns", "commit", "per_sample", run="name", ns_per_sample="ns"),)


def history_data(history: History) -> dict[str, Any]:
    changes = (
        Column("first_run", None, lambda change: history.runs[change.at].name),
        Column("commit", None, lambda change: history.runs[change.at].commit),
        *data_columns(run_number="at", change_share="share"),
    )
    return {
        "setting": history.setting,
        "runs": Table(_RUNS, history.runs),
        "changes": Table(changes, history.course.changes),
        "level_since": history.runs[history.course.since].name,
        "why_not_judged": history.course.why_not or None,
    }
