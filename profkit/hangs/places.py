"""Find the rank of a process by its host, its container and its process id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from profkit.hangs.status import Status, plain_host

Places: TypeAlias = Mapping[tuple[str, str], Sequence[tuple[str, int]]]
"""The container and the rank of each process, by host and process id."""


def find_places(ranks: Mapping[int, Status]) -> Places:
    """Return the ranks by their processes: containers of one host's name may share an id."""
    places: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for rank, status in ranks.items():
        key = plain_host(status.host), str(status.pid)
        places.setdefault(key, []).append((status.pid_space, rank))
    return places


def find_rank(places: Places, host: str, space: str, pid: str) -> int | None:
    """Return the rank with this process; `None` if no rank has it, or several may have it."""
    found = []
    for own, rank in places.get((host, pid), ()):
        if own == space or not own or not space:
            found.append(rank)
    return found[0] if len(found) == 1 else None
