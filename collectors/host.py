"""What the machine does beside the job: processor, memory, disks, networks, and each process that the job started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from profkit.collectors.base import Reading

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SECTOR_BYTES = 512
_KIB = 1024
_LONGEST_NUMBER = 40
_MOST_AT_ONCE = 1 << 16
MOST_WORKERS = 256
"""Children that are looked at: a process that starts more is no training job with loader workers."""

_CPU_STATES = {"busy": (0, 1, 2, 5, 6), "idle": (3,), "disk_wait": (4,), "stolen": (7,)}
"""Which of the columns in `/proc/stat` count for what."""


@dataclass(frozen=True)
class HostCollector:
    """Reads `/proc`, `/sys` and the container's own limits. Counters grow from the machine's start; their differences are what matters."""

    name: str = "host"
    interval_s: float = 1.0
    root: Path = Path("/")

    def why_not(self) -> str:
        return (
            ""
            if (self.root / "proc/stat").exists()
            else f"there is no {self.root / 'proc/stat'} here; it needs Linux with /proc mounted"
        )

    def read(self) -> Iterator[Reading]:
        for part in (*(_OF_THE_MACHINE if _speaks_for_machine(os.environ) else ()), _workers):
            with contextlib.suppress(
                OSError, ValueError, LookupError
            ):  # a kernel or a container that does not show one thing shows the others
                yield from part(self.root)


def _speaks_for_machine(environ: Mapping[str, str]) -> bool:
    """Of several ranks on a machine the first reads what is the same for all; each reads its own workers."""
    return all(
        environ.get(local, "0") in {"", "0"}
        for local in ("LOCAL_RANK", "PADDLE_RANK_IN_NODE", "OMPI_COMM_WORLD_LOCAL_RANK")
    )


def _processors(root: Path) -> Iterator[Reading]:
    ticks = [int(word) for word in _first_line(root / "proc/stat").split()[1:]]
    for state, columns in _CPU_STATES.items():
        yield Reading(
            f"cpu_{state}_seconds", sum(ticks[column] for column in columns) / _TICKS_PER_S
        )


def _queue(root: Path) -> Iterator[Reading]:
    """Threads that run or want to: more than there are processors means that some wait."""
    running, _, existing = _first_line(root / "proc/loadavg").split()[3].partition("/")
    yield Reading("run_queue_count", int(running))
    yield Reading("threads_count", int(existing))


def _memory(root: Path) -> Iterator[Reading]:
    found = _content(root / "proc/meminfo")
    yield Reading("memory_available_bytes", _number(found, b"MemAvailable:") * _KIB)
    yield Reading("page_cache_bytes", _number(found, b"Cached:") * _KIB)
    yield Reading(
        "swap_used_bytes", (_number(found, b"SwapTotal:") - _number(found, b"SwapFree:")) * _KIB
    )


def _faults(root: Path) -> Iterator[Reading]:
    found = _content(root / "proc/vmstat")
    yield Reading("page_faults_count", _number(found, b"pgfault "))
    yield Reading("major_page_faults_count", _number(found, b"pgmajfault "))


def _throttling(root: Path) -> Iterator[Reading]:
    """How long the container's processor quota held its threads back; without a quota the file has no such line."""
    yield Reading(
        "cpu_throttled_seconds",
        _number(_content(root / "sys/fs/cgroup/cpu.stat"), b"throttled_usec ") / 1e6,
    )


def _disks(root: Path) -> Iterator[Reading]:
    """Whole disks alone: their partitions' bytes are theirs too."""
    blocks = f"{root}/sys/block/"
    for line in _content(root / "proc/diskstats").decode().splitlines():
        words = line.split()
        if not words[2].startswith(("loop", "ram", "zram")) and os.path.exists(blocks + words[2]):
            yield Reading("disk_read_bytes", int(words[5]) * _SECTOR_BYTES, words[2])
            yield Reading("disk_written_bytes", int(words[9]) * _SECTOR_BYTES, words[2])


def _networks(root: Path) -> Iterator[Reading]:
    """All interfaces, the loopback too: ranks of one machine talk over it."""
    for line in _content(root / "proc/net/dev").decode().splitlines()[2:]:
        interface, _, rest = line.partition(":")
        words = rest.split()
        yield Reading("network_received_bytes", int(words[0]), interface.strip())
        yield Reading("network_sent_bytes", int(words[8]), interface.strip())


_OF_THE_MACHINE = (_processors, _queue, _memory, _faults, _throttling, _disks, _networks)


def _workers(root: Path) -> Iterator[Reading]:
    """The processes that this one started, loader workers among them, by their id."""
    for pid in sorted(_children(root / "proc/self/task"))[:MOST_WORKERS]:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = _content(root / "proc" / str(pid) / "stat").rpartition(b")")[2].split()
            yield Reading(
                "worker_cpu_seconds",
                (int(words[11]) + int(words[12])) / _TICKS_PER_S,
                f"process {pid}",
            )
            yield Reading("worker_major_faults_count", int(words[9]), f"process {pid}")
            yield Reading("worker_resident_bytes", int(words[21]) * _PAGE_BYTES, f"process {pid}")


def _children(tasks: Path) -> Iterable[int]:
    for task in tasks.iterdir():
        with contextlib.suppress(OSError):
            yield from map(int, _content(task / "children").split())


def _number(content: bytes, name: bytes) -> int:
    """The whole number behind a name that begins a line: some of these files have two hundred others, which nobody wants."""
    _, here, rest = (b"\n" + content).partition(b"\n" + name)
    if not here:
        raise LookupError(name)
    return int(rest[:_LONGEST_NUMBER].split(None, 1)[0])


def _first_line(path: Path) -> str:
    return _content(path).partition(b"\n")[0].decode()


def _content(path: Path) -> bytes:
    """Without the layers of a Python file, which take as long as the kernel does."""
    file = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(file, _MOST_AT_ONCE):
            parts.append(part)
    finally:
        os.close(file)
    return b"".join(parts)


COLLECTOR = HostCollector()
