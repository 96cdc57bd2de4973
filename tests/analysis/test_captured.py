"""Lines of captured steps on both sides of a change: which steps count, and how they are named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from profkit.analysis.captured import (
    comparable_steps,
    compare_captured,
    view_before,
    view_captured,
)
from profkit.analysis.change_words import say_context
from profkit.analysis.overview import build_overview
from profkit.analysis.run_halves import cut_at
from profkit.analysis.selection import steady_steps
from profkit.explain.explained import explain
from profkit.report import as_json
from profkit.testing.series import Compiled, Marked, series_trace
from profkit.trace import Trace
from profkit.vocab import (
    CAPTURED_STEP,
    CHANGES,
    COMPILED,
    KERNELS,
    WINDOW_STEP,
)
from tests.analysis.tables import rows_table

MS = 1_000_000
STEPS, AT = 300, 150
MAIN, SLOW = 0, 1


def _captured_run(
    folder: Path,
    steps: Sequence[int],
    *,
    marked: Sequence[Marked] = (),
    compiled: Sequence[Compiled] = (),
    more_ms: dict[int, int] | None = None,
) -> Trace:
    """Write a run with a line that takes 10 ms, and 30 from a step on; these steps are captured.

    The line takes `more_ms` in some of the steps.
    """
    line_ms = np.where(np.arange(STEPS) < AT, 10, 30)
    for step, more in (more_ms or {}).items():
        line_ms[step] += more
    noise = np.random.default_rng(0).standard_normal(STEPS)
    phases = {"data": 5 * MS + 1e5 * noise, "forward": (40.0 + line_ms) * MS}
    marks = [Marked(CHANGES, CAPTURED_STEP, step) for step in steps]
    trace = Trace.open(
        series_trace(folder / "run", phases, marked=[*marks, *marked], compiled=compiled)
    )
    rows: list[dict[str, Any]] = []
    for step in trace.steps.select(["step", "start_ns", "end_ns"]).to_pylist():
        if step["step"] in steps:
            begin = step["end_ns"] - int(line_ms[step["step"]]) * MS
            for time_ns in range(step["start_ns"], step["end_ns"], MS):
                frame = SLOW if time_ns >= begin else MAIN
                rows.append({"rank": 0, "time_ns": time_ns, "late_ns": 0, "every_ns": MS})
                rows[-1].update(thread="MainThread", stack=frame)
    frames = []
    for frame, parent, name, line in ((MAIN, None, "main", 5), (SLOW, MAIN, "slow", 7)):
        frames.append({"rank": 0, "id": frame, "parent": parent, "file": "/job/train.py"})
        frames[-1].update(function=name, line=line, origin="job")
    trace.__dict__["stacks"] = rows_table("stacks", rows)
    trace.__dict__["frames"] = rows_table("frames", frames)
    return trace


def test_one_capture_on_each_side_is_named_by_its_steps(tmp_path: Path) -> None:
    (change,) = build_overview(_captured_run(tmp_path, [41, 42, 158, 159])).changes
    assert list(say_context(change)) == [
        "forward: train.py:7 slow 10.0 ms in steps 41 to 42, 30.0 ms in steps 158 to 159"
    ]


@pytest.mark.parametrize(("later_ms", "named"), [(100, True), (400, False)])
def test_a_line_is_named_by_what_the_captured_steps_show(
    tmp_path: Path, later_ms: int, named: bool
) -> None:
    """Later steps are longer still, which nothing captured says anything about."""
    more_ms = dict.fromkeys(range(AT, STEPS), later_ms) | {158: 0, 159: 0}
    trace = _captured_run(tmp_path, [41, 42, 158, 159], more_ms=more_ms)
    (change,) = build_overview(trace).changes
    assert change.phases[0][1] == pytest.approx((20 + later_ms) * MS, rel=0.02)
    assert bool(list(say_context(change))) == named


def test_several_captures_of_a_side_are_counted(tmp_path: Path) -> None:
    view = build_overview(_captured_run(tmp_path, [41, 42, 158, 159, 250, 251]))
    (words,) = say_context(view.changes[0])
    assert words.endswith("30.0 ms in 4 captured steps from 158 to 251")
    captured = as_json.overview(view)["changes"][0]["captured"]
    assert (captured["steps_after"], captured["step_count_after"]) == ([158, 251], 4)
    assert (captured["steps_before"], captured["step_count_before"]) == ([41, 42], 2)


def test_captured_steps_that_something_else_slowed_are_not_compared(tmp_path: Path) -> None:
    """The step is slower on the same line, as with a profiler, and says nothing of the change."""
    marks = [Marked(KERNELS, WINDOW_STEP, 158)]
    captured = [41, 42, 158, 159, 160]
    trace = _captured_run(tmp_path, captured, marked=marks, more_ms={158: 200})
    (words,) = say_context(build_overview(trace).changes[0])
    assert words.endswith("30.0 ms in steps 159 to 160")
    alone = _captured_run(tmp_path / "alone", [41, 42, 158], marked=marks, more_ms={158: 200})
    assert list(say_context(build_overview(alone).changes[0])) == []
    parts = cut_at(trace, AT)
    for part in parts:
        for table in ("stacks", "frames"):
            part.__dict__[table] = trace.__dict__[table]
    causes = {each.kind: each.evidence for each in explain(*parts).causes}
    assert "30.0 ms in steps 159 to 160" in causes["slow_line"]


def test_captured_steps_between_both_sides_are_of_neither(tmp_path: Path) -> None:
    """They are not used, so the change seems to begin behind them, and may not have."""
    trace = _captured_run(tmp_path, [41, 42, AT, AT + 1, AT + 2, 158, 159])
    (change,) = build_overview(trace).changes
    assert change.first_step == AT + 3
    (words,) = say_context(change)
    assert words.endswith("10.0 ms in steps 41 to 42, 30.0 ms in steps 158 to 159")
    parts = cut_at(trace, change.first_step)
    for part in parts:
        for table in ("stacks", "frames"):
            part.__dict__[table] = trace.__dict__[table]
    causes = {each.kind: each.evidence for each in explain(*parts).causes}
    assert "10.0 ms per step in steps 41 to 42" in causes["slow_line"]


def test_captured_steps_that_compiled_are_not_compared(tmp_path: Path) -> None:
    compiled = [Compiled(0, 158, COMPILED, 30.0 * MS)]
    trace = _captured_run(tmp_path, [41, 42, 158, 159, 160], more_ms={158: 200}, compiled=compiled)
    (words,) = say_context(build_overview(trace).changes[0])
    assert words.endswith("30.0 ms in steps 159 to 160")


def test_captured_steps_of_a_smaller_batch_count_if_the_batch_changed(tmp_path: Path) -> None:
    trace = _captured_run(tmp_path, [41, 42, 158, 159])
    sizes = pa.array(np.where(np.arange(STEPS) < AT, 32, 16))
    place = trace.steps.schema.get_field_index("sample_count")
    field = trace.steps.schema.field(place)
    trace.__dict__["steps"] = trace.steps.set_column(place, field, sizes.cast(field.type))
    (words,) = say_context(build_overview(trace).changes[0])
    assert words.endswith("30.0 ms in steps 158 to 159")


def test_steps_that_one_rank_captured_count(tmp_path: Path) -> None:
    """In a long run each rank keeps the steps that it captured, and the others drop them."""
    trace = _captured_run(tmp_path, [41, 42, 158, 159])
    is_captured = np.isin(trace.steps["step"].to_numpy(), [41, 42, 158, 159])
    other = trace.steps.filter(pa.array(~is_captured))
    place = other.schema.get_field_index("rank")
    rank = pa.array([1] * other.num_rows, other.schema.field(place).type)
    other = other.set_column(place, other.schema.field(place), rank)
    trace.__dict__["steps"] = pa.concat_tables([trace.steps, other])
    found = view_captured(trace, comparable_steps(trace, steady_steps(trace)))
    assert found is not None
    assert (found.first, found.last, found.count) == (41, 159, 4)


@pytest.mark.parametrize(("older_ms", "named"), [(0, True), (-10, True), (-40, False)])
def test_a_level_without_captured_steps_is_compared_with_those_before_it(
    tmp_path: Path, older_ms: int, named: bool
) -> None:
    """Unless these show another change of the phase: it may be that of the level in between."""
    more_ms = dict.fromkeys(range(100), older_ms + 40) | dict.fromkeys(range(100, STEPS), 40)
    trace = _captured_run(tmp_path, [41, 42, 158, 159], more_ms=more_ms)
    steps = comparable_steps(trace, steady_steps(trace))
    before, after = view_before(trace, steps, 100, AT), view_captured(trace, steps[steps >= AT])
    assert before is not None
    assert before.is_older
    found = compare_captured(before, after, {"forward": 20.0 * MS})
    assert found is not None
    assert [line.place.line for line in found.lines] == ([7] if named else [])
    assert before.words == "steps 41 to 42 (of an earlier level)"


def test_captured_steps_of_the_level_itself_come_first(tmp_path: Path) -> None:
    trace = _captured_run(tmp_path, [41, 42, 120, 121, 158, 159])
    steps = comparable_steps(trace, steady_steps(trace))
    before = view_before(trace, steps, 100, AT)
    assert before is not None
    assert before.words == "steps 120 to 121"
    assert view_before(trace, steps, 0, 30) is None
