"""How fast collectives moved their bytes: algorithm and bus bandwidth, by communicator and operation.

A collective's time is its shortest over the ranks, counted from where the communicator was done
with the one before: what lies before is waiting, for a late rank or in the queue. Bus bandwidth is
what each link carried, and compares over operations and numbers of ranks; the factors are those
of NVIDIA's nccl-tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.ceilings import Ceilings, Links
from profkit.analysis.estimate import Floats, Ints

FACTORS: Final[Mapping[str, Callable[[int], float]]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "gather": lambda ranks: (ranks - 1) / ranks,
    "scatter": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "reduce": lambda ranks: 1.0,
    "send": lambda ranks: 1.0,
    "recv": lambda ranks: 1.0,
}
"""Bytes over the bus for each byte of the message, the message being all ranks' parts together."""


_Key: TypeAlias = tuple[str, str, str, int]
"""A communicator, an operation, a backend, and how many ranks."""

MEASURED_ALONE: Final = "all_reduce"
"""The operation that `profkit ceilings --links` measures; another one is held against nothing."""


@dataclass(frozen=True)
class LinkUse:
    """One operation of one communicator, over the used steps. Bus bandwidth is null for an operation without a factor, and for one rank."""

    communicator: str
    op: str
    backend: str
    group_size: int
    messages_per_step: float
    bytes_per_step: float
    transfer_ns_per_step: float
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: float | None
    ceiling_bus_bytes_per_s: float | None
    """What the same sizes reach alone, where `profkit ceilings --links` has measured it."""

    @property
    def share_of_ceiling(self) -> float | None:
        return _share(self.bus_bytes_per_s, self.ceiling_bus_bytes_per_s)


@dataclass(frozen=True)
class SizeUse:
    """The messages of one size that one operation of a communicator sent over the used steps."""

    communicator: str
    op: str
    backend: str
    group_size: int
    bytes: int
    messages_per_step: float
    transfer_ns: float
    """The median over the messages."""
    bus_bytes_per_s: float | None
    ceiling_bus_bytes_per_s: float | None
    """What a message of this size reaches alone."""

    @property
    def share_of_ceiling(self) -> float | None:
        return _share(self.bus_bytes_per_s, self.ceiling_bus_bytes_per_s)


def _share(rate: float | None, ceiling: float | None) -> float | None:
    return rate / ceiling if rate is not None and ceiling else None


def link_use(
    collectives: pa.Table, used: Ints, ceilings: Ceilings | None = None
) -> tuple[LinkUse, ...]:
    """Every communicator and operation of the used steps, those with most bytes first."""
    found = (
        _use(*key, size, transfer, len(used), ceilings)
        for key, size, transfer in _by_operation(collectives, used)
    )
    return tuple(sorted(found, key=lambda use: -use.bytes_per_step))


def size_use(
    collectives: pa.Table, used: Ints, ceilings: Ceilings | None = None
) -> tuple[SizeUse, ...]:
    """The same by the size of the messages, the sizes of each operation ascending."""
    return tuple(
        _use_of_size(key, int(each), transfer[size == each], len(used), ceilings)
        for key, size, transfer in _by_operation(collectives, used)
        for each in np.unique(size)
    )


def _by_operation(collectives: pa.Table, used: Ints) -> Iterator[tuple[_Key, Floats, Floats]]:
    """Each communicator and operation of the used steps, with the sizes of its messages and their transfers."""
    rows = collectives.filter(pc.is_in(collectives["step"], pa.array(used.tolist(), pa.int64())))
    if not rows.num_rows:
        return
    transfer, first = _transfers(rows)
    kept = rows.take(pa.array(first))
    names = [kept[name].cast(pa.string()).to_pylist() for name in ("communicator", "op", "backend")]
    size = kept["bytes"].to_numpy().astype(np.float64)
    places: dict[_Key, list[int]] = {}
    for place, key in enumerate(zip(*names, kept["group_size"].to_pylist(), strict=True)):
        places.setdefault(key, []).append(place)
    for key, mine in places.items():
        yield key, size[mine], transfer[mine]


