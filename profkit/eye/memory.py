"""Read memory of another process, without stopping it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

MOST_PIECES = 1_000
"""The kernel takes 1,024 pieces in one call."""

LARGEST_READ = 1 << 20

Piece: TypeAlias = tuple[int, int]
"""Address and size of a part of the memory."""

_REFUSED = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS})

_libc = ctypes.CDLL(None, use_errno=True)


def read_slowly(pid: int, pieces: bytes, size: int) -> bytes | None:
    """Return pieces of the memory of a process; `None` if one of them is not there."""
    buffer = ctypes.create_string_buffer(size)
    own = struct.pack("QQ", ctypes.addressof(buffer), size)
    done = _libc.process_vm_readv(pid, own, 1, pieces, len(pieces) // 16, 0)
    return buffer.raw if done == size else None


_read: Any = read_slowly
with contextlib.suppress(ImportError):  # profkit was installed without a compiler
    from profkit.eye import _frames

    _read = _frames.read


class ForbiddenError(Exception):
    """The system does not let this process read the other one's memory."""


class Memory:
    """The memory of a process, through `process_vm_readv` or, if that is filtered, `/proc`.

    One call reads many pieces within some microseconds, one after the other, in their order.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._file = -1

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    __del__ = close  # one that turns out to be of no use is only forgotten

    def open(self) -> None:
        """Find a way that the system allows; raise `ForbiddenError` if there is none."""
        place = ctypes.create_string_buffer(8)
        own = struct.pack("QQ", ctypes.addressof(place), 8)
        # An address that does not exist: only permission is asked for.
        done = _libc.process_vm_readv(self._pid, own, 1, struct.pack("QQ", 8, 8), 1, 0)
        if done >= 0 or ctypes.get_errno() not in _REFUSED:
            return
        try:
            self._file = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ForbiddenError(error.strerror or str(error)) from error

    def read(self, pieces: Sequence[Piece]) -> bytes | None:
        """Return the bytes of all pieces in one; `None` if one of them cannot be read."""
        flat = [number for piece in pieces for number in piece]
        return self.read_flat(flat, sum(flat[1::2]))

    def read_flat(self, flat: Sequence[int], size: int) -> bytes | None:
        """Do the same for addresses and sizes in turns, of which the sizes have this sum."""
        try:
            return self.read_packed(struct.pack(f"{len(flat)}Q", *flat), size)
        except struct.error:  # what was taken for an address is none
            return None

    def read_packed(self, pieces: bytes, size: int) -> bytes | None:
        """Do the same for pieces as the kernel takes them."""
        count = len(pieces) // 16
        if size > LARGEST_READ:
            return None
        if self._file >= 0 or count > MOST_PIECES:
            return self._read_each(pieces)
        content: bytes | None = _read(self._pid, pieces, size)
        return content

    def _read_each(self, pieces: bytes) -> bytes | None:
        if self._file < 0:
            half = len(pieces) // 32 * 16
            head, rest = self._read_sized(pieces[:half]), self._read_sized(pieces[half:])
            return None if head is None or rest is None else head + rest
        return self._read_file(struct.unpack(f"{len(pieces) // 8}Q", pieces))

    def _read_sized(self, pieces: bytes) -> bytes | None:
        sizes = struct.unpack(f"{len(pieces) // 8}Q", pieces)[1::2]
        return self.read_packed(pieces, sum(sizes))

    def _read_file(self, flat: Sequence[int]) -> bytes | None:
        parts = []
        try:
            for place in range(0, len(flat), 2):
                parts.append(os.pread(self._file, flat[place + 1], flat[place]))
                if len(parts[-1]) != flat[place + 1]:
                    return None
        except (OSError, OverflowError):
            return None
        return b"".join(parts)

    def number(self, address: int) -> int | None:
        """Return the pointer at an address."""
        found = self.read_flat((address, 8), 8)
        return None if found is None else int(struct.unpack("Q", found)[0])
