"""The channel between a loader's workers and the process that trains: times of batches in memory that they share."""

from __future__ import annotations

import array
import contextlib
import mmap
import os
from collections.abc import Iterable, Sequence

from profkit.instrument.rows import BatchTimes

_MAGIC = 0x31676E69726B7270  # with the layout's version in its last digit
_HEADER = 3  # magic, number of workers, number of slots; then the workers' process ids, the stamps, the slots
_FIELDS = len(BatchTimes._fields)
_NAME = "profkit-loader"
_ROOM = 4  # slots for each batch that may be under way at once: one that is late does not find its slot taken


class Ring:
    """Times of batches in memory that processes share, in one slot a batch: its number modulo the ring's size.

    A slot's stamp is written last, and tells whose times it holds. The memory has no name in any
    folder and goes with the last process that has it; workers that are no forks find it among the
    open descriptors of the process that trains.
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
        """A ring for so many workers, with so many batches under way at once."""
        size = max(64, _ROOM * under_way)
        memory = _share_memory(8 * _count_words(workers, size))
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
        """The batch's times; `None` where its worker has not written them, or another has since."""
        place = task % self.size
        if self._words[self._stamps + place] != _stamp(epoch, task):
            return None
        at = self._slots + place * _FIELDS
        return BatchTimes._make(self._words[at : at + _FIELDS].tolist())

    def count_finished(self, epoch: int, tasks: Iterable[int]) -> int:
        words, stamps, size, first = self._words, self._stamps, self.size, _stamp(epoch, 0)
        return sum(words[stamps + task % size] == first + task for task in tasks)


def _stamp(epoch: int, task: int) -> int:
    return (epoch << 40) + task + 1


def _count_words(workers: int, size: int) -> int:
    return _HEADER + workers + size * (1 + _FIELDS)


def _share_memory(size: int) -> mmap.mmap:
    """Zeroed memory that processes can share; where the system allows no descriptor for it, only forks can."""
    try:
        descriptor = os.memfd_create(_NAME)
    except OSError:
        return mmap.mmap(-1, size)
    try:
        os.ftruncate(descriptor, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def find_ring(worker: int) -> Ring | None:
    """The ring in which the process that started this one names it as its worker."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is None or parent.pid is None:
        return None
    folder = f"/proc/{parent.pid}/fd"
    rings = (_open_ring(f"{folder}/{name}") for name in os.listdir(folder))
    return next(
        (ring for ring in rings if ring is not None and ring.is_for(worker, os.getpid())), None
    )


def _open_ring(path: str) -> Ring | None:
    with contextlib.suppress(OSError, ValueError):
        if os.readlink(path).startswith(f"/memfd:{_NAME} "):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                return Ring(mmap.mmap(descriptor, 0))
            finally:
                os.close(descriptor)
    return None
