"""Collectives of some steps, less those that a rank has in a step that is missing.

Ranks need not end a step at the same collective. In a loop without a loader, a step ends with the
next forward, and the last stage of a pipeline receives before that. So at each place where steps
are missing, such as control steps, a rank may lack what the others have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.columns import codes_of, number_values
from profkit.frame.device_clock import Bools
from profkit.frame.estimate import Ints


def group_rows(rows: pa.Table) -> tuple[Ints, Ints, Bools]:
    """Return each row's collective, and the quickest row and completeness of each collective."""
    length = rows["end_ns"].to_numpy() - rows["start_ns"].to_numpy()
    group = number_collectives(rows["sequence"].to_numpy(), codes_of(rows["communicator"]))
    quickest = first_least(length, group)
    size = rows["group_size"].to_numpy()[quickest]
    return group, quickest, np.bincount(group, minlength=len(quickest)) == size


def number_collectives(sequence: Ints, communicator: Ints) -> Ints:
    """Number the collectives by communicator, then sequence; rows of one have its number."""
    if not len(sequence):
        return np.empty(0, dtype=np.int64)
    distinct, place = number_values(sequence)
    return number_values((communicator + 1) * len(distinct) + place)[1]


def first_least(values: npt.NDArray[Any], group: Ints) -> Ints:
    """Return the place of the least value of each group, the first of equal ones."""
    least = np.full(int(group.max(initial=-1)) + 1, np.inf)
    np.minimum.at(least, group, values)
    found = np.flatnonzero(values == least[group])[::-1]
    first = np.zeros(len(least), dtype=np.int64)
    first[group[found]] = found  # of several, the last one that is written stays
    return first


def whole_collectives(collectives: pa.Table, used: Ints) -> pa.Table:
    """Return the collectives of the used steps, less those that a rank has in another step."""
    # Given a numpy array, `pa.array` would import pandas where it is installed.
    chosen = pc.is_in(collectives["step"], pa.array(used.tolist(), pa.int64()))
    rows = collectives.filter(chosen)
    group, _, matched = group_rows(rows)
    if matched.all():
        return rows
    calls = _Calls.of(collectives)
    places = np.flatnonzero(chosen.to_numpy())
    cut = np.zeros(len(matched), dtype=bool)
    cut[list(_find_cut(calls, places, group, matched))] = True
    return rows.filter(pa.array(~cut[group]))


MOST_APART = 0.5
"""So many calls may be in other steps on other ranks: of two messages, one may end a step."""


class _Calls(NamedTuple):
    """Columns of all collectives of a run, and their order by communicator, rank and sequence."""

    communicator: Ints
    sequence: Ints
    rank: Ints
    step: Ints
    size: Ints
    order: Ints

    @classmethod
    def of(cls, table: pa.Table) -> _Calls:
        communicator, rank = codes_of(table["communicator"]), table["rank"].to_numpy()
        sequence, step = table["sequence"].to_numpy(), table["step"].fill_null(-1).to_numpy()
        order = np.lexsort((sequence, rank, communicator))
        return cls(communicator, sequence, rank, step, table["group_size"].to_numpy(), order)

    def by_rank(self, code: int) -> dict[int, Ints]:
        """Return each rank's calls of a communicator, in their order."""
        first, end = np.searchsorted(self.communicator[self.order], (code, code + 1))
        own = self.order[first:end]
        parts = np.split(own, np.flatnonzero(np.diff(self.rank[own])) + 1)
        return {int(self.rank[part[0]]): part for part in parts}

    def agree(self, code: int) -> bool:
        """Return true if the ranks have most calls of a communicator in the same steps.

        If a rank makes more calls than the others, their numbers soon name different ones.
        """
        first, end = np.searchsorted(self.communicator[self.order], (code, code + 1))
        own = self.order[first:end]
        own = own[np.argsort(self.sequence[own], kind="stable")]
        starts = np.flatnonzero(np.diff(self.sequence[own], prepend=-1))
        least = np.minimum.reduceat(self.step[own], starts)
        most = np.maximum.reduceat(self.step[own], starts)
        return bool((least != most).mean() <= MOST_APART)


def _find_cut(calls: _Calls, places: Ints, group: Ints, matched: Bools) -> Iterator[int]:
    """Yield the collectives that each missing rank has in a step that is not among the used."""
    lacking = np.flatnonzero(~matched[group])
    lacking = lacking[np.argsort(group[lacking], kind="stable")]
    of_rank: dict[int, dict[int, Ints]] = {}
    for same in np.split(lacking, np.flatnonzero(np.diff(group[lacking])) + 1):
        known = places[same]
        code = int(calls.communicator[known[0]])
        if code not in of_rank:
            of_rank[code] = calls.by_rank(code) if calls.agree(code) else {}
        if len(of_rank[code]) != calls.size[known[0]]:
            continue  # a rank has no rows of this communicator at all
        others = set(of_rank[code]) - set(calls.rank[known].tolist())
        if all(_is_elsewhere(calls, of_rank[code][rank], known[0]) for rank in others):
            yield int(group[same[0]])


def _is_elsewhere(calls: _Calls, own: Ints, known: int) -> bool:
    """Return true if a rank has a collective in another step, or in one without rows."""
    sequence, step = calls.sequence[own], calls.step[own]
    place = int(np.searchsorted(sequence, calls.sequence[known]))
    if place < len(own) and sequence[place] == calls.sequence[known]:
        return True
    if place == len(own):
        return bool(step[-1] >= calls.step[known])
    if place == 0:
        return bool(step[0] <= calls.step[known])
    before, after = int(step[place - 1]), int(step[place])
    if after - before < 2:
        return False
    mine = calls.step[calls.rank == calls.rank[own[0]]]
    recorded = np.unique(mine[(mine > before) & (mine < after)])
    return len(recorded) < after - before - 1
