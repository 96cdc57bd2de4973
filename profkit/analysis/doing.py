"""What a sampled thread did, by its state and the system call that it was in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profkit.frame.columns import names_and_codes
from profkit.frame.estimate import Floats, Ints

UNKNOWN, RUNNING = "", "computing or waiting for a core"
COMPUTING, NO_CORE = "computing", "waiting for a core"
AWAKE = COMPUTING, NO_CORE, RUNNING
LOCK = "waiting for another thread"
ASLEEP = "asleep or blocked"
DISK, OF_FILE = "D", " a file"

DISK_WORDS = (OF_FILE, "disk", "file system")
"""What the words for waits of a disk have in common; other jobs may use it, too."""

SECOND = 0.3
"""The least share of the time of what is said besides what most of it is."""

_CALLS = {
    "sleeping": "nanosleep clock_nanosleep pause",
    "sleeping or waiting for a socket": "select pselect6",
    "waiting for a socket or pipe": "poll ppoll epoll_wait epoll_pwait",
    "reading a socket": "recvfrom recvmsg",
    "sending to a socket": "sendto sendmsg",
    "connecting a socket": "connect",
    "waiting for a connection": "accept accept4",
    LOCK: "futex",
    "waiting for a process": "wait4 waitid",
    f"flushing{OF_FILE}": "fsync fdatasync msync",
    "waiting for a lock of a file": "flock fcntl",
    "opening or closing a file": "open openat close",
    "waiting for the file system": "stat lstat fstat newfstatat statx access faccessat getdents64 "
    "rename renameat mkdir unlink unlinkat",
}
_BY_CALL = {call: words for words, calls in _CALLS.items() for call in calls.split()}

_ON_FILES = {
    "reading": ("read", "readv", "pread64"),
    "writing": ("write", "writev", "pwrite64"),
}
"""Calls on any descriptor: of a file, they wait for the disk; of a pipe or socket, they sleep."""

_BY_STATE = {"R": RUNNING, "S": ASLEEP, "D": "waiting for the disk or for memory", "T": "stopped"}
"""The words for a state whose call says nothing; R also waits for a core."""


def _words(state: str, call: str) -> str:
    for verb, calls in _ON_FILES.items():
        if call in calls and state in "SD":
            return verb + (OF_FILE if state == DISK else " a pipe or socket")
    found = _BY_STATE.get(state, UNKNOWN)
    if found in (UNKNOWN, RUNNING):
        return found
    return _BY_CALL.get(call, found)


def _name(names: Sequence[str], code: int) -> str:
    """Return the name of a code; a value that is missing has none."""
    if code < 0:
        return ""
    return names[code]


def say_most(times: Mapping[str, float], least: float = SECOND) -> str:
    """Return the words for most of the time, at most two; the second has this share at least."""
    found = sorted(times, key=lambda words: -times[words])[:2]
    if found and times[found[-1]] < least * sum(times.values()):
        del found[1:]
    if len(found) > 1 and all(words.endswith(OF_FILE) for words in found):
        found[0] = found[0].removesuffix(OF_FILE)
    return " and ".join(found)


def number_doings(stacks: pa.Table, numbers: dict[str, int]) -> Ints:
    """Return the numbers of the words for what each sample's thread did; new ones are added.

    A sample that the job itself took has no state. The kernel does not tell a thread that runs
    from one that waits for a core, but for how long it did each.
    """
    if "state" not in stacks.column_names:
        return np.full(stacks.num_rows, numbers.setdefault(UNKNOWN, len(numbers)))
    states, state = names_and_codes(stacks["state"])
    calls, call = names_and_codes(stacks["call"])
    found = np.zeros(stacks.num_rows, dtype=np.int64)
    for of_state, of_call in set(zip(state.tolist(), call.tolist(), strict=True)):
        words = _words(*map(_name, (states, calls), (of_state, of_call)))
        mine = (state == of_state) & (call == of_call)
        found[mine] = numbers.setdefault(words, len(numbers))
        if words == RUNNING and "waited_share" in stacks.column_names:
            share = stacks["waited_share"].to_numpy()
            known = np.flatnonzero(mine & ~np.isnan(share))
            found[known] = numbers.setdefault(COMPUTING, len(numbers))
            without = known[_chosen(share[known])]
            found[without] = numbers.setdefault(NO_CORE, len(numbers))
    return found


def _chosen(share: Floats) -> npt.NDArray[np.bool_]:
    """Return true for as many samples as the shares add up to, spread as the shares are."""
    so_far = np.floor(np.cumsum(share) + 0.5)
    return np.diff(so_far, prepend=0.0) > 0