def _transfers(rows: pa.Table) -> tuple[Floats, Ints]:
    """For each collective its time on the rank where it was shortest, and that rank's row."""
    rank, sequence = (rows[name].to_numpy().astype(np.int64) for name in ("rank", "sequence"))
    communicator = rows["communicator"].combine_chunks().indices.to_numpy().astype(np.int64)
    own = _own_times(
        rank * (communicator.max() + 1) + communicator,
        sequence,
        rows["start_ns"].to_numpy(),
        rows["end_ns"].to_numpy(),
    )
    order = np.lexsort((own, sequence, communicator))
    fresh = np.append(True, (np.diff(communicator[order]) != 0) | (np.diff(sequence[order]) != 0))
    return own[order[fresh]], order[fresh]


def _own_times(lane: Ints, sequence: Ints, start: Ints, end: Ints) -> Floats:
    """Each one's time on its rank, from where the communicator was free: collectives of one communicator run in their order."""
    order = np.lexsort((sequence, lane))
    own = np.empty(len(order), dtype=np.float64)
    for places in np.split(order, np.flatnonzero(np.diff(lane[order])) + 1):
        free = np.maximum.accumulate(np.append(start[places[0]], end[places][:-1]))
        own[places] = np.maximum(end[places] - np.maximum(start[places], free), 0)
    return own


def _use_of_size(
    key: _Key, size: int, transfer: Floats, steps: int, ceilings: Ceilings | None
) -> SizeUse:
    communicator, op, backend, ranks = key
    took, factor, links = (
        float(np.median(transfer)),
        _factor(op, ranks),
        _links(op, backend, ranks, ceilings),
    )
    return SizeUse(
        communicator=communicator,
        op=op,
        backend=backend,
        group_size=ranks,
        bytes=size,
        messages_per_step=len(transfer) / steps,
        transfer_ns=took,
        bus_bytes_per_s=size * factor * 1e9 / took
        if factor is not None and size > 0 and took > 0
        else None,
        ceiling_bus_bytes_per_s=links.at(size)
        if links and factor is not None and size > 0
        else None,
    )


def _factor(op: str, ranks: int) -> float | None:
    return FACTORS[op](ranks) if op in FACTORS and ranks > 1 else None


def _links(op: str, backend: str, ranks: int, ceilings: Ceilings | None) -> Links | None:
    return ceilings.links_of(backend, ranks) if ceilings and op == MEASURED_ALONE else None


def _use(
    communicator: str,
    op: str,
    backend: str,
    ranks: int,
    size: Floats,
    transfer: Floats,
    steps: int,
    ceilings: Ceilings | None,
) -> LinkUse:
    """Time is counted as the median of each size, so that one that was disturbed does not count."""
    factor, links = _factor(op, ranks), _links(op, backend, ranks, ceilings)
    sizes, which, counts = np.unique(size, return_inverse=True, return_counts=True)
    seconds = (
        float(
            sum(count * np.median(transfer[which == place]) for place, count in enumerate(counts))
        )
        / 1e9
    )
    algorithm = float(size.sum()) / seconds if seconds > 0 and size.any() else None
    return LinkUse(
        communicator=communicator,
        op=op,
        backend=backend,
        group_size=ranks,
        messages_per_step=len(size) / steps,
        bytes_per_step=float(size.sum()) / steps,
        transfer_ns_per_step=seconds * 1e9 / steps,
        algorithm_bytes_per_s=algorithm,
        bus_bytes_per_s=algorithm * factor
        if algorithm is not None and factor is not None
        else None,
        ceiling_bus_bytes_per_s=_alone(sizes, counts, links)
        if links and factor is not None
        else None,
    )


def _alone(sizes: Floats, counts: Ints, links: Links) -> float | None:
    """The bus bandwidth of these messages one after the other, each as fast as alone."""
    seconds = float(
        sum(
            count * size / links.at(size)
            for size, count in zip(sizes, counts, strict=True)
            if size > 0
        )
    )
    return float((sizes * counts).sum()) / seconds if seconds > 0 else None
