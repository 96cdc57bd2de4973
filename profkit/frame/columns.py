"""Helpers for the columns of recorded tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.estimate import Ints

MOST_SPARSE = 4
"""So many places for each row are a table that takes less time than sorting the rows."""


def names_and_codes(column: pa.ChunkedArray) -> tuple[list[str], Ints]:
    """Return the distinct values of a column, and each row's place among them.

    A null has the code -1. A column that is not dictionary-encoded is encoded first.
    """
    whole = _encoded(column)
    return whole.dictionary.to_pylist(), _codes(whole)


def places_in(column: pa.ChunkedArray, wanted: Sequence[str]) -> Ints:
    """Return each row's place of its value in `wanted`, -1 for other values."""
    names, codes = names_and_codes(column)
    places = np.full(len(names) + 1, -1, dtype=np.int64)
    for place, name in enumerate(names):
        if name in wanted:
            places[place] = wanted.index(name)
    return np.asarray(places[codes])


def codes_of(column: pa.ChunkedArray) -> Ints:
    """Return the codes of `names_and_codes` alone, which is faster if there are many names."""
    return _codes(_encoded(column))


def _encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.unify_dictionaries().combine_chunks()


def _codes(whole: pa.DictionaryArray) -> Ints:
    codes = whole.indices
    if codes.null_count:
        codes = codes.fill_null(pa.scalar(-1, codes.type))
    return np.asarray(codes.to_numpy(), dtype=np.int64)


def durations(table: pa.Table) -> Ints:
    """Return how long each row of a table with `start_ns` and `end_ns` took, in ns."""
    return np.asarray(table["end_ns"].to_numpy() - table["start_ns"].to_numpy(), dtype=np.int64)


def rows_of_rank(table: pa.Table, rank: int) -> pa.Table:
    """Return the rows of one rank."""
    return table.filter(pc.equal(table["rank"], rank))


class RowsByRank(dict[int, pa.Table]):
    """The rows of each rank; none of a rank that has none."""

    def __init__(self, none: pa.Table) -> None:
        self._none = none

    def __missing__(self, rank: int) -> pa.Table:
        return self._none


def split_ranks(table: pa.Table) -> RowsByRank:
    """Return the rows of each rank, which is faster than a filter for each of many ranks."""
    rank, found = table["rank"].to_numpy(), RowsByRank(table.slice(0, 0))
    if not len(rank):
        return found
    if (np.diff(rank) < 0).any():
        order = np.argsort(rank, kind="stable")
        table, rank = table.take(pa.array(order)), rank[order]
    ranks, first = np.unique(rank, return_index=True)
    ends = np.append(first[1:], len(rank))
    for each, begin, end in zip(ranks.tolist(), first.tolist(), ends.tolist(), strict=True):
        found[each] = table.slice(begin, end - begin)
    return found


def places_of_ranks(rank: Ints) -> dict[int, Ints]:
    """Return the places of each rank's values, in their order."""
    order = np.argsort(rank, kind="stable")
    ranks, first = np.unique(rank[order], return_index=True)
    return dict(zip(ranks.tolist(), np.split(order, first[1:]), strict=True))


def rows_of_steps(table: pa.Table, steps: Ints) -> pa.Table:
    """Return the rows that belong to one of these steps."""
    kept = step_places(table, np.sort(steps)) >= 0
    return table if kept.all() else table.filter(pa.array(kept))


def readings_of(samples: pa.Table, source: str, metric: str) -> pa.Table:
    """Return the rows of `samples` that hold one metric of one collector."""
    wanted = pc.and_(pc.equal(samples["source"], source), pc.equal(samples["metric"], metric))
    return samples.filter(wanted)


def step_places(table: pa.Table, used: Ints) -> Ints:
    """Return each row's place of its step in `used`, which is sorted; -1 for other steps."""
    column = table["step"]
    if not len(used):
        return np.full(len(column), -1, dtype=np.int64)
    steps, is_known = column, np.True_
    if column.null_count:
        steps, is_known = column.fill_null(-1), column.is_valid().to_numpy()
    numbers = steps.to_numpy()
    if used[-1] - used[0] == len(used) - 1:  # none is missing, and nothing has to be searched
        place = np.clip(numbers - used[0], 0, len(used) - 1)
    else:
        place = np.minimum(np.searchsorted(used, numbers), len(used) - 1)
    found = (used[place] == numbers) & is_known
    return np.asarray(np.where(found, place, -1), dtype=np.int64)


def equals(column: pa.ChunkedArray, value: str) -> npt.NDArray[np.bool_]:
    """Return which rows of a dictionary column hold a value, without decoding the column."""
    whole = _encoded(column)
    is_wanted = pc.equal(whole.dictionary, value).to_numpy(zero_copy_only=False)
    return np.append(is_wanted, False)[_codes(whole)]  # a null's code is -1


def smallest(values: Ints) -> Ints:
    """Return numbers in the smallest type that holds them."""
    least, most = int(values.min(initial=0)), int(values.max(initial=0))
    kind = np.promote_types(np.min_scalar_type(least), np.min_scalar_type(most))
    if kind.itemsize == np.dtype(np.int64).itemsize:
        kind = np.dtype(np.int64)  # an unsigned number and a signed one would add up to a float
    return values.astype(kind)


def number_values(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values, ascending, and the place of each value among them."""
    if not len(values):
        return values, np.empty(0, dtype=np.int64)
    least, most = int(values.min()), int(values.max())
    if most - least > MOST_SPARSE * len(values):
        distinct, place = np.unique(values, return_inverse=True)
        return distinct, place
    is_there = np.zeros(most - least + 1, dtype=bool)
    is_there[values - least] = True
    return np.flatnonzero(is_there) + least, (np.cumsum(is_there) - 1)[values - least]
