"""Some successive steps of a run, as a run of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from profkit.trace.rank import RankTrace
from profkit.trace.reader import Trace, events_of
from profkit.vocab import OF_COMPILER, EventKind

BY_STEP = frozenset(("steps", "spans", "kernels", "collectives"))
"""The tables whose rows name their step. Rows outside all steps belong to no window."""


class RankWindow(RankTrace):
    """The part of a rank's tables that belongs to some steps.

    Readings of the machine are all there, because readers select them by the time of the steps.
    """

    def __init__(self, whole: RankTrace, first: int, last: int) -> None:
        super().__init__(whole.folder, whole.rank)
        self.contents = whole.contents  # each table is read once for both windows of a run
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
