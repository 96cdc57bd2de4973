"""Look at processes through `/proc`: their state, the call that they are in, and its file."""

from __future__ import annotations

import functools
import os
import platform
import re
import socket
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
GONE = ""
"""The state of a process that does not exist."""

ZOMBIE, DEAD = "Z", "X"
STOPPED = frozenset("Tt")
ENDED_STATES = frozenset({GONE, ZOMBIE, DEAD})

EXIT_FIELD = 49
"""Index of `exit_code` in `/proc/PID/stat`, after the name."""

_X86_64 = {
    0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll",
    17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 21: "access", 23: "select",
    26: "msync", 34: "pause", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto",
    45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock",
    74: "fsync", 75: "fdatasync", 82: "rename", 83: "mkdir", 87: "unlink", 202: "futex",
    217: "getdents64", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat",
    262: "newfstatat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4",
    332: "statx",
}  # fmt: skip
_ARM_64 = {
    22: "epoll_pwait", 25: "fcntl", 32: "flock", 35: "unlinkat", 38: "renameat", 48: "faccessat",
    56: "openat", 57: "close", 61: "getdents64", 63: "read", 64: "write", 65: "readv", 66: "writev",
    67: "pread64", 68: "pwrite64", 72: "pselect6", 73: "ppoll", 79: "newfstatat", 80: "fstat",
    82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep",
    115: "clock_nanosleep", 202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom",
    211: "sendmsg", 212: "recvmsg", 227: "msync", 242: "accept4", 260: "wait4", 291: "statx",
}  # fmt: skip
_NAMES = {"x86_64": _X86_64, "aarch64": _ARM_64}.get(platform.machine(), {})

_WITH_DESCRIPTOR = frozenset(
    {
        *("read", "write", "pread64", "readv", "fcntl", "flock", "fsync", "fdatasync"),
        *("close", "fstat", "getdents64"),
        *("connect", "accept", "sendto", "recvfrom", "sendmsg", "recvmsg"),
    }
)
"""Calls whose first argument is a file descriptor."""

_POLLS = frozenset({"poll", "ppoll"})
"""Calls whose first argument points to descriptors; """

_WITH_PATH = {
    **dict.fromkeys(("open", "stat", "lstat", "access"), 0),
    **dict.fromkeys(("openat", "newfstatat", "statx", "faccessat"), 1),
}
"""Calls with a path, and which argument points to it. They wait for a pipe or a lost server."""

_MOST_PATH_BYTES = 4_096
_PAGE_BYTES = 4_096


class Look(NamedTuple):
    """A thread, as the kernel shows it."""

    state: str = GONE
    cpu_s: float = 0.0
    started_ticks: int = 0
    system_call: str = ""
    reads: str = ""
    kernel_wait: str = ""


def look_at(pid: int, thread: int = 0, *, proc: Path = PROC, in_memory: bool = False) -> Look:
    """Return the state of a process, or of one of its threads.

    What a call points to is read in this process itself, or in another one if `in_memory` is true.
    """
    may_read = in_memory or pid == os.getpid()
    folder = proc / str(pid)
    if thread:
        folder = folder / "task" / str(thread)
    try:
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        look = Look(fields[0], cpu_s, int(fields[19]))
    except (OSError, IndexError, ValueError):
        return Look()
    try:
        kernel_wait = (folder / "wchan").read_text().strip("0\n")
    except OSError:
        kernel_wait = ""
    words = _read_call(folder)
    name, reads = "", ""
    if words and words[0].isdigit():
        name = name_call(int(words[0]))
        if name in _WITH_DESCRIPTOR and len(words) > 1:
            reads = describe_descriptor(pid, int(words[1], 16), proc)
        elif name in _POLLS and may_read and len(words) > 1:
            reads = describe_descriptor(pid, first_polled(pid, int(words[1], 16)), proc)
        elif name in _WITH_PATH and may_read and len(words) > 2:
            path = read_path(pid, int(words[1 + _WITH_PATH[name]], 16))
            if words == _read_call(folder):  # otherwise the path may be gone, and this is no path
                reads = path
    return look._replace(system_call=name, reads=reads, kernel_wait=kernel_wait)


