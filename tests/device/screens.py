"""The values of each screen for a run, as mean ns per step of a rank, by the names of `Truth`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from profkit.analysis.overview import build_overview
from profkit.explain.explained import explain, scale_runs
from profkit.report import as_json, ledger_json
from profkit.trace import Trace
from profkit.tui.headless import twin

Values = Mapping[str, float]

_NAMES = {"data": "input"}
MS = 1e6


def _named(values: Mapping[str, float | None]) -> dict[str, float]:
    named: dict[str, float] = {}
    for name, value in values.items():
        if value is not None:
            key = _NAMES.get(name, name)
            named[key] = named.get(key, 0.0) + value
    return named


def report(run: Path) -> Values:
    """What `profkit report --json` prints."""
    found = as_json.overview(build_overview(Trace.open(run), with_kernels=False))
    values = {each["phase"]: each["step_ms"]["value"] * MS for each in found["phases"]}
    return {"step": found["step_ms"]["value"] * MS, **_named(values)}


def quality(run: Path) -> list[str]:
    """The notices on the quality of a run's data, which every report prints."""
    found = as_json.overview(build_overview(Trace.open(run), with_kernels=False))
    return [*found["data_quality"], *found["flags"]]


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
    rows = []
    for rank in found["ranks"]:
        rows.append({"step": rank["wall_ns"], **_named(rank["phase_ns"])})
    return rows


def ledger(base: Path, run: Path, samples: int) -> tuple[Values, dict[str, Any]]:
    """A run's side of the ledger, per step of so many samples; and the JSON of `explain`."""
    found = ledger_json.explained(explain(Trace.open(base), Trace.open(run)))
    values = {row["name"]: row["target"]["value"] * samples for row in found["rows_ns"]}
    return {"step": found["total_ns"]["target"]["value"] * samples, **_named(values)}, found


def scaling(base: Path, run: Path) -> dict[str, Any]:
    """The row of a run in the scaling table, behind its base."""
    found = ledger_json.scaling(scale_runs([Trace.open(base), Trace.open(run)]))
    row: dict[str, Any] = found["runs"][1]
    return row


def timeline(run: Path) -> list[Values]:
    """What each rank's row of phases covers, in ns of all steps."""
    from profkit.analysis.selection import steady_steps
    from profkit.analysis.timeline.timeline import Timeline

    trace = Trace.open(run)
    used = steady_steps(trace).steps
    raise NotImplementedError(used, Timeline)


SINGLE: Mapping[str, Callable[[Path], Values]] = {
    "report": report,
    "overview": overview,
    "live": live,
}
_ = dataclasses
