"""Read files of a run's folder, in which a stranger may have put something else.

A link may lead to any file or to an endless one, and to open a pipe waits for its writer.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from profkit.text import byte_size

NOT_PLAIN = "not a plain file but a link, a pipe or a folder; the run is damaged"

_LINK_OR_SOCKET = frozenset([errno.ELOOP, errno.ENXIO])

MAX_RATIO = 200
"""The most bytes per compressed byte: real traces have up to 60, gzip bombs 1,000."""

UNCHECKED_BYTES = 64 << 20
"""Less may have any ratio: files of zeros do no harm."""


def open_plain(path: str | Path) -> BinaryIO:
    """Open a plain file without waiting; anything else is an `OSError` with `NOT_PLAIN`."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(path, flags)
    except OSError as error:
        if error.errno in _LINK_OR_SOCKET:
            raise OSError(error.errno, NOT_PLAIN, os.fspath(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, NOT_PLAIN, os.fspath(path))
    return open(file, "rb")


def read_plain(path: str | Path, most: int) -> bytes:
    """Return the content of a plain file; more than `most` bytes are an `OSError`."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(min(size, most) + 1)
    if len(content) > most:
        problem = f"{byte_size(size)} is too large for a file of this kind"
        raise OSError(errno.EFBIG, f"{problem} (limit {byte_size(most)})", os.fspath(path))
    return content


def unpacks_too_far(packed: int, unpacked: int) -> bool:
    """Return true if compressed bytes become more than those of any trace do."""
    return unpacked > UNCHECKED_BYTES and unpacked > MAX_RATIO * packed
