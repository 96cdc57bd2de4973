"""Processor time and waits for it, memory and page faults of the training process."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from profkit.collectors.base import Reading

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MOST_THREADS = 128
"""The waits of more threads are not read: each of them has a file of its own."""

_THREADS_FIELD = 17
"""The number of threads has this place in `/proc/self/stat`, behind the program's name."""


@dataclass(frozen=True)
class ProcessCollector:
    """Reads `/proc` and `getrusage`; a reading takes some tens of microseconds."""

    name = "process"
    interval_s = 1.0
    reads_at_end = True
    proc: Path = Path("/proc/self")

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

    def _read_waits(self) -> Iterator[Reading]:
        """Yield how long the present threads were ready to run and had no core.

        A kernel that does not count it has no such files, or writes only zeros.
        """
        ran_ns = waited_ns = 0
        with contextlib.suppress(OSError):  # no such folder
            for task in (self.proc / "task").iterdir():
                with contextlib.suppress(OSError):  # the thread has ended meanwhile
                    words = (task / "schedstat").read_text().split()
                    ran_ns, waited_ns = ran_ns + int(words[0]), waited_ns + int(words[1])
        if ran_ns:
            yield Reading("cpu_wait_seconds", waited_ns / 1e9)


COLLECTOR = ProcessCollector()
