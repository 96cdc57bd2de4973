"""Batches that a run's loaders made, from the spans of their pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.columns import durations, names_and_codes, rows_of_steps
from profkit.analysis.estimate import Floats, Ints
from profkit.analysis.exposed import INPUT_PIECES
from profkit.vocab import Phase

READ, DECODE, COLLATE, QUEUE = INPUT_PIECES


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches taken in the used steps: the maker of each, and its pieces in ns.

    A piece that was not timed is NaN.
    """

    rank: Ints
    maker: Ints
    names: tuple[str, ...]
    """The names of the makers: the threads of the rows."""
    making_ns: Floats
    pieces: Mapping[str, Floats]


def find_batches(spans: pa.Table, used: Ints) -> Batches:
    """Group the pieces of each batch: on its thread, a batch's rows follow its `read`."""
    rows = data_rows(spans, used)
    rows = rows.filter(pc.is_in(rows["name"].cast(pa.string()), pa.array(INPUT_PIECES)))
    rank, (names, maker) = rows["rank"].to_numpy().astype(np.int64), names_and_codes(rows["thread"])
    order = np.lexsort((np.arange(len(rank)), maker, rank))
    rank, maker = rank[order], maker[order]
    piece = pc.index_in(rows["name"].cast(pa.string()), pa.array(INPUT_PIECES)).to_numpy()[order]
    start, end = rows["start_ns"].to_numpy()[order], rows["end_ns"].to_numpy()[order]
    is_read = piece == INPUT_PIECES.index(READ)
    begins, batch = np.flatnonzero(is_read), np.cumsum(is_read) - 1
    whole = batch >= 0
    if len(begins):
        whole &= (rank == rank[begins][batch]) & (maker == maker[begins][batch])
    pieces = {}
    made = start[begins]
    for place, name in enumerate(INPUT_PIECES):
        mine = whole & (piece == place)
        pieces[name] = np.full(len(begins), np.nan)
        pieces[name][batch[mine]] = (end - start)[mine]
        # A batch is made when it enters the queue.
        done = start[mine] if name == QUEUE else end[mine]
        made[batch[mine]] = np.maximum(made[batch[mine]], done)
    making_ns = (made - start[begins]).astype(np.float64)
    return Batches(rank[begins], maker[begins], tuple(names), making_ns, pieces)


def data_rows(spans: pa.Table, used: Ints, *, outer: bool = False) -> pa.Table:
    """Return the spans of input in the used steps; `outer` asks for those in no other span."""
    rows = rows_of_steps(spans.filter(pc.equal(spans["phase"], Phase.DATA.value)), used)
    return rows.filter(pc.equal(rows["depth"], 0)) if outer else rows


def training_threads(spans: pa.Table, used: Ints) -> frozenset[tuple[int, str]]:
    """Return the ranks' threads that run the steps themselves: they wait for data."""
    waits = data_rows(spans, used, outer=True).group_by(["rank", "thread"]).aggregate([])
    return frozenset(zip(waits["rank"].to_pylist(), waits["thread"].to_pylist(), strict=True))


def total_wait_ns(spans: pa.Table, used: Ints) -> float:
    """Return the wait for data in the used steps, over all ranks."""
    return float(durations(data_rows(spans, used, outer=True)).sum())
