"""The process that writes the rows of a run's ranks on this host."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import time
from pathlib import Path

from profkit.clock import Clock, now_ns
from profkit.hangs.processes import ENDED_STATES, look_at
from profkit.scribe import messages
from profkit.scribe.messages import Inbox, Message, pack
from profkit.scribe.sending import peer
from profkit.scribe.thinned import new_thinner
from profkit.trace.files import RankFiles
from profkit.trace.jsonfile import replace_text
from profkit.vocab import RANK_FILE, SCHEMA_VERSION, SCRIBE_CPU, rank_folder

LOOK_S = 1.0
"""A rank whose process has ended is looked for this often: a child may hold its connection."""

COST_NS = 5_000_000_000
"""The processor time of this process is recorded this often, and at the end of a rank."""

PIECE_BYTES = 1 << 20


class RankRows:
    """The connection of one rank, and its files."""

    def __init__(self, connection: socket.socket, run: Path, share: Share, clock: Clock) -> None:
        self.connection, self._run, self._share, self._clock = connection, run, share, clock
        self.pid, self.user = peer(connection)
        self._inbox = Inbox()
        self._files: RankFiles | None = None
        self._cost_ns = clock() + COST_NS
        self._refused: set[str] = set()
        self._has_told = False
        self.heard_s = time.monotonic()

    def read(self) -> bool:
        """Take what has arrived; return false if nothing more will."""
        self.heard_s = time.monotonic()
        try:
            piece = self.connection.recv(PIECE_BYTES)
            return bool(piece) and all(map(self._obey, self._inbox.take(piece)))
        except Exception:  # noqa: BLE001  # what one rank sends must not end the others
            return False

    def close(self) -> None:
        """End what the rank has not ended itself."""
        self.connection.close()
        if self._files is not None:
            self._files.close("")

    def _obey(self, message: Message) -> bool:
        """Do what a message says; return false after the last one."""
        kind, *rest = message
        if kind == messages.OPEN:
            return self._open(*rest)
        if self._files is None:
            return False
        if kind == messages.ROWS:
            self._write(self._files, *rest)
        elif kind == messages.FLUSH:
            self._note_cost(self._files)
            self._files.thin(self._clock)
        elif kind == messages.DESCRIBE:
            with contextlib.suppress(OSError):  # the description from the start stays
                replace_text(self._files.folder / RANK_FILE, *rest)
        elif kind == messages.END:
            self._end(self._files, *rest)
            return False
        if self._files.failure and not self._has_told:
            self._has_told = True
            self._say(messages.FAILED, self._files.failure)
        return True

    def _open(self, version: list[int], rank: int, manifest: str, full_bytes: int) -> bool:
        if version != list(SCHEMA_VERSION):  # the job has another profkit, which writes itself
            return False
        folder = self._run / rank_folder(rank)
        try:
            files = RankFiles(folder, rank, thinner=new_thinner, full_bytes=full_bytes)
            replace_text(folder / RANK_FILE, manifest)
        except OSError as error:
            self._say(messages.FAILED, error.strerror or str(error), error.errno or 0)
            return False
        self._files = files
        self._say(messages.OPENED, "", os.getpid())
        return True

    def _write(self, files: RankFiles, table: str, rows: list[Message]) -> None:
        try:
            files.write_rows(table, rows)
        except Exception as error:  # noqa: BLE001  # rows of a wrong shape must not end the others
            files.dropped[table] += len(rows)
            if table not in self._refused:
                self._refused.add(table)
                what = "could not be written and are counted as dropped"
                self._say(messages.PROBLEM, f"rows of {table} {what}: {error}")

    def _note_cost(self, files: RankFiles, *, at_end: bool = False) -> None:
        now = self._clock()
        if at_end or now >= self._cost_ns:
            self._cost_ns = now + COST_NS
            row = (None, "profkit", SCRIBE_CPU, now, self._share.cpu_ns())
            files.write_rows("samples", [row])

    def _end(self, files: RankFiles, reason: str, dropped: dict[str, int]) -> None:
        self._files = None
        self._note_cost(files, at_end=True)
        files.dropped.update(dropped)
        files.close(reason)
        self._say(messages.CLOSED, files.failure)

    def _say(self, kind: str, why: str = "", number: int = 0) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self.connection.send(pack((kind, number, why)), socket.MSG_DONTWAIT)


class Share:
    """Divides the processor time of this process among its ranks."""

    def __init__(self) -> None:
        self._start_s = time.process_time()
        self.ranks = 0

    def cpu_ns(self) -> float:
        return (time.process_time() - self._start_s) * 1e9 / max(1, self.ranks)


class Scribe:
    """Serves the ranks that connect, until the process that started it and they are gone."""

    def __init__(self, run: Path, listener: socket.socket, parent: int) -> None:
        self._run, self._listener, self._parent = run, listener, parent
        self._share = Share()
        self._ranks: set[RankRows] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(parent, selectors.EVENT_READ)
        self._has_parent = True

    def serve(self) -> None:
        look_s = time.monotonic() + LOOK_S
        while self._has_parent or self._ranks:
            for key, _ in self._selector.select(LOOK_S):
                if isinstance(key.data, RankRows):
                    if not key.data.read():
                        self._forget(key.data)
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._selector.unregister(self._parent)
                    self._has_parent = False
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + LOOK_S
                self._look_for_ended()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        rank = RankRows(connection, self._run, self._share, now_ns)
        if rank.user != os.getuid():
            connection.close()
            return
        self._ranks.add(rank)
        self._share.ranks += 1
        self._selector.register(connection, selectors.EVENT_READ, rank)

    def _look_for_ended(self) -> None:
        for rank in list(self._ranks):
            is_quiet = time.monotonic() - rank.heard_s > LOOK_S
            if is_quiet and rank.pid and look_at(rank.pid).state in ENDED_STATES:
                self._forget(rank)

    def _forget(self, rank: RankRows) -> None:
        self._selector.unregister(rank.connection)
        self._ranks.remove(rank)
        rank.close()


def main(run: str, listener: str) -> None:
    """Serve the ranks of a run until the process at the other end of our input has ended."""
    with socket.socket(fileno=int(listener)) as ours:
        Scribe(Path(run), ours, sys.stdin.fileno()).serve()
