"""What the spans of some ranks add up to: what a ledger needs of them, a thousandth of their size.

All sums are whole numbers over (step), so that those of ranks added up are the same as those of all ranks at
once, in any order and on any machine. A rank's are made by `sum_rank`, which other processes can run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.estimate import Ints
from profkit.analysis.exposed import exposed_spans, input_pieces
from profkit.analysis.phases import sum_phases
from profkit.trace import Trace
from profkit.trace.reader import Mapper, RankTrace, check_seen
from profkit.vocab import PHASES, Phase

_WINDOW = ("rank", "step", "phase", "start_ns", "end_ns")


@dataclass(frozen=True)
class SpanSums:
    """Time by (phase, used step), on the host's clock and as the device noticed it, and what is needed to open input and exchange."""

    steps: Ints
    host: Ints
    exposed: Ints
    on_device: bool
    pieces: Ints
    waits: Ints
    windows: pa.Table
    """The spans of the exposed exchange."""

    host_windows: pa.Table
    outer: Ints
    """By used step, how many phases were timed that lie in no other: what timing them cost lies in none, either."""

    damaged: bool = False
    """Whether some spans could not be read."""

    def by_phase(self, sums: Ints) -> dict[str, Ints]:
        """The phases that took any time."""
        return {phase: row for phase, row in zip(PHASES, sums, strict=True) if row.any()}

    def take(self, kept: npt.NDArray[np.bool_]) -> SpanSums:
        """Those of some of the steps; the windows of others do no harm."""
        host, exposed, pieces = (sums[:, kept] for sums in (self.host, self.exposed, self.pieces))
        return dataclasses.replace(
            self,
            steps=self.steps[kept],
            host=host,
            exposed=exposed,
            pieces=pieces,
            waits=self.waits[kept],
            outer=self.outer[kept],
        )


def sum_spans(spans: pa.Table, used: Ints) -> SpanSums:
    """The sums of these spans, of one rank or of many."""
    exposed = exposed_spans(spans)
    on_device = exposed is not spans
    host, outer = _phases(spans, used)
    pieces, waits = input_pieces(spans, exposed, used)
    windows = _windows(spans)
    seen, seen_windows = (
        (_phases(exposed, used)[0], _windows(exposed)) if on_device else (host, windows)
    )
    return SpanSums(used, host, seen, on_device, pieces, waits, seen_windows, windows, outer)


def _phases(spans: pa.Table, used: Ints) -> tuple[Ints, Ints]:
    sums, outer = sum_phases(spans, used)
    return np.asarray(np.rint(sums), dtype=np.int64), outer


def _windows(spans: pa.Table) -> pa.Table:
    return spans.filter(pc.equal(spans["phase"], Phase.ALLREDUCE.value)).select(_WINDOW)


def add_sums(parts: Sequence[SpanSums]) -> SpanSums:
    """The sums of several ranks as one."""
    summed = ("host", "exposed", "pieces", "waits", "outer")
    host, exposed, pieces, waits, outer = (
        np.sum([getattr(part, name) for part in parts], axis=0) for name in summed
    )
    windows, host_windows = (
        pa.concat_tables([getattr(part, name) for part in parts]).unify_dictionaries()
        for name in ("windows", "host_windows")
    )
    on_device, damaged = (
        any(getattr(part, name) for part in parts) for name in ("on_device", "damaged")
    )
    return SpanSums(
        parts[0].steps,
        host,
        exposed,
        on_device,
        pieces,
        waits,
        windows,
        host_windows,
        outer,
        damaged,
    )


def sum_ranks(trace: Trace, used: Ints, each: Mapper = map) -> dict[int, SpanSums]:
    """Every rank's own sums, made where `each` makes them; there, the run must lie at the same place."""
    folders = [(str(rank.folder.absolute()), rank.rank) for rank in trace.ranks]
    sizes = [rank.size("spans") for rank in trace.ranks]
    found = each(
        sum_rank,
        [folder for folder, _ in folders],
        [rank for _, rank in folders],
        sizes,
        [used] * len(folders),
    )
    return dict(zip([rank for _, rank in folders], found, strict=True))


def sum_rank(folder: str, rank: int, size: int | None, used: Ints) -> SpanSums:
    """One rank's sums."""
    own = RankTrace(Path(folder), rank)
    check_seen(own, "spans", size)
    spans = own.table("spans")
    return dataclasses.replace(sum_spans(spans, used), damaged=any(own.problems))


def mean_phases(sums: SpanSums, used: Ints) -> dict[str, float]:
    """By phase, the host's mean time a step over some of the steps; nothing where none is used."""
    kept = np.isin(sums.steps, used)
    return (
        {phase: float(row[kept].mean()) for phase, row in sums.by_phase(sums.host).items()}
        if kept.any()
        else {}
    )
