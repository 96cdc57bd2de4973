"""Follow frames in memory that was read of another process, several times at once."""

from __future__ import annotations

import contextlib
import struct
from typing import Any, Literal

MOST_DEPTH = 128
"""Outer frames of a deeper stack are dropped, which bounds the time of a sample."""

Found = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Codes, instructions and owners of frames, innermost first."""


def follow_slowly(
    content: bytes, form: bytes, regions: bytes, innermost: int
) -> Found | Literal[False] | None:
    """Return the frames; `None` if one of them was not read, `False` if the passes differ.

    The innermost frame may have gone on to another instruction meanwhile.
    """
    numbers = struct.unpack("10q", form)
    passes, length, ahead, size, back, code, instruction, owner, *pointers = numbers
    places, address = list[int](), innermost
    while address and len(places) < MOST_DEPTH:
        for start, end, offset in struct.iter_unpack("3Q", regions):
            if start <= address and address + size <= end:
                places.append(ahead + offset + address - start)
                break
        else:
            return None
        address = struct.unpack_from("Q", content, places[-1] + back)[0]
    same = [(pointer, 8) for pointer in pointers]
    same += [(place, size) for place in places[1:]]
    if places:
        same += [(places[0] + back, 8), (places[0] + code, 8)]
        same += [(places[0] + owner, 1)] if owner >= 0 else []
    for begin in range(length, passes * length, length):
        for at, count in same:
            if content[at : at + count] != content[begin + at : begin + at + count]:
                return False
    if places:
        places[0] += (passes - 1) * length
    kind = "i"
    if owner >= 0:
        kind = "Q"
    codes = tuple([struct.unpack_from("Q", content, at + code)[0] & ~7 for at in places])
    done = tuple([struct.unpack_from(kind, content, at + instruction)[0] for at in places])
    return codes, done, tuple([content[at + owner] if owner >= 0 else 0 for at in places])


follow: Any = follow_slowly
with contextlib.suppress(ImportError):  # profkit was installed without a compiler
    from profkit.eye import _frames

    follow = _frames.follow
