"""Algorithm and bus bandwidth of collectives, by communicator and operation.

A collective's time is its shortest over the ranks, counted from when its communicator finished the
one before: what lies before is waiting, for a late rank or in the queue. Bus bandwidth is what each
link carried, and is comparable over operations and numbers of ranks; the factors are those of
NVIDIA's nccl-tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from profkit.analysis.ceilings import Ceilings, Links
from profkit.frame.calls import Calls
from profkit.frame.columns import codes_of, rows_of_steps
from profkit.frame.estimate import Floats, Ints
from profkit.frame.exchange import is_end_shared
from profkit.frame.intervals import split_lanes
from profkit.frame.whole_collectives import first_least, number_collectives
from profkit.text import plural

FACTORS: Final[Mapping[str, Callable[[int], float]]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "gather": lambda ranks: (ranks - 1) / ranks,
    "scatter": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "reduce": lambda ranks: 1.0,
    "send": lambda ranks: 1.0,  # and recv
}
"""Bytes over the bus for each byte of the message, which is all ranks' parts together."""

SEND: Final = "send"
RECEIVE: Final = "recv"

MEASURED_ALONE: Final = "all_reduce"
"""The operation that `profkit ceilings --links` measures; others have no ceiling."""


@dataclass(frozen=True)
class LinkUse:
    """One operation of one communicator, over the used steps.

    Bus bandwidth is null for an operation without a factor, for one rank, and if `group_size` is 0
    because it is not known. If gradient buckets have no ends of their own, transfer and bandwidth
    are.
    """

    communicator: str
    op: str
    backend: str
    group_size: int
    messages_per_step: float
    bytes_per_step: float
    transfer_ns_per_step: float | None
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: float | None
    ceiling_bus_bytes_per_s: float | None
    """What the same sizes reach alone, if `profkit ceilings --links` has measured it."""

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
    transfer_ns: float | None
    """The median over the messages; null if gradient buckets have no ends of their own."""
    bus_bytes_per_s: float | None
    ceiling_bus_bytes_per_s: float | None
    """What a message of this size reaches alone."""

    @property
    def share_of_ceiling(self) -> float | None:
        return _share(self.bus_bytes_per_s, self.ceiling_bus_bytes_per_s)


def name_group(use: LinkUse | SizeUse) -> str:
    """Return the backend, and how many ranks take part."""
    ranks = "ranks not known"
    if use.group_size:
        ranks = plural(use.group_size, "rank")
    return f"{use.backend}, {ranks}"


def _share(rate: float | None, ceiling: float | None) -> float | None:
    return rate / ceiling if rate is not None and ceiling else None


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


class _Operation(NamedTuple):
    """One kind of collective."""

    communicator: str
    op: str
    backend: str
    group_size: int

    def factor(self) -> float | None:
        if self.op in FACTORS and self.group_size > 1:
            return FACTORS[self.op](self.group_size)
        return None

    def links(self, ceilings: Ceilings | None) -> Links | None:
        """Return the measured links, if the operation's bus bandwidth is comparable with them."""
        if ceilings and self.op == MEASURED_ALONE and self.group_size > 1:
            return ceilings.links_of(self.backend, self.group_size)
        return None


def link_use(
    collectives: pa.Table | Calls, used: Ints, ceilings: Ceilings | None = None
) -> tuple[LinkUse, ...]:
    """Return every communicator and operation of the used steps, most bytes first."""
    found = []
    steps = len(used)
    for operation, size, transfer in _by_operation(collectives, used):
        factor, links = operation.factor(), operation.links(ceilings)
        sizes, which, counts = np.unique(size, return_inverse=True, return_counts=True)
        total_ns = 0.0
        for place, count in enumerate(counts):
            own = transfer[which == place]
            # Each size counts with its median, so that messages that were disturbed do not. An
            # unknown size is zero, and stands for many sizes that have no common median.
            total_ns += float(count * np.median(own) if sizes[place] else own.sum())
        seconds = total_ns / 1e9  # not a number if some message has no end of its own
        algorithm = bus = None
        if seconds > 0 and size.any():
            algorithm = float(size.sum()) / seconds
            if factor is not None:
                bus = algorithm * factor
        use = LinkUse(
            *operation,
            messages_per_step=len(size) / steps,
            bytes_per_step=float(size.sum()) / steps,
            transfer_ns_per_step=_known(seconds * 1e9 / steps),
            algorithm_bytes_per_s=algorithm,
            bus_bytes_per_s=bus,
            ceiling_bus_bytes_per_s=links.mean_at(sizes, counts) if links else None,
        )
        found.append(use)
    return tuple(sorted(found, key=lambda use: -use.bytes_per_step))


