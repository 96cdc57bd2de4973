"""What the job really waited for: the part of input and exchange that no other work hid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis import exchange
from profkit.analysis.estimate import Floats, Ints
from profkit.vocab import Phase

INPUT_PIECES = ("read", "decode", "collate", "queue")
NOT_READY = "bucket not ready"
WAITING = "waiting for a late rank"
TRANSFER = "transfer"


@dataclass(frozen=True)
class AllreduceSplit:
    """The exposed exchange of each used step in its parts, and what backward hid of it; sums over the ranks."""

    parts: Mapping[str, Ints]
    hidden_ns: Ints


def exposed_spans(spans: pa.Table) -> pa.Table:
    """The spans on the device's clock, where it was read.

    The device reaches a border only when the host has issued it and all work before it is done. So
    of a span that the host alone knows, such as the wait for data, only that part was exposed in
    which the device had reached the end of its last phase and not yet the beginning of its next.
    """
    on_device = pc.and_(
        spans["device_start_ns"].is_valid(), spans["device_end_ns"].is_valid()
    ).to_numpy()
    if not on_device.any():
        return spans
    rank, depth = spans["rank"].to_numpy(), spans["depth"].to_numpy()
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    device_start = np.where(on_device, spans["device_start_ns"].fill_null(0).to_numpy(), start)
    device_end = np.where(on_device, spans["device_end_ns"].fill_null(0).to_numpy(), end)
    for each in np.unique(rank[on_device]):
        outer = np.flatnonzero((rank == each) & on_device & (depth == 0))
        waits = np.flatnonzero((rank == each) & ~on_device & (depth == 0))
        device_start[waits], device_end[waits] = _clip(
            start[waits], end[waits], start[outer], device_start[outer], device_end[outer]
        )
    return _replace_times(spans, device_start, device_end).filter(
        pa.array(_counted(spans, rank, on_device))
    )


def _clip(start: Ints, end: Ints, host_start: Ints, opens: Ints, closes: Ints) -> tuple[Ints, Ints]:
    """Of each interval of the host, what lies between the device's last end before it and its next beginning."""
    if not len(host_start):
        return start, end
    order = np.argsort(host_start, kind="stable")
    host_start, opens, reach = host_start[order], opens[order], np.maximum.accumulate(closes[order])
    before = np.searchsorted(host_start, start, side="left") - 1
    after = np.searchsorted(host_start, end, side="left")
    idle_from = np.where(before >= 0, np.maximum(start, reach[np.maximum(before, 0)]), start)
    idle_until = np.where(
        after < len(opens), np.minimum(end, opens[np.minimum(after, len(opens) - 1)]), end
    )
    return idle_from, np.maximum(idle_from, idle_until)


