"""The own work of ranks between the places of a step in which they meet.

Ranks meet where they wait for each other: in the exchange of gradients, or in the broadcast of a
model's buffers. A rank that is late before one meeting is waited for there, whoever is late before
the next.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.columns import places_in, rows_of_rank, step_places
from profkit.analysis.device_clock import Bools
from profkit.analysis.estimate import Floats, Ints
from profkit.analysis.intervals import covered_each
from profkit.analysis.lateness import WORK, RankWork
from profkit.analysis.phases import UNKNOWN
from profkit.analysis.unknown_places import main_thread
from profkit.vocab import Phase

MOST_MEETINGS = 64
"""Ranks that meet more often in a step, such as those of FSDP, are looked at as a whole."""

LEAST_ALIKE = 0.9
"""The ranks must meet as often in at least this share of the steps."""


def work_by_segment(steps: pa.Table, spans: pa.Table, used: Ints) -> tuple[RankWork, ...]:
    """Return the own work of each rank before each meeting of a step, in their order.

    What follows the last meeting of a step is work before the first one of the next. There is
    nothing unless the ranks meet several times in a step, and equally often.
    """
    ranks = np.unique(steps["rank"].to_numpy()).astype(np.int64)
    own = []
    counts = np.zeros((len(ranks), len(used)), dtype=np.int64)
    for place, rank in enumerate(ranks.tolist()):
        mine = rows_of_rank(spans, rank)
        mine = mine.filter(pc.equal(mine["thread"].cast(pa.string()), main_thread(mine) or ""))
        at = step_places(mine, used)
        mine, at = mine.filter(pa.array(at >= 0)), at[at >= 0]
        own.append((rows_of_rank(steps, rank), mine, at))
        meets = places_in(mine["phase"], (Phase.ALLREDUCE.value,)) == 0
        counts[place] = np.bincount(at[meets], minlength=len(used))
    alike = (counts == counts[:1]).all(axis=0)
    if len(ranks) < 2 or not alike.any():
        return ()
    ((meetings, _),) = Counter(counts[0][alike].tolist()).most_common(1)
    kept = alike & (counts[0] == meetings)
    if not 2 <= meetings <= MOST_MEETINGS or kept.mean() < LEAST_ALIKE:
        return ()
    parts, segments = [], []
    for each in own:
        parts.append(_split(*each, used, kept, meetings))
    for ns in np.stack(parts, axis=1):
        segments.append(RankWork(tuple(ranks.tolist()), WORK, ns))
    return tuple(segments)


def _split(
    steps: pa.Table, spans: pa.Table, at: Ints, used: Ints, kept: Bools, meetings: int
) -> Floats:
    """Return one rank's own work by (segment, phase, step), in the steps that are kept."""
    place = step_places(steps, used)
    edges = np.zeros((2, len(used)), dtype=np.int64)
    for row, name in enumerate(("start_ns", "end_ns")):
        edges[row, place[place >= 0]] = steps[name].to_numpy()[place >= 0]
    begin, end = edges[:, kept]
    is_meeting = (places_in(spans["phase"], (Phase.ALLREDUCE.value,)) == 0) & kept[at]
    start, until = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    # Meetings of one thread do not overlap, so their order in time is that of steps.
    in_time = np.argsort(start[is_meeting])
    opened = start[is_meeting][in_time].reshape(-1, meetings)
    closed = until[is_meeting][in_time].reshape(-1, meetings)
    froms = np.concatenate([begin[:, None], closed], axis=1)
    untils = np.concatenate([opened, end[:, None]], axis=1)
    outer = spans["depth"].to_numpy() == 0
    times = np.zeros((meetings + 1, len(WORK), len(begin)))
    for number, name in enumerate(WORK):
        mine = outer & (places_in(spans["phase"], (name,)) == 0)
        if name != UNKNOWN and mine.any():
            covered = covered_each(start[mine], until[mine], froms.ravel(), untils.ravel())
            times[:, number] = covered.reshape(froms.shape).T
    times[:, WORK.index(UNKNOWN)] = (untils - froms).T - times.sum(axis=1)
    times[0] += times[-1]
    return times[:-1]
