"""The machine next to the job: processor, memory, disks, networks, child processes."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from profkit.collectors.base import Reading
from profkit.rank import local_rank_of

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SECTOR_BYTES = 512
_KIB = 1024
_LONGEST_NUMBER = 40
_READ_BYTES = 1 << 16
MAX_WORKERS = 256
"""A process that starts more children than this is no training job with loader workers."""

_CPU_STATES = {"busy": (0, 1, 2, 5, 6), "idle": (3,), "disk_wait": (4,), "stolen": (7,)}
"""The columns of `/proc/stat` that count as each state."""


_NUMBERS = {
    "proc/meminfo": (
        ("memory_available_bytes", (b"MemAvailable:",), _KIB, 1),
        ("page_cache_bytes", (b"Cached:",), _KIB, 1),
        ("swap_used_bytes", (b"SwapTotal:", b"SwapFree:"), _KIB, 1),
    ),
    "proc/vmstat": (
        ("page_faults_count", (b"pgfault ",), 1, 1),
        ("major_page_faults_count", (b"pgmajfault ",), 1, 1),
    ),
    # How long the container's processor quota held its threads back, if it has a quota.
    "sys/fs/cgroup/cpu.stat": (("cpu_throttled_seconds", (b"throttled_usec ",), 1, 1e6),),
}
"""By file: the metric, how its lines begin, and a factor and divisor that make it the unit.

The metric is the number behind the first beginning, less those behind the others.
"""


@dataclass(frozen=True)
class HostCollector:
    """Reads `/proc`, `/sys` and the container's own limits.

    Counters grow from the machine's start; only their differences matter.
    """

    name = "host"
    interval_s = 1.0
    reads_at_end = True
    root: Path = Path("/")

    def why_not(self) -> str:
        if (self.root / "proc/stat").exists():
            return ""
        return f"there is no {self.root / 'proc/stat'} here; it needs Linux with /proc mounted"

    def read(self) -> Iterator[Reading]:
        """Yield the readings; of several ranks on a machine, the first one reads the machine."""
        parts = (*MACHINE_PARTS, read_workers)
        if local_rank_of() not in {None, 0}:
            parts = (read_workers,)
        for part in parts:
            # A kernel or a container that hides one file shows the others.
            with contextlib.suppress(OSError, ValueError, LookupError):
                yield from part(self.root)


def read_processors(root: Path) -> Iterator[Reading]:
    line = _content(root / "proc/stat").partition(b"\n")[0]
    ticks = list(map(int, line.split()[1:]))
    for state, columns in _CPU_STATES.items():
        spent = sum(ticks[column] for column in columns)
        yield Reading(f"cpu_{state}_seconds", spent / _TICKS_PER_S)


def read_run_queue(root: Path) -> Iterator[Reading]:
    """Yield the threads that run or could run; if they outnumber processors, some wait."""
    counts = _content(root / "proc/loadavg").partition(b"\n")[0].split()[3]
    running, _, existing = counts.partition(b"/")
    yield Reading("run_queue_count", int(running))
    yield Reading("threads_count", int(existing))


def read_numbers(file: str, root: Path) -> Iterator[Reading]:
    """Yield the numbers of one file.

    Searching is faster than parsing: some of these files have two hundred other lines.
    """
    content = b"\n" + _content(root / file)
    for metric, names, factor, divisor in _NUMBERS[file]:
        numbers = []
        for name in names:
            _, here, rest = content.partition(b"\n" + name)
            if not here:
                raise LookupError(name)
            numbers.append(int(rest[:_LONGEST_NUMBER].split(None, 1)[0]))
        yield Reading(metric, (numbers[0] - sum(numbers[1:])) * factor / divisor)


def read_disks(root: Path) -> Iterator[Reading]:
    """Yield the bytes of whole disks, which include those of their partitions."""
    blocks = f"{root}/sys/block/"
    for line in _content(root / "proc/diskstats").decode().splitlines():
        words = line.split()
        if not words[2].startswith(("loop", "ram", "zram")) and os.path.exists(blocks + words[2]):
            yield Reading("disk_read_bytes", int(words[5]) * _SECTOR_BYTES, words[2])
            yield Reading("disk_written_bytes", int(words[9]) * _SECTOR_BYTES, words[2])


def read_networks(root: Path) -> Iterator[Reading]:
    """Yield the bytes of all interfaces, with the loopback: ranks of one machine talk over it."""
    for line in _content(root / "proc/net/dev").decode().splitlines()[2:]:
        interface, _, rest = line.partition(":")
        words = rest.split()
        yield Reading("network_received_bytes", int(words[0]), interface.strip())
        yield Reading("network_sent_bytes", int(words[8]), interface.strip())


MACHINE_PARTS: tuple[Callable[[Path], Iterator[Reading]], ...] = (
    read_processors,
    read_run_queue,
    functools.partial(read_numbers, "proc/meminfo"),
    functools.partial(read_numbers, "proc/vmstat"),
    functools.partial(read_numbers, "sys/fs/cgroup/cpu.stat"),
    read_disks,
    read_networks,
)
"""The readings that are the same for all ranks of a machine."""


def read_workers(root: Path) -> Iterator[Reading]:
    """Yield what the processes use that this one started, loader workers among them."""
    children: list[int] = []
    for task in (root / "proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            children += map(int, _content(task / "children").split())
    for pid in sorted(children)[:MAX_WORKERS]:
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            place = root / "proc" / str(pid)
            words = _content(place / "stat").rpartition(b")")[2].split()
            device = f"process {pid}"
            cpu_seconds = (int(words[11]) + int(words[12])) / _TICKS_PER_S
            yield Reading("worker_cpu_seconds", cpu_seconds, device)
            yield Reading("worker_major_faults_count", int(words[9]), device)
            yield Reading("worker_resident_bytes", int(words[21]) * _PAGE_BYTES, device)
            waited_ns = int(_content(place / "schedstat").split()[1])
            yield Reading("worker_cpu_wait_seconds", waited_ns / 1e9, device)


def _content(path: Path) -> bytes:
    """Read a file without Python's file layers, which take as long as the kernel does."""
    file = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(file, _READ_BYTES):
            parts.append(part)
    finally:
        os.close(file)
    return b"".join(parts)


COLLECTOR = HostCollector()
