"""Processor time and waits for it, memory and page faults of the training process."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from profkit.collectors.base import Reading

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MOST_THREADS = 128
"""The waits of more threads are not read: each of them has a file of its own."""

_THREADS_FIELD = 17
"""The number of threads has this place in `/proc/self/stat`, behind the program's name."""

_CPU_FIELDS = slice(11, 13)
"""Processor time in user and kernel mode, in ticks, has these places there."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MOST_PYTHON_THREADS = 64
"""Of a process with more Python threads, only so many are read."""

OWN_THREADS = "profkit-"
"""The names of profkit's own threads begin so."""

FOREIGN_THREAD = "_DummyThread"
"""Python's class for threads that others started, such as autograd's, which also launch kernels."""


class OverThreads:
    """The sum of a counter over threads. What those counted that have ended stays in it."""

    def __init__(self) -> None:
        self._present: dict[int, float] = {}
        self._ended = 0.0

    def add_up(self, present: dict[int, float]) -> float:
        """Return the sum, from what each of the present threads has counted by now."""
        for thread, known in self._present.items():
            if present.get(thread, -1.0) < known:  # a new thread may have the id of an old one
                self._ended += known
        self._present = present
        return self._ended + sum(present.values())


@dataclass(frozen=True)
class ProcessCollector:
    """Reads `/proc` and `getrusage`; a reading takes some tens of microseconds."""

    name = "process"
    interval_s = 1.0
    reads_at_end = True
    proc: Path = Path("/proc/self")
    spent_s: OverThreads = field(default_factory=OverThreads, repr=False, compare=False)
    """Processor time of the job's other Python threads."""
    waited_s: OverThreads = field(default_factory=OverThreads, repr=False, compare=False)
    """How long threads were ready to run and had no core."""

    def why_not(self) -> str:
        if (self.proc / "statm").exists():
            return ""
        return f"there is no {self.proc} here; it needs Linux with /proc mounted"

    def read(self) -> Iterator[Reading]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        yield Reading("cpu_seconds", usage.ru_utime + usage.ru_stime)
        yield Reading("major_faults_count", usage.ru_majflt)
        yield Reading("involuntary_switches_count", usage.ru_nivcsw)
        fields = (self.proc / "stat").read_text().rpartition(")")[2].split()
        threads = int(fields[_THREADS_FIELD])
        yield Reading("threads_count", threads)
        if threads <= MOST_THREADS:
            yield from self._read_waits()
        pages = (self.proc / "statm").read_text().split()
        yield Reading("resident_bytes", int(pages[1]) * _PAGE_BYTES)
        yield Reading("python_threads_cpu_seconds", self._read_threads())

    def _read_threads(self) -> float:
        """Return the processor time of Python threads other than the main one and profkit's."""
        main = threading.main_thread()
        others = [
            thread
            for thread in threading.enumerate()
            if thread is not main
            and not thread.name.startswith(OWN_THREADS)
            and type(thread).__name__ != FOREIGN_THREAD
        ]
        spent_s: dict[int, float] = {}
        for thread in others[:MOST_PYTHON_THREADS]:
            with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
                stat = (self.proc / f"task/{thread.native_id}/stat").read_text()
                ticks = stat.rpartition(")")[2].split()[_CPU_FIELDS]
                spent_s[thread.native_id or 0] = sum(map(int, ticks)) / _TICKS_PER_S
        return self.spent_s.add_up(spent_s)

    def _read_waits(self) -> Iterator[Reading]:
        """Yield how long all threads were ready to run and had no core.

        A kernel that does not count it has no such files, or writes only zeros.
        """
        ran_ns, waited_s = 0, dict[int, float]()
        with contextlib.suppress(OSError):  # no such folder
            for task in (self.proc / "task").iterdir():
                with contextlib.suppress(OSError):  # the thread has ended meanwhile
                    words = (task / "schedstat").read_text().split()
                    ran_ns += int(words[0])
                    waited_s[int(task.name)] = int(words[1]) / 1e9
        if ran_ns:
            yield Reading("cpu_wait_seconds", self.waited_s.add_up(waited_s))


COLLECTOR = ProcessCollector()
