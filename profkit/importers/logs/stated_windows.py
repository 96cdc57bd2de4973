"""Gives windows between marks of MLPerf the times of the throughput that the log states."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from profkit.importers.logs.grammar import Found
from profkit.importers.logs.marks import Marks, Window
from profkit.importers.logs.text import Line

_SAME = 0.03
"""A stated throughput is that of a window if it gives its time up to this share."""
_SAME_MOMENT_S = 0.5


def use_statement(line: Line, found: Found, marks: Marks) -> None:
    """Give a window the time of the throughput that the log states at the same moment."""
    stated, at_s = found.memory.get("stated") or (None, 0.0)
    windows = marks.windows
    if not stated or not windows or found.memory.get("has_steps"):
        return
    known = found.memory["states_windows"] or len(windows) == 1
    if known and abs(windows[-1].end_s - at_s) < _SAME_MOMENT_S:
        for seconds, other_s in _fitting(stated, marks, windows[-1:]):
            _set_times(found, windows[-1], seconds, other_s)
            found.memory.update(stated=None, states_windows=True)
            return
    elif marks.stopped and not found.memory["states_windows"]:
        how = "of all cards, over the whole run"
        found.add_result(line.number, "throughput", stated, "samples/s", how)
        for seconds, other_s in _fitting(stated, marks, windows):
            whole = sum(each.seconds for each in windows)
            for place, each in enumerate(windows):
                share = each.seconds / whole
                _set_times(found, each, seconds * share, other_s * share, place)
        found.memory["stated"] = None


def _fitting(stated: float, marks: Marks, windows: list[Window]) -> Iterator[tuple[float, float]]:
    """Yield the time of these windows by a stated throughput, and the evaluations in it."""
    batch, local = (marks.counts.get(name) for name in ("global_batch_size", "local_batch_size"))
    trained = sum(each.samples for each in windows)
    clock_s = sum(each.seconds for each in windows)
    evaluation_s = windows[0].evaluation_s
    if len(windows) > 1:
        evaluation_s = marks.evaluation_s
    for cards in (1, batch / local if batch and local else 1):
        for other_s in (0.0, evaluation_s):
            seconds = trained / (stated * cards)
            if abs(seconds / (clock_s + other_s) - 1) < _SAME:
                yield seconds, (max(0.0, seconds - clock_s) if other_s else 0.0)
                return


def _set_times(
    found: Found, window: Window, seconds: float, other_s: float, place: int = -1
) -> None:
    index = found.memory["first"] + place if place >= 0 else -1
    record = found.records[index]
    per_step = (record.samples or 0.0) / window.samples
    found.records[index] = dataclasses.replace(
        record, step_s=seconds * per_step, other_s=other_s * per_step or None
    )
