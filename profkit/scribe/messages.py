"""Messages between a rank and the scribe: a length, and a tuple in the form of `marshal`.

The rank may be another Python than the scribe, so the form is one that all of them read.
"""

from __future__ import annotations

import marshal
import os
import platform
import struct
from pathlib import Path
from typing import Any, TypeAlias

Message: TypeAlias = tuple[Any, ...]

_FORM = 2
_LENGTH = struct.Struct("<I")

LARGEST_BYTES = 64_000_000
"""A longer message is none of ours."""

OPEN, ROWS, FLUSH, DESCRIBE, END = "open", "rows", "flush", "describe", "end"
"""From the rank: begin its files; rows of a table; a turn is over; its `rank.json`; close."""

OPENED, PROBLEM, FAILED, CLOSED = "opened", "problem", "failed", "closed"
"""From the scribe: the files are open; rows were refused; no more can be written; all is written.

The second field is a number: of an error, or of the process. The third says why, or is empty.
"""


def pack(message: Message) -> bytes:
    """Return the message in bytes; a `ValueError` if a value is of no plain type, or too long."""
    content = marshal.dumps(message, _FORM)
    if len(content) > LARGEST_BYTES:
        raise ValueError(f"a message of {len(content):,} bytes")
    return _LENGTH.pack(len(content)) + content


class Inbox:
    """Puts the messages together that arrive in pieces."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def take(self, piece: bytes) -> list[Message]:
        """Add a piece, and return what is whole. What is no message raises a `ValueError`."""
        self._bytes += piece
        found, start = [], 0
        while len(self._bytes) >= start + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes, start)
            if length > LARGEST_BYTES:
                raise ValueError(f"a message of {length:,} bytes")
            end = start + _LENGTH.size + length
            if len(self._bytes) < end:
                break
            try:
                # Bytes that are no message may end the scribe: they come from the same user's job.
                message = marshal.loads(self._bytes[start + _LENGTH.size : end])  # noqa: S302
            except (EOFError, TypeError, ValueError) as error:
                raise ValueError(f"no message: {error}") from error
            if not isinstance(message, tuple) or not message:
                raise ValueError("no message")
            found.append(message)
            start = end
        del self._bytes[:start]
        return found


def socket_name(run: Path) -> bytes:
    """Return the name under which the scribe of a run is found on this host.

    It is in no folder, and made of the run's folder itself: a path may differ between containers.
    """
    status = os.stat(run)
    place = f"{os.getuid()}-{platform.node()}-{status.st_dev}-{status.st_ino}"
    return f"\0profkit-rows-{place}".encode()
