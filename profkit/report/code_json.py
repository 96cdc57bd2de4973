"""The JSON of lines of the user's code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from profkit.analysis.line_changes import LineChange, LineChanges
from profkit.analysis.stack_samples import Place
from profkit.analysis.stacks import FEWEST_SAMPLES, CodeView, LineTime
from profkit.analysis.unknown_places import UnknownPlace
from profkit.analysis.views.code import CodeScreenView
from profkit.analysis.worker_lines import WorkerLines
from profkit.report import view_json


def code_json(view: CodeView | None) -> dict[str, Any] | None:
    if view is None:
        return None
    phases = []
    for part in view.phases:
        row = {"phase": part.phase, "ns_per_step": part.step_ns, "share_of_step": part.step_share}
        row |= {"samples": part.samples, "samples_needed": FEWEST_SAMPLES}
        row["lines"] = list(map(_line_json, part.lines if part.judged else ()))
        row["functions"] = list(map(_line_json, part.functions if part.judged else ()))
        phases.append(row)
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
