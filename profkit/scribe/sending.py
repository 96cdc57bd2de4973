"""Hand the rows of a rank to the scribe. This runs inside the job: standard library only."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import struct
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from profkit.clock import Clock, now_ns, wall_ns
from profkit.hangs.processes import look_at
from profkit.scribe import messages
from profkit.scribe.messages import Inbox, Message, pack, socket_name
from profkit.trace.jsonfile import dump_json, replace_json
from profkit.trace.manifest import RankManifest
from profkit.vocab import END_FILE, SCHEMA_VERSION, rank_folder

log = logging.getLogger("profkit")

OPENING_S = 30.0
"""The scribe may have to wait for a disk before it opens the files of a rank."""

ROWS_PER_MESSAGE = 1_024
"""Maximum number of rows in a message: the job waits for the interpreter while one is made."""

TURN_S = 1e-4
"""Between two of many messages the interpreter is released this long."""

ENDED = "the process that writes the rows has ended"
SILENT = "the process that writes the rows does not answer"

_CREDENTIALS = struct.Struct("3i")


class SentRows:
    """The files of a rank that the scribe writes: it takes rows as `RankFiles` does."""

    def __init__(self, scribe: socket.socket, run: Path, manifest: RankManifest, full: int) -> None:
        """Have the files opened. An error of doing so is raised here, or if the scribe is gone."""
        self.folder = run / rank_folder(manifest.rank)
        self.failure = ""
        self.dropped: Counter[str] = Counter()
        self._rank = manifest.rank
        self._scribe, self._inbox = scribe, Inbox()
        self._place = os.fstat(scribe.fileno())
        self._lock, self._is_lost = threading.Lock(), False
        self._writer = 0
        content = dump_json(manifest.content())
        try:
            self._begin((messages.OPEN, list(SCHEMA_VERSION), manifest.rank, content, full))
        except TimeoutError as error:
            scribe.close()
            raise OSError(errno.ETIMEDOUT, SILENT) from error
        except OSError:
            scribe.close()
            raise
        _OPEN.add(self)

    def _begin(self, opening: Message) -> None:
        self._scribe.settimeout(OPENING_S)
        self._scribe.sendall(pack(opening), socket.MSG_NOSIGNAL)
        kind, number, why = self._wait_for(messages.OPENED, messages.FAILED)
        if kind == messages.FAILED:
            raise OSError(number, why)
        self._writer = number
        self._scribe.settimeout(None)

    def write_rows(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Send rows; those that hold what is no plain value raise an error and are not sent."""
        for start in range(0, len(rows), ROWS_PER_MESSAGE):
            if start:
                time.sleep(TURN_S)
            # Named tuples are no plain tuples.
            plain = list(map(tuple, rows[start : start + ROWS_PER_MESSAGE]))
            try:
                packed = pack((messages.ROWS, table, plain))
            except ValueError:
                packed = pack((messages.ROWS, table, [tuple(map(_plain, row)) for row in plain]))
            if self.failure or not self._send(packed):
                self.dropped[table] += len(plain)

    def thin(self, clock: Clock = now_ns) -> None:
        """Let the scribe do what is due after each flush, and hear what it says."""
        del clock
        self._send(pack((messages.FLUSH,)))
        self._listen()

    def progress(self) -> float:
        """Return the processor time of the scribe."""
        return look_at(self._writer).cpu_s

    def describe(self, manifest: RankManifest) -> None:
        self._send(pack((messages.DESCRIBE, dump_json(manifest.content()))))

    def close(self, reason: str) -> None:
        """Have the files closed, and wait for that. If nobody closes them, say so in their end."""
        if self._send(pack((messages.END, reason, dict(self.dropped)))):
            try:
                self.failure = self._wait_for(messages.CLOSED)[2]
            except OSError:
                self._lose()
        if self._is_lost:
            log.warning("profkit: %s: %s; the trace ends early", self.folder, ENDED)
            end = {"schema_version": list(SCHEMA_VERSION), "rank": self._rank, "reason": ENDED}
            with contextlib.suppress(OSError):
                replace_json(self.folder / END_FILE, {**end, "ended_ns": wall_ns(), "tables": {}})
        self.forget()

    def forget(self) -> None:
        """Close this process's end of the connection, if it still is that."""
        if self._is_open():
            self._scribe.close()
        else:  # or the descriptor of another file were closed with this object
            self._scribe.detach()

    def _is_open(self) -> bool:
        """Return true if the descriptor is the one that was opened: a job may close them all."""
        try:
            place = os.fstat(self._scribe.fileno())
        except OSError:
            return False
        return (place.st_dev, place.st_ino) == (self._place.st_dev, self._place.st_ino)

    def _send(self, packed: bytes) -> bool:
        """Send a message; return false if nobody takes it."""
        with contextlib.suppress(OSError), self._lock:
            if not self._is_lost and self._is_open():
                self._scribe.sendall(packed, socket.MSG_NOSIGNAL)  # the job may die of SIGPIPE
                return True
        self._lose()
        return False

    def _lose(self) -> None:
        self._is_lost, self.failure = True, self.failure or ENDED

    def _listen(self) -> None:
        """Take what the scribe has said meanwhile."""
        with contextlib.suppress(OSError, ValueError), self._lock:
            if not self._is_open():
                return
            self._scribe.setblocking(False)  # where gevent has replaced sockets, a flag is no help
            try:
                while piece := self._scribe.recv(65_536):
                    for message in self._inbox.take(piece):
                        self._hear(message)
            finally:
                self._scribe.setblocking(True)
            self._lose()

    def _hear(self, message: Message) -> None:
        kind, _, why = message
        if kind == messages.FAILED:
            self.failure = self.failure or why
        elif kind == messages.PROBLEM:
            log.warning("profkit: %s", why)

    def _wait_for(self, *kinds: str) -> Message:
        while True:
            piece = self._scribe.recv(65_536)
            if not piece:
                raise BrokenPipeError(errno.EPIPE, ENDED)
            for message in self._inbox.take(piece):
                if message[0] in kinds:
                    return message
                self._hear(message)


_OPEN: weakref.WeakSet[SentRows] = weakref.WeakSet()
"""All that this process has, so that a forked child can close its copies."""

os.register_at_fork(after_in_child=lambda: list(map(SentRows.forget, list(_OPEN))))


def connect(run: Path) -> socket.socket | None:
    """Return a connection to the scribe of this run on this host; `None` if there is none."""
    scribe = socket.socket(socket.AF_UNIX)
    try:
        scribe.connect(socket_name(run))
        if peer(scribe)[1] == os.getuid():  # anybody may take the name
            return scribe
    except OSError:
        pass
    scribe.close()
    return None


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end; 0 is a process that is not seen here."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(packed)
    return pid, user


_PLAIN: Mapping[Any, Callable[[Any], Any]] = {
    str: str.__str__,
    float: float.__float__,
    int: int.__index__,
}


def _plain(value: Any) -> Any:
    """Return a number of numpy, or a member of an enumeration, as a value of its plain type."""
    if type(value).__module__ == "numpy":
        return value.item()
    for kind, convert in _PLAIN.items():
        if isinstance(value, kind) and not isinstance(value, bool):
            return convert(value)
    return value