def name_call(number: int) -> str:
    return _NAMES.get(number, f"system call {number}")


def caught_signals(pid: int, *, proc: Path = PROC) -> frozenset[int] | None:
    """Return the signals for which a process has handlers; `None` if the kernel does not say."""
    try:
        text = (proc / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"(?m)^SigCgt:\s*([0-9a-f]+)$", text)
    if found is None:
        return None
    mask = int(found[1], 16)
    return frozenset(number for number in range(1, mask.bit_length() + 1) if mask >> number - 1 & 1)


def find_exit_code(pid: int, *, proc: Path = PROC) -> int | None:
    """Return the exit code of a process that its parent has not reaped; negative for a signal.

    The kernel shows 0 as well if it does not want to say, so that 0 is returned as unknown.
    """
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
        fields = text.rpartition(")")[2].split()
        code = os.waitstatus_to_exitcode(int(fields[EXIT_FIELD]))
    except (OSError, IndexError, ValueError):
        return None
    if code and fields[0] in ENDED_STATES:
        return code
    return None


def _read_call(folder: Path) -> list[str]:
    """Return the number and the arguments of the call that a thread is in; nothing if unknown."""
    try:
        return (folder / "syscall").read_text().split()
    except OSError:  # another user's, or the kernel does not allow it
        return []


@functools.cache
def pid_space() -> str:
    """Return the kernel and the namespace to which this process's ids belong; or nothing."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def is_visible(host: str, space: str) -> bool:
    """Return true if a process id of this host and space is the same process here.

    Containers on one machine may share its name and still number their processes themselves.
    """
    return host == platform.node() and (not space or space == (pid_space() or space))


def first_polled(pid: int, address: int) -> int:
    """Return the first descriptor of a `poll` that a thread of a process is in."""
    try:
        with open(PROC / str(pid) / "mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return int.from_bytes(memory.read(4), "little", signed=True)
    except (OSError, ValueError, OverflowError):
        return -1


def read_path(pid: int, address: int) -> str:
    """Return the path that a thread of a process gave to the kernel; or nothing."""
    found = b""
    try:
        with open(PROC / str(pid) / "mem", "rb", buffering=0) as memory:
            memory.seek(address)
            while b"\0" not in found and len(found) < _MOST_PATH_BYTES:
                # The next page need not exist.
                found += memory.read(_PAGE_BYTES - (address + len(found)) % _PAGE_BYTES)
        path, end, _ = found.partition(b"\0")
        return os.path.abspath(os.fsdecode(path)) if path and end else ""
    except (OSError, ValueError, OverflowError):
        return ""


def describe_descriptor(pid: int, descriptor: int, proc: Path) -> str:
    """Return the path behind a descriptor, or the address at the other end of a socket."""
    try:
        target = os.readlink(proc / str(pid) / "fd" / str(descriptor))
    except OSError:
        return ""
    if target.startswith("socket:["):
        return find_address(pid, target[len("socket:[") : -1], proc) or "a socket"
    if target.startswith("pipe:["):
        return "a pipe"
    return target


def find_address(pid: int, inode: str, proc: Path) -> str:
    for table, size in (("tcp", 4), ("tcp6", 16)):
        try:
            lines = (proc / str(pid) / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[9] == inode:
                address, _, port = fields[2].partition(":")
                packed = bytes.fromhex(address)
                words = []
                for at in range(0, size, 4):
                    words.append(packed[at : at + 4][::-1])
                family = socket.AF_INET if size == 4 else socket.AF_INET6
                host = socket.inet_ntop(family, b"".join(words)).removeprefix("::ffff:")
                return f"{host}:{int(port, 16)}"
    return ""
