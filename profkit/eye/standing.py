"""Read the stacks of ranks that stand still or crash, and of the workers of their loaders.

The ranks say in their status files that no step ends. If a status is old, most likely native code
holds the interpreter, and the rank cannot say anything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profkit.clock import wall_ns
from profkit.errors import UnreadableError
from profkit.eye.layout import UnknownPythonError
from profkit.eye.memory import ForbiddenError
from profkit.eye.naming import choose_others, name_stack
from profkit.eye.targets import Said, Thread, cut_loop
from profkit.hangs.processes import is_visible, look_at
from profkit.hangs.status import (
    CRASH_SUFFIX,
    FAILED,
    FOLDER,
    RUNNING,
    STACK_SUFFIX,
    SUFFIX,
    WORKER_SUFFIX,
    Frame,
    Status,
    plain_host,
)
from profkit.plain_file import read_plain

WRITE_NS = 1_000_000_000
"""Stacks are written so often, also if they stay the same."""

RETRY_NS = 1_000_000_000
"""A process that cannot be read is tried again after this time."""

SHORTEST_HELD_S = 1.5
"""A status is old after this time, or after a quarter of the limit."""

CRASH = struct.Struct("QQ")
"""What the process writes at a crash: the signal and the thread."""

UNREAD = (ForbiddenError, UnknownPythonError, OSError, ValueError, struct.error, IndexError)
"""What a process that ends or cannot be read leads to."""


class StandingRanks:
    """The ranks of a run on this host."""

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER
        self._own = f"-{plain_host(platform.node())}-"
        self._ranks: dict[str, StandingRank] = {}

    def look(self, workers: Sequence[Thread]) -> None:
        """Write the stacks of the ranks that stand still now, and of these workers of theirs."""
        try:
            names = os.listdir(self._folder)
        except OSError:  # no rank trains yet
            return
        for name in names:
            if name.endswith(SUFFIX) and not name.startswith(".") and self._own in name:
                rank = self._ranks.get(name)
                if rank is None:
                    rank = self._ranks[name] = StandingRank(self._folder / name)
                with contextlib.suppress(UnreadableError, *UNREAD):
                    rank.look(workers, has_crashed=rank.crash.name in names)


class StandingRank:
    """A rank, what it says of itself, and where it was seen."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.crash = path.with_name(path.name.replace(SUFFIX, CRASH_SUFFIX))
        self._changed_ns = self._written_ns = self._moved_ns = self._retry_ns = 0
        self._status: Status | None = None
        self._stack: tuple[Frame, ...] = ()
        self._thread: Thread | None = None
        self._announced: Mapping[str, Any] = {}
        self._has_crashed = False

    def look(self, workers: Sequence[Thread], *, has_crashed: bool) -> None:
        """Write its stacks if it stands still, and the one of a thread that has just crashed."""
        status, now = self._read_status(), wall_ns()
        if status is None:
            return
        if has_crashed and not self._has_crashed:
            self._has_crashed = True
            self._write_crash(status)
        late_ns = max(SHORTEST_HELD_S, status.limit_s / 4) * 1e9
        if not status.stands_still and now - status.written_ns < late_ns:
            self._close()
            return
        thread = self._open(status)
        own, others = read_all(thread)
        if own is None:
            return
        if own != self._stack:
            self._stack, self._moved_ns = own, now
        elif now - self._written_ns < WRITE_NS:
            return
        self._written_ns = now
        seen = empty_copy(status, now)
        seen = dataclasses.replace(
            seen, steps=status.steps, alive_ns=self._moved_ns, stack=own, other_stacks=others
        )
        seen.write(self._path.parent, STACK_SUFFIX)
        for worker in workers:
            if worker.said.rank == status.rank:
                write_worker(worker, self._path.parent, seen)

    def _read_status(self) -> Status | None:
        """Return the status of the rank if it can be read now."""
        changed_ns = self._path.stat().st_mtime_ns
        if changed_ns != self._changed_ns:
            self._changed_ns, self._status = changed_ns, Status.read(self._path)
        status = self._status
        if status is None or status.state != RUNNING or not status.announced:
            return None
        if is_visible(status.host, status.pid_space):
            return status
        return None

    def _open(self, status: Status) -> Thread:
        if self._thread is None or self._announced != status.announced:
            self._close()
            if wall_ns() < self._retry_ns:
                raise UnknownPythonError("it could not be read a moment ago")
            self._retry_ns = wall_ns() + RETRY_NS
            self._thread = Thread(Said.parse(dict(status.announced)))
            self._announced = status.announced
        if self._thread.has_ended:
            raise ProcessLookupError
        return self._thread

    def _close(self) -> None:
        self._stack = ()
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def _write_crash(self, status: Status) -> None:
        """Read the thread that crashed, or the one that trains if that runs no Python code."""
        number, ident = CRASH.unpack(read_plain(self.crash, CRASH.size))
        thread = self._open(status)
        reader, places = thread.reader, None
        with contextlib.suppress(UnknownPythonError):
            places = reader.read(reader.find(ident))
        stack = name_stack(places or thread.read() or (), thread.said.origins)
        seen = dataclasses.replace(empty_copy(status, wall_ns()), state=FAILED, stack=stack)
        dataclasses.replace(seen, error=f"signal {number}").write(self._path.parent, CRASH_SUFFIX)


def empty_copy(status: Status, now: int) -> Status:
    """Return a status that says of which process it is, and no more."""
    return Status(
        status.rank,
        status.world_size,
        status.host,
        status.pid,
        started_ticks=status.started_ticks,
        pid_space=status.pid_space,
        written_ns=now,
    )


def read_all(thread: Thread) -> tuple[tuple[Frame, ...] | None, tuple[tuple[Frame, ...], ...]]:
    """Return the stack of the thread that trains, and those of others that matter.

    The first is null if its reading was torn.
    """
    said, reader, own = thread.said, thread.reader, None
    others = []
    for each in list(reader.threads()):
        if each.number != said.witness:
            places = reader.read(each)
            stack = None if places is None else name_stack(places, said.origins)
            if each.number == said.thread:
                own = stack
            elif stack:
                others.append(stack)
    return own, choose_others(others)


def write_worker(thread: Thread, folder: Path, rank: Status) -> None:
    """Write where a worker is, without what is outside of its loop."""
    said = thread.said
    look, places = look_at(said.pid, said.native, in_memory=True), thread.read()
    if places is None:
        return
    status = dataclasses.replace(
        rank,
        pid=said.pid,
        started_ticks=said.started,
        thread_state=look.state,
        system_call=look.system_call,
        reads=said.origins.shown(look.reads) if look.reads.startswith("/") else look.reads,
        stack=name_stack(cut_loop(places), said.origins),
        other_stacks=(),
    )
    status.write(folder, WORKER_SUFFIX)
