"""Sums of the spans of some ranks: all that a ledger needs, at a thousandth of the size.

All sums are whole numbers over (step), so that the sums of single ranks add up to those of all
ranks at once, in any order and on any machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profkit.frame.columns import equals, step_places
from profkit.frame.device_clock import Bools, exposed_spans, has_device_times, works
from profkit.frame.estimate import Ints
from profkit.frame.exposed import input_pieces
from profkit.frame.phases import sum_phases
from profkit.vocab import PHASES, Phase

ARRAYS = ("host", "exposed", "timed", "pieces", "waits", "outer", "untimed")
"""The fields of `SpanSums` that are numbers by step."""

_WINDOW = ("rank", "step", "start_ns", "end_ns")


@dataclass(frozen=True)
class SpanSums:
    """Time by (phase, used step), and what is needed to split data and exchange.

    `host` is on the host's clock, `exposed` as the device noticed it.
    """

    steps: Ints
    host: Ints
    exposed: Ints
    timed: Ints
    """The spans per step that have device times."""

    pieces: Ints
    waits: Ints
    windows: pa.Table
    """The spans of the exposed exchange."""

    outer: Ints
    """The phases per used step that were timed inside no other; the time of timing is in none."""

    untimed: Ints
    """The phases per used step that lack device times which others of their rank have."""

    timed_exchange: pa.Table
    """Rank and step of the spans of the exposed exchange that have device times."""

    @property
    def on_device(self) -> bool:
        return bool(self.timed.any())

    def by_phase(self, sums: Ints) -> dict[str, Ints]:
        """Return the rows of `sums` for the phases that took any time."""
        return {phase: row for phase, row in zip(PHASES, sums, strict=True) if row.any()}

    def take(self, kept: Ints) -> SpanSums:
        """Keep the steps at these places; windows of the others may stay."""
        on_device = self.timed[kept].any()
        return dataclasses.replace(
            self,
            steps=self.steps[kept],
            host=self.host[:, kept],
            exposed=(self.exposed if on_device else self.host)[:, kept],
            timed=self.timed[kept],
            pieces=self.pieces[:, kept],
            waits=self.waits[kept],
            outer=self.outer[kept],
            untimed=self.untimed[kept],
        )


def sum_spans(spans: pa.Table, used: Ints) -> SpanSums:
    """Return the sums of these spans, of one rank or of many."""
    timed, place = has_device_times(spans), step_places(spans, used)
    exposed = exposed_spans(spans)
    host, outer = _whole_phases(spans, used)
    pieces, waits = input_pieces(spans, exposed, used)
    missing = place[untimed_work(spans, timed)]
    return SpanSums(
        steps=used,
        host=host,
        exposed=_whole_phases(exposed, used)[0] if timed.any() else host,
        timed=np.bincount(place[timed & (place >= 0)], minlength=len(used)),
        pieces=pieces,
        waits=waits,
        windows=_windows(exposed),
        outer=outer,
        untimed=np.bincount(missing[missing >= 0], minlength=len(used)),
        timed_exchange=_windows(
            spans.filter(pa.array(timed)) if timed.any() else spans.slice(0, 0)
        ).select(["rank", "step"]),
    )


def untimed_work(spans: pa.Table, timed: Bools) -> Bools:
    """Return which spans lack device times that others of their rank have."""
    if not timed.any():
        return timed
    rank = spans["rank"].to_numpy()
    return np.asarray(works(spans) & ~timed & np.isin(rank, rank[timed]))


def _whole_phases(spans: pa.Table, used: Ints) -> tuple[Ints, Ints]:
    sums, outer = sum_phases(spans, used)
    return np.asarray(np.rint(sums), dtype=np.int64), outer


def _windows(spans: pa.Table) -> pa.Table:
    rows = equals(spans["phase"], Phase.ALLREDUCE.value) & spans["step"].is_valid().to_numpy()
    columns = []
    for name in _WINDOW:  # a filter of Arrow would leave room for all rows
        field = spans.schema.field(name)
        columns.append(pa.array(spans[name].to_numpy()[rows], field.type))
    return pa.table(columns, schema=pa.schema([spans.schema.field(name) for name in _WINDOW]))


def add_sums(parts: Iterable[SpanSums]) -> SpanSums:
    """Add up the sums of several ranks, of which only one need be in memory at a time."""
    each = iter(parts)
    total = next(each)
    windows, timed_exchange = [total.windows], [total.timed_exchange]
    for part in each:
        added = {name: getattr(total, name) + getattr(part, name) for name in ARRAYS}
        total = dataclasses.replace(total, **added)
        windows.append(part.windows)
        timed_exchange.append(part.timed_exchange)
    return dataclasses.replace(
        total,
        windows=pa.concat_tables(windows),
        timed_exchange=pa.concat_tables(timed_exchange),
    )


def mean_phases(sums: SpanSums, used: Ints) -> dict[str, float]:
    """Return the mean exposed time per step in each phase, over some of the steps."""
    kept = np.isin(sums.steps, used)
    if not kept.any():
        return {}
    return {phase: float(row[kept].mean()) for phase, row in sums.by_phase(sums.exposed).items()}
