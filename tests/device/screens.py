"""The values of each screen for a run, as mean ns per step of a rank, by the names of `Truth`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from profkit.analysis.overview import build_overview
from profkit.analysis.timeline.lane_store import LAUNCHES
from profkit.analysis.timeline.lanes import Group
from profkit.analysis.timeline.timeline import Timeline
from profkit.explain.explained import explain, scale_runs
from profkit.frame.run_frame import frame_of
from profkit.trace import Trace
from profkit.tui.headless import twin
from tests.documents import gap_json, report_json, scaling_json

Values = Mapping[str, float]

MS = 1e6


def _named(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def report(run: Path) -> Values:
    """What `profkit report --json` prints."""
    found = report_json(build_overview(Trace.open(run), with_kernels=False))
    values = {each["phase"]: each["step_ms"]["value"] * MS for each in found["phases"]}
    return {"step": found["step_ms"]["value"] * MS, **_named(values)}


def exchange(run: Path) -> list[Values]:
    """The parts of each rank's exchange, in `profkit report --json`."""
    found = report_json(build_overview(Trace.open(run), with_kernels=False))["exchange"]
    rows: list[Values] = []
    for rank in found["rows"] if found else []:
        named = {name: rank[f"{name}_ms"] for name in ("exposed", "waiting", "transfer", "hidden")}
        rows.append({name: value * MS for name, value in named.items() if value is not None})
    return rows


def refusal(run: Path) -> str:
    """The notice that no device times are there, if phases are named as the host's launches."""
    found = report_json(build_overview(Trace.open(run), with_kernels=False))
    for notice in found["data_quality"]:
        if "device time" in notice and found.get("phases_clock") == "launch":
            return str(notice)
    return ""


def overview(run: Path) -> Values:
    """The first screen of the TUI."""
    found = twin(run, "overview")
    values = {each["name"]: each["ns_per_step"]["value"] for each in found["parts"]}
    return {"step": found["wall_ns_per_step"], **_named(values)}


def live(run: Path) -> Values:
    """The screen of a run that goes on: its latest steps."""
    found = twin(run, "live")
    values = {each["name"]: each["step_ns"] for each in found["parts"]}
    return {"step": found["step_ns"]["value"], **_named(values)}


def ranks(run: Path) -> list[Values]:
    """Each rank's own step."""
    found = twin(run, "ranks")
    rows: list[Values] = []
    for rank in found["ranks"]:
        rows.append({"step": rank["wall_ns"], **_named(rank["phase_ns"])})
    return rows


def ledger(base: Path, run: Path, samples: int) -> tuple[Values, dict[str, Any]]:
    """A run's side of the ledger, per step of so many samples; and the JSON of `explain`."""
    found = gap_json(explain(Trace.open(base), Trace.open(run)))
    values = {row["name"]: row["target_ns"]["value"] * samples for row in found["rows"]}
    return {"step": found["total"]["target_ns"]["value"] * samples, **_named(values)}, found


def scaling(base: Path, run: Path) -> dict[str, Any]:
    """The row of a run in the scaling table, behind its base."""
    found = scaling_json(scale_runs([Trace.open(base), Trace.open(run)]))
    row: dict[str, Any] = found["runs"][1]
    return row


def timeline(run: Path) -> list[Values]:
    """What each rank's row of phases covers of the steps that all screens use."""
    trace = Trace.open(run)
    used = frame_of(trace).basis.used
    opened = Timeline(trace)
    rows: list[Values] = []
    for rank in trace.ranks:
        steps = opened.steps(rank.rank)
        inside = np.isin(steps.number, used)
        begins, ends = steps.start_ns[inside], steps.end_ns[inside]
        covered: dict[str, float] = {"step": float((ends - begins).sum()) / len(used)}
        for lane in opened.lanes(rank.rank, Group.PHASES):
            if lane.label == LAUNCHES:
                continue  # the row says that these are no phases
            pieces = lane.level.pieces
            shift = opened.shift(rank.rank)
            for kind, name in enumerate(lane.level.kinds):
                own = pieces.kinds == kind
                starts, stops = pieces.starts[own] + shift, pieces.ends[own] + shift
                ns = 0
                for begin, end in zip(begins, ends, strict=True):
                    ns += int((np.clip(stops, begin, end) - np.clip(starts, begin, end)).sum())
                covered[name] = ns / len(used)
        rows.append(_named(covered))
    return rows


SINGLE: Mapping[str, Callable[[Path], Values]] = {
    "report": report,
    "overview": overview,
    "live": live,
}
