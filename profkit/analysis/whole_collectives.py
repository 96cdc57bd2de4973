"""The collectives of some steps, as far as all of their ranks have them in steps that were kept.

Ranks need not end a step at the same collective. In a loop without a loader, a step ends with the
next forward, and the last stage of a pipeline receives before that. So at each place where steps
are missing, such as control steps, a rank may lack what the others have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.columns import codes_of
from profkit.analysis.device_clock import Bools
from profkit.analysis.estimate import Ints


def group_rows(rows: pa.Table) -> tuple[Ints, Ints, Bools]:
    """Return each row's collective, and the quickest row and completeness of each collective."""
    length = rows["end_ns"].to_numpy() - rows["start_ns"].to_numpy()
    sequence, communicator = rows["sequence"].to_numpy(), codes_of(rows["communicator"])
    order = np.lexsort((length, sequence, communicator))
    first = np.ones(len(order), dtype=bool)
    first[1:] = (np.diff(communicator[order]) != 0) | (np.diff(sequence[order]) != 0)
    group = np.empty(len(order), dtype=np.int64)
    group[order] = np.cumsum(first) - 1
    quickest = order[first]  # sorted by duration within the collective
    size = rows["group_size"].to_numpy()[quickest]
    return group, quickest, np.bincount(group, minlength=len(quickest)) == size


def whole_collectives(collectives: pa.Table, used: Ints) -> pa.Table:
    """Return the collectives of the used steps, less those that a rank has in another step."""
    # Given a numpy array, `pa.array` would import pandas where it is installed.
    chosen = pc.is_in(collectives["step"], pa.array(used.tolist(), pa.int64()))
    rows = collectives.filter(chosen)
    group, _, matched = group_rows(rows)
    if matched.all():
        return rows
    found = _Calls(
        codes_of(collectives["communicator"]),
        collectives["sequence"].to_numpy(),
        collectives["rank"].to_numpy(),
        collectives["step"].fill_null(-1).to_numpy(),
        collectives["group_size"].to_numpy(),
    )
    places = np.flatnonzero(chosen.to_numpy())
    cut = np.zeros(len(matched), dtype=bool)
    cut[list(_find_cut(found, places, group, matched))] = True
    return rows.filter(pa.array(~cut[group]))


class _Calls(NamedTuple):
    """Columns of all collectives of a run."""

    communicator: Ints
    sequence: Ints
    rank: Ints
    step: Ints
    size: Ints


def _find_cut(calls: _Calls, places: Ints, group: Ints, matched: Bools) -> Iterator[int]:
    """Yield the collectives that each missing rank has in a step that is not among the used."""
    lacking = np.flatnonzero(~matched[group])
    recorded: dict[int, Ints] = {}
    for rank in np.unique(calls.rank).tolist():
        recorded[rank] = np.unique(calls.step[calls.rank == rank])
    for code in np.unique(calls.communicator[places[lacking]]).tolist():
        mine = np.flatnonzero(calls.communicator == code)
        members = np.unique(calls.rank[mine])
        if len(members) != calls.size[mine[0]]:
            continue  # a rank has no rows of this communicator at all
        own: dict[int, Ints] = {}
        for rank in members.tolist():
            of_rank = mine[calls.rank[mine] == rank]
            own[rank] = of_rank[np.argsort(calls.sequence[of_rank], kind="stable")]
        rows = lacking[calls.communicator[places[lacking]] == code]
        rows = rows[np.argsort(group[rows], kind="stable")]
        for same in np.split(rows, np.flatnonzero(np.diff(group[rows])) + 1):
            known = places[same]
            others = set(own) - set(calls.rank[known].tolist())
            if all(_is_elsewhere(calls, own[each], recorded[each], known[0]) for each in others):
                yield int(group[same[0]])


def _is_elsewhere(calls: _Calls, own: Ints, recorded: Ints, known: int) -> bool:
    """Return true if a rank has a collective in another step, or in one that was not recorded."""
    sequence, step = calls.sequence[own], calls.step[own]
    place = int(np.searchsorted(sequence, calls.sequence[known]))
    if place < len(own) and sequence[place] == calls.sequence[known]:
        return True
    if place == len(own):
        return bool(step[-1] >= calls.step[known])
    if place == 0:
        return bool(step[0] <= calls.step[known])
    before, after = step[place - 1], step[place]
    between = np.searchsorted(recorded, after) - np.searchsorted(recorded, before, side="right")
    return bool(between < after - before - 1)
