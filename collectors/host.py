"""The machine next to the job: processor, memory, disks, networks, child processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
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


@dataclass(frozen=True)
class HostCollector:
    """Reads `/proc`, `/sys` and the container's own limits.

    Counters grow from the machine's start; only their differences matter.
    """

    name: str = "host"
    interval_s: float = 1.0
    root: Path = Path("/")

    def why_not(self) -> str:
        if (self.root / "proc/stat").exists():
            return ""
        return f"there is no {self.root / 'proc/stat'} here; it needs Linux with /proc mounted"

    def read(self) -> Iterator[Reading]:
        """Yield the readings; of several ranks on a machine, the first one reads the machine."""
        parts = [read_workers]
        if local_rank_of() in {None, 0}:
            parts = [*MACHINE_PARTS, read_workers]
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


def read_memory(root: Path) -> Iterator[Reading]:
    found = _content(root / "proc/meminfo")
    swap = _number(found, b"SwapTotal:") - _number(found, b"SwapFree:")
    yield Reading("memory_available_bytes", _number(found, b"MemAvailable:") * _KIB)
    yield Reading("page_cache_bytes", _number(found, b"Cached:") * _KIB)
    yield Reading("swap_used_bytes", swap * _KIB)


def read_page_faults(root: Path) -> Iterator[Reading]:
    found = _content(root / "proc/vmstat")
    yield Reading("page_faults_count", _number(found, b"pgfault "))
    yield Reading("major_page_faults_count", _number(found, b"pgmajfault "))


def read_throttling(root: Path) -> Iterator[Reading]:
    """Yield how long the container's processor quota held its threads back, if it has a quota."""
    found = _content(root / "sys/fs/cgroup/cpu.stat")
    yield Reading("cpu_throttled_seconds", _number(found, b"throttled_usec ") / 1e6)


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


MACHINE_PARTS = (
    read_processors,
    read_run_queue,
    read_memory,
    read_page_faults,
    read_throttling,
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
            yield from _read_worker(root, pid)


def _read_worker(root: Path, pid: int) -> Iterable[Reading]:
    """Return what one child process has used."""
    words = _content(root / "proc" / str(pid) / "stat").rpartition(b")")[2].split()
    device = f"process {pid}"
    cpu_seconds = (int(words[11]) + int(words[12])) / _TICKS_PER_S
    return (
        Reading("worker_cpu_seconds", cpu_seconds, device),
        Reading("worker_major_faults_count", int(words[9]), device),
        Reading("worker_resident_bytes", int(words[21]) * _PAGE_BYTES, device),
    )


def _number(content: bytes, name: bytes) -> int:
    """Return the whole number behind a name that begins a line.

    Searching is faster than parsing: some of these files have two hundred other lines.
    """
    _, here, rest = (b"\n" + content).partition(b"\n" + name)
    if not here:
        raise LookupError(name)
    return int(rest[:_LONGEST_NUMBER].split(None, 1)[0])


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
