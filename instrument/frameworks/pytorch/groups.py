"""Process groups, as the rows of their operations name them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from profkit.instrument.frameworks.pytorch.layout import LAYOUT
from profkit.instrument.frameworks.pytorch.libraries import note_libraries
from profkit.instrument.frameworks.pytorch.operations import (
    BLOCKING,
    SAME_LIBRARY,
    WITH_FUTURES,
)
from profkit.instrument.sent import Group, Sent, name_communicator, name_group


class Watched:
    """A process group whose operations are recorded."""

    def __init__(self, group: Group, rank: int, backends: Mapping[str, str]) -> None:
        self._group = group
        self._rank = rank
        self._backends = backends
        """The backend for each kind of device; a group may have several."""
        self.is_uniform = all(backend == group.backend for backend in backends.values())
        """True if all kinds of devices have the same backend."""
        self.open: dict[int, Sent] = {}
        """The operations between their two hooks."""
        self._groups: dict[tuple[str, str, int], Group] = {}
        self._layout = LAYOUT.version

    def group(self, device: str, op: str, root: int) -> Group:
        """Return the ranks that take part in an operation on tensors of this kind of device."""
        if self._layout != LAYOUT.version:  # a mesh was made, and may name the dimension
            self._layout = LAYOUT.version
            self._groups.clear()
        is_message = op in ("send", "recv")
        key = device, op if is_message else "", root if is_message else -1
        found = self._groups.get(key)
        if found is None:
            group, backend = self._group, self._backends.get(device, self._group.backend)
            group = group._replace(
                backend=SAME_LIBRARY.get(backend, backend),
                blocks=backend in BLOCKING,
                has_futures=backend in WITH_FUTURES,
            )
            dimension = LAYOUT.dimensions.get(name_group(group.name))
            group = group._replace(dimension=dimension or None)
            if is_message:
                group = self._pair(group, op, root)
            found = self._groups[key] = group
        return found

    def _pair(self, group: Group, op: str, other: int) -> Group:
        """Return the sender and the receiver of a message as a group of their own.

        The messages of one pair match by their order, and the other ranks take no part in them.
        """
        own = self._rank
        peer = other if other >= 0 else own  # a receiver may take a message of any rank
        named = str(other) if other >= 0 else "?"
        name = f"{group.name}:{own}>{named}" if op == "send" else f"{group.name}:{named}>{own}"
        return group._replace(
            name=name, size=2, peer=group.members[peer] if group.members else peer
        )


def describe_group(real: Any) -> Watched | None:
    """Return a process group as rows name it, or `None` if this rank is not in it."""
    rank = int(real.rank())
    if rank < 0:
        return None
    note_libraries()
    backends = {}
    for device in real._device_types:  # noqa: SLF001  # torch has no public name for it
        with contextlib.suppress(RuntimeError):  # a device that this machine lacks
            backends[device.type] = real._get_backend(device).name().lower()  # noqa: SLF001
    members = ranks_of(real)
    if not members:
        return None  # a group that torch did not make itself, which it knows nothing of
    name = communicator_of(real, members)
    backend = next(iter(backends.values()), "")
    if "cuda" in backends and torch.cuda.is_available():  # what has no tensors, as a barrier
        backend = backends["cuda"]
    group = Group(name, real.size(), backend, blocks=backend in BLOCKING, members=members)
    return Watched(group, rank, backends)


def ranks_of(real: Any) -> tuple[int, ...]:
    """Return the ranks of a process group; none of a group that torch did not make itself."""
    try:
        return tuple(torch.distributed.get_process_group_ranks(real))
    except (KeyError, RuntimeError, ValueError):
        return ()


def communicator_of(real: Any, members: Sequence[int]) -> str:
    """Return the name that rows have for the communicator of a process group."""
    name = str(getattr(real, "group_name", "") or "default")
    if not members:
        return name
    return name_communicator(name, members, torch.distributed.get_world_size())
