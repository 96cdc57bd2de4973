"""The section about the few steps that took far longer than the others."""

from __future__ import annotations

from collections.abc import Iterator

from profkit.analysis.long_steps import LongStep
from profkit.analysis.overview import Overview
from profkit.frame.phases import UNKNOWN
from profkit.show.document import Column, Section, Table, data_columns
from profkit.show.figures import MS, reason_name
from profkit.text import duration, significant


def long_steps_section(view: Overview) -> Iterator[Section]:
    """Yield a line for each of these steps; nothing if there are none."""
    title = "Long steps" * bool(view.long_steps.longest)
    yield Section(title, table=Table(_COLUMNS, view.long_steps.longest), key="long_steps")


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


_COLUMNS = (
    Column("", "", lambda each: f"step {each.step:,}"),
    Column("", "", say_long_step),
    *data_columns("step", "phase", "left_out"),
    *data_columns(unit=MS, step_ms="wall_ns", usual_step_ms="usual_ns"),
    Column("phase_ms", None, lambda each: each.phase_ns if each.phase else None, MS),
)
