"""Tell the eye which thread of this process it shall read.

This runs inside the job, so it needs the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
from pathlib import Path
from typing import Any

from profkit.clock import now_ns
from profkit.hangs.processes import look_at, pid_space
from profkit.plain_file import read_plain
from profkit.trace.jsonfile import replace_json

EYE_VARIABLE = "PROFKIT_EYE"
"""The environment variable with the process id of the eye, and its host."""

FOLDER = "eye"
"""Folder in a run in which processes of the job say that they can be read."""

SUFFIX, ANSWER_SUFFIX = ".json", ".answer"
FUNCTIONS = "functions"
"""The ending of the file, and the key in it, of what a host's eye knows of the job's functions."""

LATE_NS = 3_000_000_000
"""If the eye has written no stack for so long, the process reads its own."""

MOST_BYTES = 65_536

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
PR_SET_PTRACER = 0x59616D61


def announce(
    run: Path, rank: int, thread: int, name: str, *, native: int, witness: int, worker: int = -1
) -> None:
    """Write down what is to be read: a thread of this rank, or of a worker of its loader."""
    content = describe(rank, thread, name, native=native, witness=witness, worker=worker)
    if content:
        folder = run / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        replace_json(folder / f"{os.getpid()}{SUFFIX}", content)


def describe(
    rank: int, thread: int, name: str = "", *, native: int, witness: int, worker: int = -1
) -> dict[str, Any]:
    """Let the eye read this process, and return what it must know; nothing if there is no eye.

    `witness` is a thread that stays in a known function, by which the eye checks what it reads.
    """
    eye = _eye_of_host()
    if not eye:
        return {}
    allow(eye)
    own = os.getpid()
    return {
        "rank": rank,
        "worker": worker,
        "pid": own,
        "started": look_at(own).started_ticks,
        "host": platform.node(),
        "pid_space": pid_space(),
        "thread": thread,
        "native": native,
        "witness": witness,
        "name": name,
        "version": list(sys.version_info[:2]),
        "folder": os.getcwd(),
        "python": os.path.dirname(os.__file__),
        "profkit": os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    }


def name_eye(pid: int) -> str:
    """Return what the environment says of an eye on this host."""
    return f"{pid}@{platform.node()}"


def _eye_of_host() -> int:
    """Return the process id of the eye; 0 if there is none, or if it is on another host."""
    pid, _, host = os.environ.get(EYE_VARIABLE, "").partition("@")
    return int(pid) if pid.isdecimal() and host == platform.node() else 0


def allow(eye: int) -> None:
    """Let the eye read this process, if the system lets only ancestors do that (Yama 1)."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if YAMA.read_text().strip() == "1":
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(eye), 0, 0, 0)


class EyeFile:
    """The file of the eye with the stacks of this process, while that stands still."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self.forget()

    def forget(self) -> None:
        """Begin anew: the process does not stand still."""
        self._changed, self._since_ns = 0, now_ns()

    def reads(self, path: Path) -> bool:
        """Return false if the eye may not read this process, or has written nothing for long."""
        if why_not_read(self._run) is not None:
            return False
        changed = path.stat().st_mtime_ns if path.exists() else 0
        if changed != self._changed:
            self._changed, self._since_ns = changed, now_ns()
        return now_ns() - self._since_ns < LATE_NS


def why_not_read(run: Path) -> str | None:
    """Return why the eye does not read this process; `None` if it does, or has not answered."""
    if not _eye_of_host():
        return "no process outside of the job was started on this host"
    path = run / FOLDER / f"{os.getpid()}{ANSWER_SUFFIX}"
    try:
        return read_plain(path, MOST_BYTES).decode("utf-8", "replace") or None
    except OSError:
        return None
