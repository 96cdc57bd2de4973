"""Processor time, memory and page faults of the training process and its workers."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from profkit.collectors.base import Reading

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_THREADS_FIELD = 17
"""The number of threads has this place in `/proc/self/stat`, behind the program's name."""


@dataclass(frozen=True)
class ProcessCollector:
    """Reads `/proc` and `getrusage`; a reading takes some tens of microseconds."""

    name = "process"
    interval_s = 1.0
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
        yield Reading("threads_count", int(fields[_THREADS_FIELD]))
        pages = (self.proc / "statm").read_text().split()
        yield Reading("resident_bytes", int(pages[1]) * _PAGE_BYTES)


COLLECTOR = ProcessCollector()
