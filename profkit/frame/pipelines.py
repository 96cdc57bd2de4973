"""The ranks of a model that is split among them: its pipelines, and its dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.columns import codes_of
from profkit.frame.device_clock import Bools
from profkit.frame.estimate import Floats, Ints
from profkit.vocab import MODEL_DIMENSIONS

SEND, RECEIVE = "send", "recv"
MESSAGES = (SEND, RECEIVE)
"""Operations between two ranks: one that was begun early waits for nobody."""


def find_pipelines(collectives: pa.Table) -> list[list[int]]:
    """Return the ranks of each pipeline: neighbours send each other messages in both ways.

    Activations go one way and gradients the other. A rank that only sends to another one, as one
    that reports its figures, is no stage of it.
    """
    op = collectives["op"].cast(pa.string())
    is_message = pc.is_in(op, pa.array(MESSAGES))
    rows = collectives.filter(is_message)
    is_send = pc.equal(op.filter(is_message), SEND).to_numpy()
    sequence, communicator = rows["sequence"].to_numpy(), codes_of(rows["communicator"])
    order = np.lexsort((~is_send, sequence, communicator))  # a message's sender comes first
    rank, is_send = rows["rank"].to_numpy()[order], is_send[order]
    whole = (np.diff(communicator[order]) == 0) & (np.diff(sequence[order]) == 0)
    whole &= is_send[:-1] & ~is_send[1:]
    ways = np.unique(np.stack([rank[:-1][whole], rank[1:][whole]]), axis=1)
    pairs = set(zip(*ways.tolist(), strict=True))
    together: dict[int, set[int]] = {}
    for one, other in pairs:
        if (other, one) in pairs:
            joined = together.get(one, {one}) | together.get(other, {other})
            for each in joined:
                together[each] = joined
    found = {min(ranks): sorted(ranks) for ranks in together.values()}
    return [*found.values()]


def join_stages(pipelines: Sequence[Sequence[int]], rank: Ints, group: Ints, count: int) -> Bools:
    """Return which of so many groups of rows have two ranks of one pipeline."""
    number = np.full(max(int(rank.max(initial=0)), *map(max, pipelines), 0) + 1, -1)
    for place, ranks in enumerate(pipelines):
        number[ranks] = place
    own = number[rank]
    key = group[own >= 0] * max(1, len(pipelines)) + own[own >= 0]
    keys, counts = np.unique(key, return_counts=True)
    found = np.zeros(count, dtype=bool)
    found[keys[counts > 1] // max(1, len(pipelines))] = True
    return found


def longest_transfers(rows: pa.Table, group: Ints, count: int) -> Floats:
    """Return how long each message took at most, by the clocks of its two ranks.

    Both may have begun it long before it was sent, and have waited for it long after, so that
    neither duration shows the transfer. It lies between the sender's begin and the receiver's end.
    The clocks may differ. Messages in both ways show the limits of the difference: none ends before
    it begins. It is taken as none if that is within the limits, otherwise as their middle. If
    messages go only one way, or the clocks drift apart, it is not known, and there is no bound.
    """
    op = rows["op"].cast(pa.string())
    ends = {}
    for name in MESSAGES:
        places = np.flatnonzero(pc.equal(op, name).to_numpy())
        ends[name] = np.full(count, -1)
        ends[name][group[places]] = places
    bounds = np.full(count, np.inf)
    whole = np.flatnonzero((ends[SEND] >= 0) & (ends[RECEIVE] >= 0))
    sent, received = ends[SEND][whole], ends[RECEIVE][whole]
    rank = rows["rank"].to_numpy().astype(np.int64)
    taken = rows["end_ns"].to_numpy()[received] - rows["start_ns"].to_numpy()[sent]
    ways = np.stack([rank[sent], rank[received]])
    for one, other in np.unique(ways, axis=1).T.tolist():
        there = (ways[0] == one) & (ways[1] == other)
        back = (ways[0] == other) & (ways[1] == one)
        if one > other or not back.any():
            continue  # each pair once
        most, least = int(taken[there].min()), -int(taken[back].min())
        if most < least:
            continue
        ahead = 0 if least <= 0 <= most else (most + least) / 2
        bounds[whole[there]] = taken[there] - ahead
        bounds[whole[back]] = taken[back] + ahead
    return bounds


def of_model_dimensions(rows: pa.Table) -> pa.ChunkedArray:
    """Return which collectives are of a dimension along which a model is split."""
    names = rows["dimension"].cast(pa.string())
    found = filter(is_model_dimension, pc.unique(names.drop_null()).to_pylist())
    return pc.is_in(names, pa.array(found, pa.string()))


def is_model_dimension(name: str) -> bool:
    return not MODEL_DIMENSIONS.isdisjoint(name.lower().split("_"))
