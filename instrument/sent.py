"""What is known of one collective, and what a thread is doing."""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from profkit.instrument.rows import Event

_RANKS = re.compile(r"@[0-9a-f]{8}")


def name_communicator(name: str, members: Sequence[int], world_size: int) -> str:
    """Return the name of a group and its ranks, unless all ranks of the job are in it.

    A framework may give one name to all groups of a dimension, or use a name again for a group of
    other ranks. Their collectives are not those of one communicator.
    """
    if len(members) >= world_size:
        return name
    return f"{name}@{zlib.crc32(repr(tuple(members)).encode()):08x}"


def name_group(communicator: str) -> str:
    """Return the framework's name of a communicator's group."""
    return _RANKS.sub("", communicator, count=1)


class Group(NamedTuple):
    """The ranks that take part. With `blocks`, a call returns only with its result."""

    name: str
    """The communicator's, as `name_communicator` makes it."""
    size: int
    backend: str
    blocks: bool
    members: tuple[int, ...] = ()
    """Its ranks in the job; empty if they are not known."""
    peer: int | None = None
    """The other rank, if the group is the two ranks of a message."""
    dimension: str | None = None
    """The dimension of the job's device mesh that the group connects, if it is known."""
    has_futures: bool = True
    """True if a handle's future exists, and asking for it changes nothing for the job."""


class Part(NamedTuple):
    """What a job's own communication hook sends for a bucket of gradients."""

    op: str
    bytes: int
    dtype: str
    group: Group


@dataclass(eq=False, slots=True)
class Sent:
    """A collective that a process has entered."""

    group: Group
    op: str
    message: tuple[int, str]
    """Its bytes and the type of its elements, as in `Message`."""
    sequence: int
    step: int
    start_ns: int
    mark: Event | None
    is_over: bool = False
    is_sync: bool = False
    """True if its call returns only when it has ended: all of it is exposed."""
    ends_with_wait: bool = False
    """True if the end is known only by the wait for it."""
    is_waited: bool = False
    """True once a thread waits for its handle."""
    address: int = 0
    """Where its result will be, if the job may wait for that instead of a handle."""
    module: str | None = None
    microbatch: int | None = None
    has_future: bool = True
    """True if its handle has a future on each backend that has any."""
    together: tuple[Sent, ...] = ()
    """The others that the same handle is for."""


class Here(threading.local):
    """What this thread is doing."""

    inside = False
    """True inside a call that makes rows of its own, so that calls in it make none."""
    sent_ns = 0
    """The time of the first collective called inside, since a caller set this to 0."""
    parts: list[Part] | None = None
    """What a job's own communication hook has sent; `None` outside of one."""
    work: Any = None
    """The handle of a call that waits, until it does. torch would make a new one otherwise."""
    coalesced: list[Sent] | None = None
    """The operations that the device begins together, since torch collects them."""
    module: str | None = None
    """The module of FSDP whose weights or gradients it sends now."""
    sends = False
    """True in a pipeline's function whose whole time is exchange."""
