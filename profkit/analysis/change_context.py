"""The machine's load and clocks on both sides of a run's changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.machine_state import AFTER_NS, MachineState, read_machine_state
from profkit.analysis.run_change import ChangeKind, ClockChange, MachineChange, RunChange
from profkit.analysis.run_changes import find_changes
from profkit.analysis.stack_samples import find_steps
from profkit.frame.columns import durations, readings_of, rows_of_rank
from profkit.frame.costs import OUTLIER_FACTOR
from profkit.frame.estimate import Ints
from profkit.frame.selection import Selection, including_batches
from profkit.trace import Trace
from profkit.vocab import THROTTLED

CLOCK = "sm_clock_mhz"

LEAST_CLOCK = 0.05
"""A device's clock must change by this share to be named."""

Device = tuple[int, str]
"""A rank and its device."""

LEAST_THROTTLED = 0.1
"""What throttles a device is named if it does so for this much more of the time."""

LEAST_OTHERS = 0.2
"""Other processes matter if they use so many cores more."""

SHORTEST_LOAD_NS = 4 * AFTER_NS
"""The readings of a shorter part are mostly of the steps around it."""

LEAST_SHARE_OF_CHANGE = 0.4
"""Waits for a core matter if they make at least this share of a change."""


def explained_changes(trace: Trace, selection: Selection) -> tuple[RunChange, ...]:
    """Return the changes of a run's steady steps, with what was recorded around them."""
    return add_context(trace, find_changes(trace, including_batches(selection)), selection)


def add_context(
    trace: Trace, changes: Sequence[RunChange], selection: Selection
) -> tuple[RunChange, ...]:
    """Return the changes with what explains them, as far as the run recorded it."""
    if not changes:
        return ()
    used, found = including_batches(selection), []
    for change in changes:
        if change.kind is ChangeKind.PERIODIC:  # its slow steps are between the others
            found.append(change)
            continue
        machine, clock = _machine_change(trace, change), _clock_change(trace, change, used)
        found.append(dataclasses.replace(change, machine=machine, clock=clock))
    return tuple(found)


def _machine_change(trace: Trace, change: RunChange) -> MachineChange | None:
    """Return how the machine's load changed, if it changed enough to matter."""
    before, after = _state(trace, change.before_steps), _state(trace, change.after_steps)
    if before is None or after is None or before.waited is None or after.waited is None:
        return None
    share = 1 - change.before_ns.value / change.after_ns.value
    sign = 1.0 if share > 0 else -1.0
    is_busier = sign * (after.others - before.others) >= LEAST_OTHERS
    waits = sign * (after.waited - before.waited) >= LEAST_SHARE_OF_CHANGE * abs(share)
    if not is_busier or not waits:
        return None
    return MachineChange(before.others, after.others, before.waited, after.waited)


def _state(trace: Trace, between: tuple[int, int]) -> MachineState | None:
    """Return the load while the steps from the first to the last ran."""
    cores, step = trace.manifest.environment.get("cpu_count"), trace.steps["step"]
    inside = pc.and_(pc.greater_equal(step, between[0]), pc.less_equal(step, between[1]))
    rows = trace.steps.filter(inside)
    if not isinstance(cores, int) or cores < 1 or not rows.num_rows:
        return None
    begin_ns, end_ns = pc.min(rows["start_ns"]).as_py(), pc.max(rows["end_ns"]).as_py()
    if end_ns - begin_ns < SHORTEST_LOAD_NS:
        return None
    return read_machine_state(trace.samples, cores, begin_ns, end_ns)


def _clock_change(trace: Trace, change: RunChange, used: Ints) -> ClockChange | None:
    """Return the device whose clock changed most, in the other direction than the step time."""
    sides = []
    for first, last in (change.before_steps, change.after_steps):
        sides.append(used[(used >= first) & (used <= last)])
    before, after = (_levels(trace, CLOCK, side) for side in sides)
    sign = 1.0 if change.change.value > 0 else -1.0
    worst, found = LEAST_CLOCK, None
    for lane in before.keys() & after.keys():
        fall = sign * (1 - after[lane] / before[lane]) if before[lane] else 0.0
        if fall >= worst:
            worst, found = fall, lane
    if found is None:
        return None
    reasons = []
    for reason, metric in THROTTLED.items():
        if sign > 0:
            shares = [_levels(trace, metric, side).get(found, 0.0) for side in sides]
            if shares[1] - shares[0] >= LEAST_THROTTLED:
                reasons.append(reason)
    rank, device = found
    return ClockChange(f"rank {rank}'s {device}", before[found], after[found], tuple(reasons))


def _levels(trace: Trace, metric: str, used: Ints) -> dict[Device, float]:
    """Return the mean of a device's readings within these steps.

    In between, and in steps that are far longer than the others, the device may do nothing.
    """
    readings = readings_of(trace.samples, "nvml", metric)
    values: dict[Device, list[float]] = {}
    for rank in pc.unique(readings["rank"]).to_pylist():
        steps, own = rows_of_rank(trace.steps, rank), rows_of_rank(readings, rank)
        steps = steps.filter(pa.array(np.isin(steps["step"].to_numpy(), used)))
        length = durations(steps)
        if len(length):
            steps = steps.filter(pa.array(length <= OUTLIER_FACTOR * np.median(length)))
        inside = find_steps(own["time_ns"].to_numpy(), steps, used) >= 0
        for row in own.filter(pa.array(inside)).select(["device", "value"]).to_pylist():
            values.setdefault((rank, row["device"] or ""), []).append(row["value"])
    return {device: sum(found) / len(found) for device, found in values.items()}
