"""Follow frames in memory that was read of another process, several times at once."""

from __future__ import annotations

import contextlib
import struct
from typing import Any, Literal, NamedTuple

MOST_DEPTH = 128
"""Outer frames of a deeper stack are dropped, which bounds the time of a sample."""

Found = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Codes, instructions and owners of frames, innermost first."""


class _Form(NamedTuple):
    """Places of values within a frame, and within a pass, as the twin in C takes them."""

    passes: int
    length: int
    size: int
    back: int
    code: int
    instruction: int
    owner: int
    pointer: int
    entered: int


def follow_slowly(content: bytes, form: bytes, regions: bytes) -> Found | Literal[False] | None:
    """Return the frames that all passes share, with those outside them.

    `None` is returned if a frame was not read, `False` if they share none. The innermost frame that
    they share may have gone on to another instruction, and have called others, meanwhile: a reading
    that only counts if nothing changes finds a thread where it calls nothing.
    """
    told = _Form(*struct.unpack("9q", form))
    passes = [content[begin : begin + told.length] for begin in range(0, len(content), told.length)]
    walks = [_walk(one, told, regions) for one in passes[: told.passes]]
    places = walks[0]
    if places is None:
        return None
    first = 0
    for walk, other in zip(walks[1:], passes[1:], strict=False):
        if walk is None:
            return None
        first = _shared(passes[0], places, other, walk, told, first)
    if first == len(places) and any(walks):
        return False
    if first and len(places) == MOST_DEPTH:  # its end is not the thread's
        return False
    kind = "i"
    if told.owner >= 0:
        kind = "Q"
    codes, done, owners = list[int](), list[int](), list[int]()
    for one, at in zip([passes[-1], *passes[:1] * len(places)], places[first:], strict=False):
        codes.append(struct.unpack_from("Q", one, at + told.code)[0] & ~7)
        done.append(struct.unpack_from(kind, one, at + told.instruction)[0])
        owners.append(one[at + told.owner] * (told.owner >= 0))
    return tuple(codes), tuple(done), tuple(owners)


def _walk(one: bytes, form: _Form, regions: bytes) -> list[int] | None:
    """Return where a pass has the frames, innermost first; `None` if one was not read."""
    places, address = list[int](), struct.unpack_from("Q", one, form.pointer)[0]
    if form.entered >= 0:
        at = _find(regions, address + form.entered, 8)
        if at is None:
            return None
        address = struct.unpack_from("Q", one, at)[0]
    while address and len(places) < MOST_DEPTH:
        at = _find(regions, address, form.size)
        if at is None:
            return None
        places.append(at)
        address = struct.unpack_from("Q", one, at + form.back)[0]
    return places


def _find(regions: bytes, address: int, size: int) -> int | None:
    """Return where an address is in a pass; `None` if so much of it was not read."""
    for start, end, offset in struct.iter_unpack("3Q", regions):
        if start <= address and address + size <= end:
            return int(offset + address - start)
    return None


def _shared(
    one: bytes, places: list[int], other: bytes, others: list[int], form: _Form, first: int
) -> int:
    """Return the innermost of the frames, not before the `first`, that another pass has too."""
    place = len(places)
    for at in reversed(others):
        if place == first or places[place - 1] != at:
            break
        values = [(form.back, 8), (form.code, 8), (form.owner, int(form.owner >= 0))]
        if any(one[at + i : at + i + size] != other[at + i : at + i + size] for i, size in values):
            break
        place -= 1
        if one[at : at + form.size] != other[at : at + form.size]:
            break
    return place


follow: Any = follow_slowly
with contextlib.suppress(ImportError):  # profkit was installed without a compiler
    from profkit.eye import _frames

    follow = _frames.follow
