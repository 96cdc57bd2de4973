"""Decides which processes and devices of an export are ranks.

A process trains on one device, or on several of which it is the only user. But what it does before
it chooses its device runs on the first one: a few kernels there make no further rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from profkit.importers.reading.numbers import MISSING, Ints

MIN_SHARE: Final = 0.01
"""A process trains on a device if it has this share of the kernels that its busiest one has."""

MIN_SHARE_OF_ANOTHER: Final = 0.5
"""The same, if the device is the busiest one of another process."""

MOST_NAMED: Final = 3

Owner = tuple[int, int]
"""A device and a global process id, which is `MISSING` in exports without processes."""


def count_work(tables: Sequence[Mapping[str, Ints]]) -> Counter[Owner]:
    """Return the rows of each process on each device."""
    counts: Counter[Owner] = Counter()
    for table in tables:
        pairs = zip(table["deviceId"].tolist(), table["globalPid"].tolist(), strict=True)
        counts.update(pairs)
    return counts


def find_owners(counts: Counter[Owner]) -> list[Owner]:
    """Return the owner of each rank, from the number of kernels of each process and device."""
    busiest: dict[int, int] = {}
    for (device, process), _ in counts.most_common():
        busiest.setdefault(process, device)
    users = Counter(busiest.values())
    owners = []
    for (device, process), count in sorted(counts.items()):
        own = busiest[process]
        least = MIN_SHARE_OF_ANOTHER if users[device] else MIN_SHARE
        is_busy = count > least * counts[own, process]
        if process == MISSING or device == own or is_busy:
            owners.append((device, process))
    return owners


def flag_rest(owners: Sequence[Owner], counts: Counter[Owner]) -> Iterator[str]:
    """Yield what ran on devices that are not those of its rank, from the counts of all work."""
    ranks: dict[int, int] = {}
    for rank, (_, process) in enumerate(owners):
        ranks.setdefault(process, rank)
    rest = []
    for (device, process), count in counts.items():
        if process in ranks and (device, process) not in owners:
            rest.append((ranks[process], device, count))
    if not rest:
        return
    named = [f"{count:,} of rank {rank} on cuda:{device}" for rank, device, count in sorted(rest)]
    more = ", ..." if len(named) > MOST_NAMED else ""
    yield (
        "kernels and copies that a process ran on another device than its own device are in no "
        f"figure: {', '.join(named[:MOST_NAMED])}{more}; let it choose its device before its "
        "first tensor"
    )
