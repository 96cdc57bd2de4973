"""Finds what the job really waited for: the part of data and exchange that no work hid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.calls import Calls
from profkit.frame.columns import durations, equals, places_in, step_places
from profkit.frame.device_clock import Bools
from profkit.frame.estimate import Floats, Ints
from profkit.frame.exchange import HOST_BACKENDS, Exposure
from profkit.vocab import Phase

INPUT_PIECES = ("read", "decode", "collate", "queue")
_PLACE = ("rank", "step", "start_ns", "end_ns")
NOT_READY = "bucket not ready"
WAITING = "waiting for a late rank"
WAITING_IN_PIPELINE = "waiting for another rank"
"""The same with messages between two ranks: the sender may have its own work to do first."""
TRANSFER = "transfer"


@dataclass(frozen=True)
class AllreduceSplit:
    """The parts of each used step's exposed exchange, and what backward hid of it.

    All are sums over the ranks. Hidden time is not known if buckets have no ends of their own.
    """

    parts: Mapping[str, Ints]
    hidden_ns: Ints | None


def input_pieces(spans: pa.Table, exposed: pa.Table, used: Ints) -> tuple[Ints, Ints]:
    """Return how long each piece lay in its step's wait for data, and how long that wait was.

    The first is by (piece, step), the second by step. Only a step's own batch counts: workers that
    make later ones at the same time keep nobody waiting.
    """
    count = len(INPUT_PIECES)
    if not len(used):
        return np.zeros((count, 0), dtype=np.int64), np.zeros(0, dtype=np.int64)
    is_wait = equals(exposed["phase"], Phase.DATA.value) & (exposed["depth"].to_numpy() == 0)
    waits = exposed.select(_PLACE).filter(pa.array(is_wait))
    place = step_places(waits, used)
    length = durations(waits)[place >= 0]
    whole = np.bincount(place[place >= 0], weights=length, minlength=len(used)).astype(np.int64)
    piece = places_in(spans["name"], INPUT_PIECES)
    is_piece = (piece >= 0) & equals(spans["phase"], Phase.DATA.value)
    if not is_piece.any():  # the inside of the loader was not timed
        return np.zeros((count, len(used)), dtype=np.int64), whole
    place, inside = _overlaps(spans.select(_PLACE).filter(pa.array(is_piece)), waits, used)
    row = piece[is_piece] * len(used) + place
    kept = place >= 0
    sums = np.bincount(row[kept], weights=inside[kept], minlength=count * len(used))
    return sums.reshape(count, len(used)).astype(np.int64), whole


def share_data(sums: Ints, whole: Ints) -> dict[str, Ints]:
    """Return each piece's part of the wait, by step.

    If a step takes several batches whose pieces overlap, they share the wait in proportion.
    """
    total = sums.sum(axis=0)
    share = np.divide(whole, total, out=np.ones(len(whole)), where=total > 0)
    share = np.minimum(1.0, share)
    parts = {}
    for piece, row in zip(INPUT_PIECES, sums, strict=True):
        if row.any():
            parts[piece] = np.floor(row * share).astype(np.int64)
    return parts


def _overlaps(pieces: pa.Table, waits: pa.Table, used: Ints) -> tuple[Ints, Floats]:
    """Return each piece's place in `used`, and its overlap with waits of its rank and step."""
    place, key = _step_keys(pieces, used)
    _, wait_key = _step_keys(waits, used)
    order = np.argsort(wait_key, kind="stable")
    wait_key = wait_key[order]
    opens, closes = waits["start_ns"].to_numpy()[order], waits["end_ns"].to_numpy()[order]
    first = np.searchsorted(wait_key, key, side="left")
    last = np.searchsorted(wait_key, key, side="right")
    start, end = pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy()
    inside = np.zeros(len(key))
    for further in range(int((last - first).max(initial=0))):
        rows = np.flatnonzero(first + further < last)
        wait = first[rows] + further
        overlap = np.minimum(end[rows], closes[wait]) - np.maximum(start[rows], opens[wait])
        inside[rows] += np.maximum(0, overlap)
    return place, inside


def _step_keys(rows: pa.Table, used: Ints) -> tuple[Ints, Ints]:
    """Return the place of each row's step in `used`, and a number for its step and rank."""
    place = step_places(rows, used)
    return place, place + rows["rank"].to_numpy().astype(np.int64) * (len(used) + 1)


def untimed_exchanges(
    collectives: pa.Table | Calls, timed: pa.Table, used: Ints, *, with_calls: bool = False
) -> Bools:
    """Return in which steps a device exchanged gradients and nobody timed its wait for them.

    `timed` are the rank and step of each wait with device times. `with_calls` includes collectives
    that the job or a library of its own calls, as FSDP does. Importers compute the waits for those.
    """
    rows = collectives.layout if isinstance(collectives, Calls) else collectives
    if not with_calls:
        rows = rows.filter(rows["bucket"].is_valid())
    by_host = pc.is_in(rows["backend"].cast(pa.string()), pa.array(HOST_BACKENDS))
    rows = rows.filter(pc.invert(by_host))
    place, key = _step_keys(rows, used)
    if isinstance(collectives, Calls):
        ranks = np.array(collectives.ranks, dtype=np.int64)
        place = np.tile(np.unique(place[place >= 0]), len(ranks))
        key = place + np.repeat(ranks * (len(used) + 1), len(place) // len(ranks))
    missing = (place >= 0) & ~np.isin(key, _step_keys(timed, used)[1])
    return np.asarray(np.bincount(place[missing], minlength=len(used)) > 0)


def split_allreduce(exposure: Exposure) -> AllreduceSplit | None:
    """Split the exposed exchange by step: not ready, waiting for a late rank, or transfer.

    It is `None` if no rank recorded collectives, or if some were not seen on all of their ranks:
    then nobody can tell waiting from transfer.
    """
    found = exposure.found
    if not exposure.by_rank or found.count > found.matched_count:
        return None
    not_ready, waiting, transfer, hidden = np.rint(exposure.by_step).astype(np.int64)
    name = WAITING_IN_PIPELINE if found.has_messages else WAITING
    parts = {NOT_READY: not_ready, name: waiting, TRANSFER: transfer}
    return AllreduceSplit(parts, None if found.ends_shared else hidden)
