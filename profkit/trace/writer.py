"""Takes rows for the cost of a list append, and hands them on by a thread."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from profkit.clock import ANCHOR_INTERVAL_NS, Clock, now_ns, read_anchor
from profkit.trace.manifest import RankManifest
from profkit.vocab import FULL_BYTES, OPENING_CPU, ROW_TABLES, WRITER_CPU, rank_folder

if TYPE_CHECKING:
    from profkit.trace.recent import NewThinner

log = logging.getLogger("profkit")

Row: TypeAlias = tuple[Any, ...]

FLUSH_INTERVAL_S = 0.5
"""Rows are on disk this long after they were taken, well within the promised second."""

LARGEST_BACKLOG = 2_000_000
"""Maximum number of rows that wait for a slow disk before new ones are refused."""

COST_INTERVAL_NS = 5_000_000_000
"""The writer's own processor time is recorded this often, and at the end."""

CALLS_PER_COUNT = 16
"""The backlog is counted only every so many calls of `is_full`, which runs once per step."""

ROWS_PER_BATCH = 16_384
"""Maximum number of rows in a batch."""

TURN_S = 1e-4
"""The writer releases the interpreter this long, because a waiting thread needs time to wake."""

CLOSING_LOOKS = 10
"""The closing timeout is split into this many waits, so that one pause cannot use all of it."""

LONGEST_CLOSING_S = 30.0


Rows: TypeAlias = dict[str, list[Row]]
"""Rows that wait to be written, by table."""


def no_rows() -> Rows:
    """Return an empty list for each table that a job fills."""
    return {table: [] for table in ROW_TABLES}


