"""The section about changes of the step time while a run lasted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from profkit.analysis.captured import CapturedLines
from profkit.analysis.change_words import say_change, say_context
from profkit.analysis.estimate import Estimate
from profkit.analysis.overview import Overview
from profkit.analysis.run_change import ChangeKind
from profkit.report.document import Grid, Section
from profkit.text import plural

MOST_ROWS = 10
_DAY_NS = 86_400_000_000_000


def changes_section(view: Overview) -> Iterator[Section]:
    """Yield a line for each change; nothing if the step time did not change."""
    found = view.changes
    if not found:
        return
    times = [each.unix_ns for each in found if each.unix_ns is not None]
    with_date = bool(times) and max(times) - min(times) > _DAY_NS
    rows = []
    for each in found[:MOST_ROWS]:
        rows.append((each.kind.value, say_change(each, with_date=with_date)))
        rows += [("", line) for line in say_context(each)]
    notes = []
    if len(found) > MOST_ROWS:
        notes.append(f"{plural(len(found) - MOST_ROWS, 'more change')} in --json")
    step = next((each for each in found if each.kind is not ChangeKind.PERIODIC), None)
    if step is not None:
        notes.append(f"'profkit explain RUN --at {step.first_step}' compares before and after")
    yield Section("Changes during the run", tuple(notes), grid=Grid(("", ""), tuple(rows)))


def as_json(view: Overview) -> list[dict[str, Any]]:
    rows = []
    for each in view.changes:
        rows.append(
            {
                "kind": each.kind.value,
                "first_step": each.first_step,
                "last_step": each.last_step,
                "every_steps": each.every,
                "unix_s": None if each.unix_ns is None else each.unix_ns / 1e9,
                "step_ms_before": _estimate(each.before_ns, 1e-6),
                "step_ms_after": _estimate(each.after_ns, 1e-6),
                "change_ratio": _estimate(each.change, 1.0),
                "phases_ms": {name: ns * 1e-6 for name, ns in each.phases},
                "samples_per_step": each.samples,
                "late_rank": each.late and each.late._asdict(),
                "clock": each.clock and each.clock._asdict(),
                "machine": each.machine and each.machine._asdict(),
                "captured": each.captured and _captured(each.captured),
            }
        )
    return rows


def _captured(found: CapturedLines) -> dict[str, Any]:
    lines = []
    for line in found.lines:
        lines.append(
            {
                "phase": line.phase,
                "file": line.place.file,
                "line": line.place.line,
                "function": line.place.function,
                "called": line.place.below,
                "ms_before": line.base.value * 1e-6,
                "ms_after": line.target.value * 1e-6,
            }
        )
    return {
        "steps_before": [found.before.first, found.before.last],
        "steps_after": [found.after.first, found.after.last],
        "step_count_before": found.before.count,
        "step_count_after": found.after.count,
        "lines": lines,
    }


def _estimate(estimate: Estimate, scale: float) -> dict[str, float | None]:
    found: dict[str, float | None] = {"value": estimate.value * scale}
    for name, end in (("low", estimate.low), ("high", estimate.high)):
        found[name] = None if end is None else end * scale
    return found
