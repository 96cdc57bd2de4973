"""Shared memory in which a loader's workers leave the times of their batches."""

from __future__ import annotations

import array
import contextlib
import mmap
import os
from collections.abc import Iterable, Sequence

from profkit.instrument.rows import BatchTimes

_MAGIC = 0x34676E69726B7270
"""The first word of a ring. The layout's version is in its last digit."""

_HEADER = 3
"""Words before the rest: magic, number of workers, number of slots.

Behind them are the workers' process ids, the stamps, and the slots.
"""

_FIELDS = len(BatchTimes._fields)
_NAME = "profkit-loader"
_SLOTS_PER_BATCH = 4
"""Slots for each batch that is made at once: a late batch must not find its slot taken."""

_MIN_SLOTS = 64


class Ring:
    """Times of batches, each in the slot of its number modulo the ring's size.

    A slot's stamp is written last, and says whose times the slot holds. The memory has no name in
    any folder and ends with the last process that has it. Workers that are no forks find it among
    the open descriptors of the process that trains.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._words = memoryview(memory).cast("q")
        magic, self.workers, self.size = self._words[:_HEADER].tolist()
        if magic != _MAGIC or len(memory) < 8 * _count_words(self.workers, self.size):
            raise ValueError("not a ring of this version")
        self._stamps = _HEADER + self.workers
        self._slots = self._stamps + self.size

    @classmethod
    def create(cls, workers: int, under_way: int) -> Ring:
        """Return a ring for a loader that makes `under_way` batches at once."""
        size = max(_MIN_SLOTS, _SLOTS_PER_BATCH * under_way)
        size_bytes = 8 * _count_words(workers, size)
        try:
            descriptor = os.memfd_create(_NAME)
        except OSError:  # without a descriptor, only forks share the memory
            memory = mmap.mmap(-1, size_bytes)
        else:
            try:
                os.ftruncate(descriptor, size_bytes)
                memory = mmap.mmap(descriptor, size_bytes)
            finally:
                os.close(descriptor)
        memory[: 8 * _HEADER] = array.array("q", (_MAGIC, workers, size)).tobytes()
        return cls(memory)

    def name_workers(self, processes: Sequence[int]) -> None:
        self._words[_HEADER : _HEADER + len(processes)] = array.array("q", processes)

    def is_for(self, worker: int, process: int) -> bool:
        return worker < self.workers and self._words[_HEADER + worker] == process

    def write(self, epoch: int, task: int, times: BatchTimes) -> None:
        place = task % self.size
        at = self._slots + place * _FIELDS
        self._words[at : at + _FIELDS] = array.array("q", times)
        self._words[self._stamps + place] = _stamp(epoch, task)

    def read(self, epoch: int, task: int) -> BatchTimes | None:
        """Return the batch's times; `None` if they are not written, or overwritten already."""
        place = task % self.size
        if self._words[self._stamps + place] != _stamp(epoch, task):
            return None
        at = self._slots + place * _FIELDS
        return BatchTimes._make(self._words[at : at + _FIELDS].tolist())

    def count_finished(self, epoch: int, tasks: Iterable[int]) -> int:
        """Return how many of these batches are written."""
        words, stamps, size, first = self._words, self._stamps, self.size, _stamp(epoch, 0)
        return sum(words[stamps + task % size] == first + task for task in tasks)


def _stamp(epoch: int, task: int) -> int:
    """Return the stamp of a written slot, which is never 0."""
    return (epoch << 40) + task + 1


def _count_words(workers: int, size: int) -> int:
    return _HEADER + workers + size * (1 + _FIELDS)


def find_ring(worker: int) -> Ring | None:
    """Return the ring of the loader, in the parent process, that started this worker."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is None or parent.pid is None:
        return None
    folder = f"/proc/{parent.pid}/fd"
    for name in os.listdir(folder):
        ring = _open_ring(f"{folder}/{name}")
        if ring is not None and ring.is_for(worker, os.getpid()):
            return ring
    return None


def _open_ring(path: str) -> Ring | None:
    """Return the ring behind an open descriptor of another process; `None` if it is none."""
    with contextlib.suppress(OSError, ValueError):
        if os.readlink(path).startswith(f"/memfd:{_NAME} "):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                return Ring(mmap.mmap(descriptor, 0))
            finally:
                os.close(descriptor)
    return None