class Files(Protocol):
    """What writes the rows of a rank: in this process, or for the scribe of this host."""

    folder: Path
    failure: str
    """The reason why no more is written, or nothing."""
    dropped: Counter[str]

    def write_rows(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows; those of another shape than the table's raise an error."""

    def thin(self, clock: Clock = now_ns) -> None:
        """Do what is due after each flush."""

    def describe(self, manifest: RankManifest) -> None:
        """Replace the rank's description."""

    def close(self, reason: str) -> None: ...

    def progress(self) -> float:
        """Return a number that grows while another process works on these rows."""


class RankWriter:
    """One rank's trace, open for rows.

    The hot path calls `appender(table)` with a tuple of the table's columns without `rank`, names
    as text. A row may miss trailing columns that are nullable. Everything else happens on the
    writer's thread. Nothing raises into the job once the constructor has returned: a disk that
    fails ends the capture, and `failure` gives the reason.

    `columns` names the columns of each table's rows; the constructor raises `ValueError` if they do
    not fit the schema. `rows` may hold rows from before the writer existed. `complete` is called on
    the thread before each flush and may append rows that have become complete. Its argument is true
    the last time. Without `files` they are opened in this process, and a run that becomes larger
    than `full_bytes` is thinned with `thinner`.
    """

    def __init__(
        self,
        run: Path,
        manifest: RankManifest,
        *,
        rows: Rows | None = None,
        columns: Mapping[str, Sequence[str]] = MappingProxyType({}),
        complete: Callable[[bool], None] | None = None,
        interval_s: float = FLUSH_INTERVAL_S,
        clock: Clock = now_ns,
        thinner: NewThinner | None = None,
        full_bytes: int = FULL_BYTES,
        files: Files | None = None,
    ) -> None:
        if files is None:
            from profkit.trace.files import RankFiles, check_columns  # imports Arrow

            check_columns(columns)
            files = RankFiles(
                run / rank_folder(manifest.rank),
                manifest.rank,
                give_way=functools.partial(time.sleep, TURN_S),
                thinner=thinner,
                full_bytes=full_bytes,
            )
            files.describe(manifest)
        self._files = files
        self.describe = files.describe
        self._rows = no_rows() if rows is None else rows
        self._is_full_calls, self._is_full = 0, False
        self._complete = complete or (lambda final: None)
        self._interval_s = interval_s
        self._clock = clock
        self._anchor = manifest.anchor
        self._next_anchor_ns = clock() + ANCHOR_INTERVAL_NS
        self._next_cost_ns = clock() + COST_INTERVAL_NS
        self._opening_ns = 0
        self._opened = False
        self._ending = threading.Event()
        self._warned: set[str] = set()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="profkit-writer", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str:
        """The reason why the capture stopped before the job did, or nothing."""
        return self._files.failure

    def is_full(self) -> bool:
        """Return true if no rows can be taken now: the capture has stopped, or too many wait."""
        if self._is_full_calls % CALLS_PER_COUNT == 0:
            waiting = sum(map(len, self._rows.values()))
            self._is_full = bool(self._files.failure) or waiting > LARGEST_BACKLOG
        self._is_full_calls += 1
        return self._is_full

    def appender(self, table: str) -> Callable[[Row], None]:
        return self._rows[table].append

    def drop(self, table: str, count: int = 1) -> None:
        """Count rows that were not taken."""
        self._files.dropped[table] += count

    def close(self, *, timeout_s: float = 2.0) -> None:
        """Write the waiting rows and the end record; give up on a hanging disk after `timeout_s`.

        What gets on, on a busy machine, is waited for, but no longer than for `LONGEST_CLOSING_S`.
        In a forked child this does nothing, because the trace belongs to the parent.
        """
        if os.getpid() != self._pid or self._ending.is_set():
            return
        self._ending.set()
        deadline, idle, before = time.monotonic() + LONGEST_CLOSING_S, 0, self._files.progress()
        while self._thread.is_alive() and idle < CLOSING_LOOKS and time.monotonic() < deadline:
            self._thread.join(timeout_s / CLOSING_LOOKS)
            now = self._files.progress()
            idle = idle + 1 if now <= before else 0
            before = now
        if self._thread.is_alive():
            if not self._files.failure:
                self._files.failure = f"the disk did not answer within {timeout_s:g} s"
            log.warning(
                "profkit: %s: %s; the trace ends early; choose another place with --output",
                self._files.folder,
                self.failure,
            )

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            self._sample_itself()
            self._complete(False)
            self._flush()
        self._next_cost_ns = 0
        self._sample_itself()
        self._complete(True)
        self._flush()
        if self._rows["samples"]:  # a short job's only flush has noted itself
            self._flush()
        self._files.close("complete")

    def _sample_itself(self) -> None:
        """Record the writer's own cost and the clock's drift, as samples like any other."""
        now = self._clock()
        append = self.appender("samples")
        if now >= self._next_cost_ns:
            self._next_cost_ns = now + COST_INTERVAL_NS
            used_ns = time.thread_time_ns() - self._opening_ns
            append((None, "profkit", WRITER_CPU, now, float(used_ns)))
        if now >= self._next_anchor_ns:
            self._next_anchor_ns = now + ANCHOR_INTERVAL_NS
            anchor = read_anchor(self._clock)
            elapsed_ns = anchor.monotonic_ns - self._anchor.monotonic_ns
            drift = anchor.realtime_ns - self._anchor.realtime_ns - elapsed_ns
            append((None, "clock", "realtime_drift_ns", anchor.monotonic_ns, float(drift)))

    def _flush(self) -> None:
        for table, rows in self._rows.items():
            while waiting := rows[:ROWS_PER_BATCH]:
                del rows[: len(waiting)]
                self._write(table, waiting)
        self._files.thin(self._clock)
        if not self._opened:
            # The first flush counts as opening, because it loads what later ones only use.
            self._opened = True
            self._opening_ns = time.thread_time_ns()
            opening = float(self._opening_ns)
            self.appender("samples")((None, "profkit", OPENING_CPU, self._clock(), opening))

    def _write(self, table: str, rows: list[Row]) -> None:
        """Write a batch; one that does not fit is counted as dropped, with a warning."""
        try:
            self._files.write_rows(table, rows)
        except Exception as error:  # noqa: BLE001  # rows of a wrong shape must not end the thread
            self.drop(table, len(rows))
            if table not in self._warned:
                self._warned.add(table)
                what = "could not be written and are counted as dropped"
                log.warning("profkit: rows of %s %s: %s", table, what, error)
