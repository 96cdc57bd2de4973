"""Takes rows from the training loop at the price of a list append, and writes them on a thread."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from profkit.clock import ANCHOR_INTERVAL_NS, Clock, now_ns, read_anchor
from profkit.schema import SCHEMAS
from profkit.trace.files import RankFiles
from profkit.trace.manifest import RankManifest
from profkit.vocab import OPENING_CPU, TABLES, WRITER_CPU, rank_folder

log = logging.getLogger("profkit")

Row: TypeAlias = tuple[Any, ...]

FLUSH_INTERVAL_S = 0.5
"""Rows are on disk this long after they were taken, well within the promised second."""

LARGEST_BACKLOG = 2_000_000
"""Rows that may wait for a disk that does not answer, before new ones are refused."""

COST_INTERVAL_NS = 5_000_000_000
"""How often the writer's own processor time is recorded, besides at the end."""

EACH = 16
"""How many questions whether it is full have one answer: they are asked at each step."""

CHUNK = 16_384

TURN_S = 1e-4
"""How long the writer lets go of the interpreter: a thread that waits for it takes tens of microseconds to wake."""

CLOSING_LOOKS = 10
"""How often the end of a job looks whether the last rows are written: a machine that pauses has used up one look, and not all patience."""


Rows: TypeAlias = dict[str, list[Row]]
"""Rows that wait to be written, by table."""


def no_rows() -> Rows:
    """An empty list for each table that a job fills."""
    return {table: [] for table in TABLES if table != "strings"}


class RankWriter:
    """One rank's trace, open for rows.

    `appender(table)` is what the hot path calls: it takes a tuple of the table's columns without
    `rank`, names as text. Everything else happens on the writer's thread. Nothing here raises into
    the job; a disk that fails ends the capture, and `failure` says why. `rows` may hold rows from
    before the writer was there. `complete` is called on the thread before each flush, and may append
    rows that have just become complete; its argument says whether it is the last time.
    """

    def __init__(
        self,
        run: Path,
        manifest: RankManifest,
        *,
        rows: Rows | None = None,
        complete: Callable[[bool], None] | None = None,
        interval_s: float = FLUSH_INTERVAL_S,
        clock: Clock = now_ns,
    ) -> None:
        self._files = RankFiles(
            run / rank_folder(manifest.rank),
            manifest.rank,
            give_way=functools.partial(time.sleep, TURN_S),
        )
        manifest.write(self._files.folder)
        self._rows = no_rows() if rows is None else rows
        self._asked, self._is_full = 0, False
        self._complete = complete or (lambda final: None)
        self._interval_s = interval_s
        self._clock = clock
        self._anchor = manifest.anchor
        self._next_anchor_ns = clock() + ANCHOR_INTERVAL_NS
        self._next_cost_ns = clock() + COST_INTERVAL_NS
        self._opening_ns = 0
        self._opened = False
        self._ending = threading.Event()
        self._reason = ""
        self._warned: set[str] = set()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="profkit-writer", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str:
        """Why the capture stopped before the job did, or nothing."""
        return self._files.failure

    def is_full(self) -> bool:
        """Whether rows should not be taken now: the capture has stopped, or too many wait already."""
        if self._asked % EACH == 0:
            self._is_full = (
                bool(self._files.failure) or sum(map(len, self._rows.values())) > LARGEST_BACKLOG
            )
        self._asked += 1
        return self._is_full

    def appender(self, table: str) -> Callable[[Row], None]:
        return self._rows[table].append

    def drop(self, table: str, count: int = 1) -> None:
        """Count rows that were not taken."""
        self._files.dropped[table] += count

    def close(self, reason: str = "complete", *, timeout_s: float = 2.0) -> None:
        """Have what waits written, and the end record. Gives up on a disk that hangs after `timeout_s`.

        In a forked child this does nothing: the trace belongs to the parent.
        """
        if os.getpid() != self._pid or self._ending.is_set():
            return
        self._reason = reason
        self._ending.set()
        for _ in range(CLOSING_LOOKS):
            self._thread.join(timeout_s / CLOSING_LOOKS)
        if self._thread.is_alive():
            self._files.failure = (
                self._files.failure or f"the disk did not answer within {timeout_s:g} s"
            )
            log.warning("profkit: %s; the trace ends early", self.failure)

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            self._keep_house()
            self._complete(False)
            self._flush()
        self._next_cost_ns = 0
        self._keep_house()
        self._complete(True)
        self._flush()
        if self._rows["samples"]:  # a short job's only flush has noted itself
            self._flush()
        self._files.close(self._reason)

    def _keep_house(self) -> None:
        """Own cost and clock drift, as samples like any other."""
        now = self._clock()
        append = self.appender("samples")
        if now >= self._next_cost_ns:
            self._next_cost_ns = now + COST_INTERVAL_NS
            append(
                (None, "profkit", WRITER_CPU, now, float(time.thread_time_ns() - self._opening_ns))
            )
        if now >= self._next_anchor_ns:
            self._next_anchor_ns = now + ANCHOR_INTERVAL_NS
            anchor = read_anchor(self._clock)
            drift = (anchor.realtime_ns - self._anchor.realtime_ns) - (
                anchor.monotonic_ns - self._anchor.monotonic_ns
            )
            append((None, "clock", "realtime_drift_ns", anchor.monotonic_ns, float(drift)))

    def _flush(self) -> None:
        for table, rows in self._rows.items():
            while waiting := rows[:CHUNK]:
                del rows[: len(waiting)]
                self._write(table, waiting)
        if not self._opened:
            self._note_opening()

    def _note_opening(self) -> None:
        """Count the first flush as opening: it loads what later ones only use."""
        self._opened = True
        self._opening_ns = time.thread_time_ns()
        opening = float(self._opening_ns)
        self.appender("samples")((None, "profkit", OPENING_CPU, self._clock(), opening))

    def _write(self, table: str, rows: list[Row]) -> None:
        names = SCHEMAS[table].names[1:]
        try:
            self._files.write(table, dict(zip(names, zip(*rows, strict=True), strict=True)))
        except Exception as error:  # noqa: BLE001  # a row of the wrong shape costs its batch, never the thread or the job
            self.drop(table, len(rows))
            self._warn_once(table, error)

    def _warn_once(self, table: str, error: Exception) -> None:
        if table not in self._warned:
            self._warned.add(table)
            log.warning(
                "profkit: rows of %s could not be written and are counted as dropped: %s",
                table,
                error,
            )