def _counted(
    spans: pa.Table, rank: Ints, on_device: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Not the pieces of a wait: they are known on the host alone, and would not lie in the clipped wait any more."""
    piece = (spans["depth"].to_numpy() > 0) & pc.equal(spans["phase"], Phase.DATA.value).to_numpy()
    return np.asarray(~(piece & np.isin(rank, np.unique(rank[on_device]))))


def _replace_times(spans: pa.Table, start: Ints, end: Ints) -> pa.Table:
    for name, values in (("start_ns", start), ("end_ns", end)):
        spans = spans.set_column(
            spans.schema.get_field_index(name), spans.schema.field(name), pa.array(values)
        )
    return spans


def split_input(spans: pa.Table, exposed: pa.Table, used: Ints) -> dict[str, Ints]:
    """What was being done to the batch while the job waited for it, by step; nothing where loaders were not timed."""
    return share_input(*input_pieces(spans, exposed, used))


def input_pieces(spans: pa.Table, exposed: pa.Table, used: Ints) -> tuple[Ints, Ints]:
    """By piece and step, how long it lay in its step's wait for input; and how long that wait was.

    Only a step's own batch counts: workers that make later ones at the same time keep nobody waiting.
    """
    data = pc.equal(spans["phase"], Phase.DATA.value)
    pieces = spans.filter(
        pc.and_(data, pc.is_in(spans["name"].cast(pa.string()), pa.array(INPUT_PIECES)))
    )
    waits = exposed.filter(
        pc.and_(pc.equal(exposed["phase"], Phase.DATA.value), pc.equal(exposed["depth"], 0))
    )
    nothing = np.zeros((len(INPUT_PIECES), len(used)), dtype=np.int64)
    if not len(used):
        return nothing, np.zeros(0, dtype=np.int64)
    whole = np.bincount(*_placed(waits, used), minlength=len(used)).astype(np.int64)
    if not pieces.num_rows:
        return nothing, whole
    place, inside = _overlaps(pieces, waits, used)
    name = pieces["name"].to_pylist()
    code = np.array([INPUT_PIECES.index(each) for each in name])
    kept = place >= 0
    sums = np.bincount(
        (code * len(used) + place)[kept],
        weights=inside[kept],
        minlength=len(INPUT_PIECES) * len(used),
    ).reshape(-1, len(used))
    return sums.astype(np.int64), whole


def share_input(sums: Ints, whole: Ints) -> dict[str, Ints]:
    """Where a step takes several batches whose pieces overlap, each has its share of the wait."""
    share = np.minimum(
        1.0, np.divide(whole, sums.sum(axis=0), out=np.ones(len(whole)), where=sums.sum(axis=0) > 0)
    )
    return {
        piece: np.floor(row * share).astype(np.int64)
        for piece, row in zip(INPUT_PIECES, sums, strict=True)
        if row.any()
    }


def _placed(rows: pa.Table, used: Ints) -> tuple[Ints, Ints]:
    """The place of each row's step in `used`, and the row's duration; rows of other steps are left out."""
    place, length = _places(rows, used), rows["end_ns"].to_numpy() - rows["start_ns"].to_numpy()
    return place[place >= 0], length[place >= 0]


def _places(rows: pa.Table, used: Ints) -> Ints:
    """Each row's step as its place in `used`, -1 for other steps."""
    step = rows["step"].fill_null(-1).to_numpy()
    where = np.minimum(np.searchsorted(used, step), len(used) - 1)
    return np.where(used[where] == step, where, -1)


def _overlaps(pieces: pa.Table, waits: pa.Table, used: Ints) -> tuple[Ints, Floats]:
    """How much of each piece lies in the waits of its own rank and step."""
    place = _places(pieces, used)
    key, wait_key = (
        _places(rows, used) + rows["rank"].to_numpy().astype(np.int64) * (len(used) + 1)
        for rows in (pieces, waits)
    )
    order = np.argsort(wait_key, kind="stable")
    wait_key, opens, closes = (
        wait_key[order],
        waits["start_ns"].to_numpy()[order],
        waits["end_ns"].to_numpy()[order],
    )
    first, last = (
        np.searchsorted(wait_key, key, side="left"),
        np.searchsorted(wait_key, key, side="right"),
    )
    start, end = pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy()
    inside = np.zeros(len(key))
    for further in range(int((last - first).max(initial=0))):
        rows = np.flatnonzero(first + further < last)
        wait = first[rows] + further
        inside[rows] += np.maximum(
            0, np.minimum(end[rows], closes[wait]) - np.maximum(start[rows], opens[wait])
        )
    return place, inside


def split_allreduce(collectives: pa.Table, spans: pa.Table, used: Ints) -> AllreduceSplit | None:
    """The exposed exchange by step: nothing was ready, a late rank was waited for, or data moved.

    `None` where no rank recorded collectives, or where some were not seen on all of their ranks:
    then nobody can tell waiting from transfer.
    """
    found = exchange.match_collectives(collectives, used)
    if not found.count or found.count > found.matched_count or not len(used):
        return None
    windows = exchange.exposed_windows(spans, used).sort_by("start_ns")
    totals = np.zeros((4, len(used)))
    for rank in np.unique(found.rank):
        totals += _split_rank(
            int(rank), found, windows.filter(pc.equal(windows["rank"], int(rank))), used
        )
    not_ready, waiting, transfer, hidden = np.rint(totals).astype(np.int64)
    return AllreduceSplit({NOT_READY: not_ready, WAITING: waiting, TRANSFER: transfer}, hidden)


def _split_rank(rank: int, found: exchange.Matched, own: pa.Table, used: Ints) -> Floats:
    mine = found.rank == rank
    start, end = found.start[mine], found.end[mine]
    opens, closes, place = own["start_ns"].to_numpy(), own["end_ns"].to_numpy(), _places(own, used)
    flying = exchange.covered_each(start, end, opens, closes)
    moving = exchange.covered_each(
        np.maximum(start, end - found.transfer[mine]), end, opens, closes
    )
    exposed = (closes - opens).astype(np.float64)
    parts = [
        np.bincount(place, weights=each, minlength=len(used))
        for each in (exposed - flying, flying - moving, moving)
    ]
    return np.stack([*parts, _in_flight(start, end, found.step[mine], used) - parts[1] - parts[2]])


def _in_flight(start: Ints, end: Ints, step: Ints, used: Ints) -> Floats:
    """For each step, how long at least one of its collectives was under way."""
    lows, highs = exchange.union(start, end)
    order = np.argsort(start, kind="stable")
    opener = order[np.searchsorted(start[order], lows, side="left")]
    return np.asarray(
        np.bincount(np.searchsorted(used, step[opener]), weights=highs - lows, minlength=len(used)),
        dtype=np.float64,
    )
