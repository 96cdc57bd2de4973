"""One run as two: its steps before a place, and those from it on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.run_change import ChangeKind, RunChange
from profkit.analysis.run_changes import find_changes
from profkit.errors import UnreadableError, UsageError
from profkit.frame.estimate import FEWEST_STEPS, Ints
from profkit.frame.notices import is_log
from profkit.frame.run_frame import frame_of
from profkit.frame.selection import including_batches
from profkit.text import plural, safe_text
from profkit.trace import Trace
from profkit.trace.rank import RankTrace
from profkit.trace.reader import events_of
from profkit.vocab import OF_COMPILER, EventKind

SHORT_NS = 10_000_000_000
"""Counters, which are read once per second, say little of a shorter level between two changes."""

NEAR = 8
"""A change may begin so many steps from the step that is named."""


def cut_at(trace: Trace, step: int) -> tuple[WindowTrace, WindowTrace]:
    """Return the steps before `step`, and those from it on; each part has enough of them.

    If a change begins there, each part is one level: from the change before it, to the change or
    the end of the burst after it. A short level is joined with what comes after it.
    """
    where = safe_text(str(trace.path))
    if is_log(trace):
        raise UsageError(
            f"{where}: a log has lines that speak for several steps; --at takes a recorded run"
        )
    if not trace.steps.num_rows:
        raise UnreadableError(f"{where}: holds no steps to compare")
    used = including_batches(frame_of(trace).selection)
    numbers = np.unique(trace.steps["step"].to_numpy())
    if len(used) < 2 * FEWEST_STEPS:
        raise UsageError(
            f"{where}: has {plural(len(used), 'steady step')}, and each side of --at needs "
            f"{FEWEST_STEPS}"
        )
    first, last = int(used[FEWEST_STEPS]), int(used[-FEWEST_STEPS])
    if not first <= step <= last:
        raise UsageError(
            f"--at {step}: each side needs {FEWEST_STEPS} steady steps, so it is a step from "
            f"{first:,} to {last:,} in {where}"
        )
    begin, before_end, end = int(numbers[0]), step - 1, int(numbers[-1])
    warm_up = frame_of(trace).warm_up
    before, after = f"{trace.name} before step {step:,}", f"{trace.name} from step {step:,} on"
    change = _change_at(find_changes(trace, used), step)
    if change is not None:
        first, last = change.before_steps[0], min(change.before_steps[1], step - 1)
        is_whole = first <= used[0] and last + NEAR >= step
        if not is_whole and _has_enough(used, first, last):
            begin, before_end, warm_up = first, last, 0
            before = f"{trace.name} from step {first:,} to {last:,}"
        level_end = change.last_step
        lasts = change.kind is ChangeKind.BURST or _is_long(trace, step, level_end)
        if level_end is not None and lasts and _has_enough(used, step, level_end):
            end, after = level_end, f"{trace.name} from step {step:,} to {level_end:,}"
    return (
        cut_trace(trace, begin, before_end, warm_up=warm_up, label=before),
        cut_trace(trace, step, end, warm_up=0, label=after),
    )


def _is_long(trace: Trace, first: int, last: int | None) -> bool:
    """Return true if the steps from one to another take long enough to have a cause."""
    if last is None:
        return True
    steps = trace.steps["step"].to_numpy()
    rows = trace.steps.filter((steps >= first) & (steps <= last))
    return int(pc.max(rows["end_ns"]).as_py() - pc.min(rows["start_ns"]).as_py()) >= SHORT_NS


def _has_enough(used: Ints, first: int, last: int) -> bool:
    return bool(np.count_nonzero((used >= first) & (used <= last)) >= FEWEST_STEPS)


def _change_at(changes: Sequence[RunChange], step: int) -> RunChange | None:
    """Return the change that begins next to a step, if it is no periodic one."""
    near = []
    for change in changes:
        apart = abs(change.first_step - step)
        if change.kind is not ChangeKind.PERIODIC and apart <= NEAR:
            near.append((apart, change))
    return min(near, key=lambda each: each[0])[1] if near else None


# Some successive steps of a run, as a run of their own.
BY_STEP = frozenset(("steps", "spans", "kernels", "collectives"))
"""The tables whose rows name their step. Rows outside all steps belong to no window."""


class RankWindow(RankTrace):
    """The part of a rank's tables that belongs to some steps.

    Readings of the machine are all there, because readers select them by the time of the steps.
    """

    def __init__(self, whole: RankTrace, first: int, last: int) -> None:
        super().__init__(whole.folder, whole.rank)
        self.contents = whole.contents  # each table is read once for both windows of a run
        self.level = whole.level
        self._first, self._last = first, last

    def table(self, table: str) -> pa.Table:
        rows = super().table(table)
        if table in BY_STEP:
            return self._cut(rows)
        if table == "events":
            return self._cut_events(rows)
        if table == "sums":  # of a part that is cut, nobody knows what lies inside
            begins = pc.greater_equal(rows["first_step"], pa.scalar(self._first, pa.int64()))
            ends = pc.less_equal(rows["last_step"], pa.scalar(self._last, pa.int64()))
            return rows.filter(pc.and_(begins, ends))
        return rows

    def select(self, table: str, columns: Sequence[str]) -> tuple[pa.Table, str]:
        if table not in BY_STEP:
            return super().select(table, columns)
        rows, problem = super().select(table, [*dict.fromkeys([*columns, "step"])])
        return self._cut(rows).select(list(columns)), problem

    def _cut(self, rows: pa.Table) -> pa.Table:
        step = rows["step"]
        inside = pc.and_(
            pc.greater_equal(step, pa.scalar(self._first, pa.int64())),
            pc.less_equal(step, pa.scalar(self._last, pa.int64())),
        )
        return rows.filter(inside)

    def _cut_events(self, rows: pa.Table) -> pa.Table:
        """Drop what the compiler did at other times, which would count as outside of all steps."""
        steps = self.table("steps")
        if not steps.num_rows:
            return rows
        begin, end = pc.min(steps["start_ns"]), pc.max(steps["end_ns"])
        own = events_of(rows, *OF_COMPILER)
        at = own["time_ns"]
        inside = pc.and_(pc.greater_equal(at, begin), pc.less_equal(at, end))
        others = events_of(rows, *(kind for kind in EventKind if kind not in OF_COMPILER))
        return pa.concat_tables([others, own.filter(inside)])


@dataclass(frozen=True)
class WindowTrace(Trace):
    """A run of some successive steps of another; `label` says which."""

    label: str = ""
    first_excluded: int = 0
    """The number of its first steps that are warm-up."""

    @property
    def name(self) -> str:
        return self.label

    @property
    def own_warm_up(self) -> int | None:
        return self.first_excluded


def cut_trace(trace: Trace, first: int, last: int, *, warm_up: int, label: str) -> WindowTrace:
    """Return the steps from `first` to `last`, of which the first `warm_up` are excluded."""
    ranks = tuple(RankWindow(rank, first, last) for rank in trace.ranks)
    return WindowTrace(trace.path, trace.manifest, ranks, label, warm_up)
