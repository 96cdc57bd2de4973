"""The section about the few steps that took far longer than the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from profkit.analysis.long_steps import LongStep
from profkit.analysis.overview import Overview
from profkit.analysis.phases import UNKNOWN
from profkit.report.document import Grid, Section
from profkit.report.words import reason_name
from profkit.text import duration, significant


def long_steps_section(view: Overview) -> Iterator[Section]:
    """Yield a line for each of these steps; nothing if there are none."""
    if not view.long_steps.longest:
        return
    rows = [(f"step {each.step:,}", say_long_step(each)) for each in view.long_steps.longest]
    yield Section("Long steps", grid=Grid(("", ""), tuple(rows)))


def say_long_step(found: LongStep) -> str:
    times = significant(found.wall_ns / found.usual_ns, 3)
    words = [f"{duration(found.wall_ns)}, {times} times a usual step"]
    if found.phase == UNKNOWN:
        words.append(f"{duration(found.phase_ns)} of it in no phase")
    elif found.phase:
        words.append(f"{duration(found.phase_ns)} of it in {found.phase}")
    if found.left_out:
        words.append(f"in no figure: {reason_name(found.left_out)}")
    return "; ".join(words)


def as_json(view: Overview) -> list[dict[str, Any]]:
    rows = []
    for each in view.long_steps.longest:
        rows.append(
            {
                "step": each.step,
                "step_ms": each.wall_ns * 1e-6,
                "usual_step_ms": each.usual_ns * 1e-6,
                "phase": each.phase or None,
                "phase_ms": each.phase_ns * 1e-6 if each.phase else None,
                "left_out": each.left_out or None,
            }
        )
    return rows
