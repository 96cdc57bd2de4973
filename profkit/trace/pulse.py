"""The lengths of a rank's last steps while it runs, in a file of fixed size.

A table grows by a batch for each flush, and to unpack these takes far longer than to look at the
lengths. The file is gone once the rank has ended.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.plain_file import open_plain

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

PULSE_FILE = ".pulse"
MOST_STEPS = 2_048
"""Steps in the file; each later one takes the place of the oldest."""

_READ_STEPS = 256
"""A reader that follows the file takes so many at once."""

_ENTRY_BYTES = 16
"""The number of a step and its length in ns. The number is -1 where no step was written yet."""


class PulseWriter:
    """Writes the lengths. If that fails there is no file, and readers take the tables."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PULSE_FILE
        self._next = 0
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._put(b"\xff" * (MOST_STEPS * _ENTRY_BYTES), 0)

    def add(self, step: Sequence[int], start_ns: Sequence[int], end_ns: Sequence[int]) -> None:
        """Write the lengths of steps in their order."""
        if self._file is None:
            return
        entries = array("q")
        try:
            latest = zip(*map(_last_numbers, (step, start_ns, end_ns)), strict=True)
            for number, start, end in latest:
                entries.extend((number, end - start))
        except (TypeError, OverflowError):  # the table refuses such rows, or its reader does
            self.close()
            return
        written = entries.tobytes()
        room = (MOST_STEPS - self._next) * _ENTRY_BYTES
        self._put(written[:room], self._next)
        self._put(written[room:], 0)
        self._next = (self._next + len(entries) // 2) % MOST_STEPS

    def _put(self, entries: bytes, place: int) -> None:
        if self._file is None or not entries:
            return
        try:
            os.pwrite(self._file, entries, place * _ENTRY_BYTES)
        except OSError:  # old lengths would be taken for the latest ones
            self.close()

    def close(self) -> None:
        """Remove the file."""
        if self._file is None:
            return
        os.close(self._file)
        self._file = None
        with contextlib.suppress(OSError):
            self._path.unlink()


class PulseTail:
    """Reads the lengths that are new in the file, in a fraction of the time of all of it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PULSE_FILE
        self._next = 0
        self._last = -1

    def read(self) -> list[int]:
        """Return the new lengths in their order; none if there is no file."""
        lengths: list[int] = []
        with contextlib.suppress(OSError), open_plain(self._path) as file:
            while len(new := self._read_some(file.fileno())) and len(lengths) < MOST_STEPS:
                lengths.extend(new)
        return lengths

    def _read_some(self, file: int) -> array[int]:
        count = min(_READ_STEPS, MOST_STEPS - self._next)
        try:
            content = os.pread(file, count * _ENTRY_BYTES, self._next * _ENTRY_BYTES)
        except OSError:
            return array("q")
        entries = array("q", content[: len(content) // _ENTRY_BYTES * _ENTRY_BYTES])
        numbers = entries[::2]
        fresh = bisect.bisect_left(numbers, True, key=self._last.__ge__)
        if fresh:
            self._last = numbers[fresh - 1]
            self._next = (self._next + fresh) % MOST_STEPS
        return entries[1 : 2 * fresh : 2]


def age_s(folder: Path) -> float | None:
    """Return how long ago the rank wrote its file; `None` if there is none."""
    try:
        return time.time() - (folder / PULSE_FILE).stat().st_mtime
    except OSError:
        return None


def _last_numbers(values: Sequence[int]) -> list[int]:
    last = values[-MOST_STEPS:]
    as_list: Callable[[], list[int]] | None = getattr(last, "tolist", None)  # an array's
    return as_list() if as_list is not None else list(last)


def read_pulse(folder: Path, after: int) -> tuple[Ints, Ints] | None:
    """Return the numbers and the lengths of steps after a number; `None` if there is no file."""
    import numpy as np

    try:
        with open_plain(folder / PULSE_FILE) as file:
            content = file.read(MOST_STEPS * _ENTRY_BYTES)
    except OSError:
        return None
    whole = len(content) // _ENTRY_BYTES
    entries = np.frombuffer(content, np.int64, 2 * whole).reshape(whole, 2)
    fresh = entries[entries[:, 0] > after]
    fresh = fresh[np.argsort(fresh[:, 0], kind="stable")]
    return fresh[:, 0], fresh[:, 1]