def size_use(
    collectives: pa.Table, used: Ints, ceilings: Ceilings | None = None
) -> tuple[SizeUse, ...]:
    """Return the messages of each operation of the used steps by size, sizes ascending."""
    found = []
    for operation, size, transfer in _by_operation(collectives, used):
        factor, links = operation.factor(), operation.links(ceilings)
        for each in np.unique(size).astype(int).tolist():
            mine = transfer[size == each]
            took_ns = float(np.median(mine))
            bus = ceiling = None
            if factor is not None and each > 0 and took_ns > 0:
                bus = each * factor * 1e9 / took_ns
            if links and each > 0:
                ceiling = links.at(each)
            use = SizeUse(
                *operation,
                bytes=each,
                messages_per_step=len(mine) / len(used),
                transfer_ns=_known(took_ns),
                bus_bytes_per_s=bus,
                ceiling_bus_bytes_per_s=ceiling,
            )
            found.append(use)
    return tuple(found)


def _by_operation(
    collectives: pa.Table | Calls, used: Ints
) -> Iterator[tuple[_Operation, Floats, Floats]]:
    """Yield each operation of the used steps, with its messages' sizes and transfer times."""
    if isinstance(collectives, Calls):
        calls = collectives.of_steps(used)
        kept, transfer = calls.layout, _shortest_calls(calls)
    else:
        rows = rows_of_steps(collectives, used)
        if not rows.num_rows:
            return
        transfer, first = _shortest(rows)
        kept = rows.take(pa.array(first))
    size = kept["bytes"].to_numpy().astype(np.float64)
    names = [kept[name].cast(pa.string()).to_pylist() for name in ("communicator", "op", "backend")]
    places: dict[tuple[str, str, str, int], list[int]] = {}
    # One message is a send on one rank and a receive on the other, and either may be the quicker.
    names[1] = [SEND if op == RECEIVE else op for op in names[1]]
    for place, key in enumerate(zip(*names, kept["group_size"].to_pylist(), strict=True)):
        places.setdefault(key, []).append(place)
    for key, mine in places.items():
        yield _Operation(*key), size[mine], transfer[mine]


def _shortest(rows: pa.Table) -> tuple[Floats, Ints]:
    """Return each collective's time on the rank where it was shortest, and that rank's row."""
    rank, sequence = rows["rank"].to_numpy().astype(np.int64), rows["sequence"].to_numpy()
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    communicator = codes_of(rows["communicator"])
    lane = rank * (communicator.max() + 1) + communicator
    order = np.lexsort((sequence, lane))
    own = np.empty(len(order), dtype=np.float64)
    for places in split_lanes(order, lane):
        # Collectives of one communicator run in their order, so each waits for the one before.
        free = np.maximum.accumulate(np.append(start[places[0]], end[places][:-1]))
        own[places] = np.maximum(end[places] - np.maximum(start[places], free), 0)
    shared = is_end_shared(rows, with_last=True)
    group = number_collectives(sequence, communicator)
    first = first_least(np.where(shared, np.inf, own), group)
    own[shared] = math.nan
    return own[first], first


def _shortest_calls(calls: Calls) -> Floats:
    """Return the same of ranks that all made the same calls."""
    shortest, lanes = np.full(calls.layout.num_rows, np.inf), list(calls.lanes())
    for starts, ends in calls.times():
        for places in lanes:
            start, end = starts[places], ends[places]
            free = np.maximum.accumulate(np.append(start[:1], end[:-1]))
            own = np.maximum(end - np.maximum(start, free), 0)
            shortest[places] = np.minimum(shortest[places], own)
    return shortest
