"""What the figures of a run need of one rank's spans, at a hundredth of their size.

A part is made from the files of one rank alone, so that ranks are read on other processes or
machines, and thousands of them need the memory of a few. Everything is a whole number by step, so
that parts add up in any order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from profkit.address import to_path
from profkit.frame.calls import RankCalls
from profkit.frame.columns import smallest
from profkit.frame.device_times import DeviceCounts
from profkit.frame.estimate import Ints
from profkit.frame.gaps import NO_GAPS, find_gaps
from profkit.frame.rank_sums import ARRAYS, SpanSums, sum_spans
from profkit.trace.rank import RankTrace, check_seen
from profkit.trace.sampled import step_levels
from profkit.trace.stream import StreamContent

NOT_KEPT = ("spans", "collectives")
"""The tables whose parts are enough for most views."""

KEPT = ("sums", "steps", "samples", "events", "stacks", "frames", "strings")
"""The other tables that figures are computed from.

Names come last, so that a growing run has the names of all rows that were read. Kernels, which can
be far larger, are read only where they are shown.
"""


@dataclass(frozen=True)
class RankPart:
    """One rank's time by phase and step, and counts of its spans."""

    sums: SpanSums
    gaps: Mapping[int, Ints]
    """The time between two neighbouring phases by step; the key is a number for the pair."""
    spans: int
    marks: int
    """The boundaries of spans that were marked on the device."""
    device: DeviceCounts
    calls: RankCalls
    damaged: tuple[str, ...]
    """The tables of `NOT_KEPT` of which something could not be read."""

    @property
    def lost_spans(self) -> bool:
        return "spans" in self.damaged

    def on(self, numbers: Ints) -> SpanSums:
        """Return the sums over these steps; those of a step that the rank lacks are zero."""
        own = self.sums.steps
        same = np.array_equal(own, numbers)
        spread: dict[str, Ints] = {}
        for name in ARRAYS:
            if name == "exposed" and self.sums.exposed is self.sums.host:
                spread[name] = spread["host"]
                continue
            values = getattr(self.sums, name).astype(np.int64)
            spread[name] = values if same else _spread(values, own, numbers)
        return dataclasses.replace(self.sums, steps=numbers, **spread)

    def gaps_in(self, used: Ints) -> dict[int, int]:
        """Return the time of each pair in these steps together."""
        kept = np.isin(self.sums.steps, used, assume_unique=True)
        return {pair: int(gap[kept].sum(dtype=np.int64)) for pair, gap in self.gaps.items()}

    def packed(self) -> RankPart:
        """Return the part with its numbers in the smallest types that hold them."""
        small = {name: smallest(getattr(self.sums, name)) for name in ARRAYS}
        if self.sums.exposed is self.sums.host:
            small["exposed"] = small["host"]
        sums = dataclasses.replace(self.sums, **small)
        gaps = {pair: smallest(values) for pair, values in self.gaps.items()}
        return dataclasses.replace(self, sums=sums, gaps=gaps)


def part_of(rank: RankTrace) -> RankPart:
    """Return the part of a rank."""
    spans, steps = rank.table("spans"), rank.table("steps")
    numbers = np.unique(steps["step"].to_numpy()).astype(np.int64)
    if rank.level:
        numbers = numbers[step_levels(numbers) >= rank.level]
    gaps = find_gaps(steps, spans, numbers).get(rank.rank, NO_GAPS)
    ends = (spans["device_start_ns"], spans["device_end_ns"])
    damaged = tuple(table for table in NOT_KEPT if rank.content(table).problem)
    part = RankPart(
        sums=sum_spans(spans, numbers),
        gaps=gaps.by_step(numbers),
        spans=spans.num_rows,
        marks=sum(len(column) - column.null_count for column in ends),
        device=DeviceCounts.of(spans),
        calls=RankCalls.of(rank.table("collectives")),
        damaged=damaged,
    )
    return part.packed()


def read_part(
    folder: str, number: int, sizes: Mapping[str, int | None], tables: Sequence[str], level: int
) -> tuple[dict[str, StreamContent], RankPart]:
    """Read one rank whose files have at least these sizes, and return some and damaged tables.

    Of a sample of steps, those of a `level`. Also called on other machines.
    """
    own = RankTrace(to_path(folder), number)
    own.level = level
    for table, size in sizes.items():
        check_seen(own, table, size)
    part = part_of(own)
    return {table: own.content(table) for table in {*tables, *part.damaged}}, part


class SumsByRank(Mapping[int, SpanSums]):
    """The sums of each rank over some steps, unpacked when they are asked for."""

    def __init__(self, parts: Mapping[int, RankPart], numbers: Ints) -> None:
        self._parts = parts
        self._numbers = numbers

    def __getitem__(self, rank: int) -> SpanSums:
        return self._parts[rank].on(self._numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def _spread(values: Ints, own: Ints, numbers: Ints) -> Ints:
    """Return values by own step as values by these steps."""
    found = np.zeros((*values.shape[:-1], len(numbers)), dtype=np.int64)
    if len(numbers):
        place = np.minimum(np.searchsorted(numbers, own), len(numbers) - 1)
        known = numbers[place] == own
        found[..., place[known]] = values[..., known]
    return found
