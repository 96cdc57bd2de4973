"""What a run recorded around its changes: lines of captured steps, and the machine's load."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pyarrow.compute as pc

from profkit.analysis.captured import captured_steps, compare_captured, view_captured
from profkit.analysis.machine_state import MachineState, read_machine_state
from profkit.analysis.run_change import ChangeKind, MachineChange, RunChange
from profkit.trace import Trace

LEAST_OTHERS = 0.2
"""Other processes matter if they use so many cores more."""

LEAST_SHARE_OF_CHANGE = 0.4
"""Waits for a core matter if they make at least this share of a change."""


def add_context(trace: Trace, changes: Sequence[RunChange]) -> tuple[RunChange, ...]:
    """Return the changes with what explains them, as far as the run recorded it."""
    found = []
    for number, change in enumerate(changes):
        begin = changes[number - 1].first_step if number else 0
        end = change.last_step
        if end is None and number + 1 < len(changes):
            end = changes[number + 1].first_step - 1
        if change.kind is ChangeKind.PERIODIC:  # its slow steps are between the others
            found.append(change)
            continue
        lines = None
        if len(captured_steps(trace)):
            before = view_captured(trace, begin, change.first_step)
            after = view_captured(trace, change.first_step, end and end + 1)
            lines = compare_captured(before, after, dict(change.phases))
        machine = _machine_change(trace, change, begin, end)
        found.append(dataclasses.replace(change, captured=lines, machine=machine))
    return tuple(found)


def _machine_change(
    trace: Trace, change: RunChange, begin: int, end: int | None
) -> MachineChange | None:
    """Return how the machine's load changed, if it changed enough to matter."""
    before = _state(trace, begin, change.first_step)
    after = _state(trace, change.first_step, end and end + 1)
    if before is None or after is None or before.waited is None or after.waited is None:
        return None
    share = 1 - change.before_ns.value / change.after_ns.value
    sign = 1.0 if share > 0 else -1.0
    is_busier = sign * (after.others - before.others) >= LEAST_OTHERS
    waits = sign * (after.waited - before.waited) >= LEAST_SHARE_OF_CHANGE * abs(share)
    if not is_busier or not waits:
        return None
    return MachineChange(before.others, after.others, before.waited, after.waited)


def _state(trace: Trace, begin: int, end: int | None) -> MachineState | None:
    """Return the load while the steps from `begin` to before `end` ran."""
    cores, steps = trace.manifest.environment.get("cpu_count"), trace.steps
    rows = steps.filter(pc.greater_equal(steps["step"], begin))
    if end is not None:
        rows = rows.filter(pc.less(rows["step"], end))
    if not isinstance(cores, int) or cores < 1 or not rows.num_rows:
        return None
    begin_ns, end_ns = pc.min(rows["start_ns"]).as_py(), pc.max(rows["end_ns"]).as_py()
    return read_machine_state(trace.samples, cores, begin_ns, end_ns)
