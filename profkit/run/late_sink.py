"""Buffer a job's rows until its files are open: opening them never delays the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from profkit.instrument.rows import Append, Row
from profkit.vocab import ROW_TABLES

if TYPE_CHECKING:
    from profkit.trace import RankManifest, RankWriter

MAX_SPANS_BEFORE_FILES = 200_000
"""No more spans are buffered than this: a process that never trains must not fill the memory."""


class LateSink:
    """Takes rows from the start, and gets its files later."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {table: [] for table in ROW_TABLES}
        self._writer: RankWriter | None = None
        self._failure = ""
        spans = self.rows["spans"]
        self.is_full: Callable[[], bool] = lambda: (
            bool(self._failure) or len(spans) > MAX_SPANS_BEFORE_FILES
        )

    @property
    def failure(self) -> str:
        return self._failure or (self._writer.failure if self._writer else "")

    def appender(self, table: str) -> Append:
        return self.rows[table].append

    def drop(self, table: str, count: int = 1) -> None:
        if self._writer:
            self._writer.drop(table, count)

    def attach(self, writer: RankWriter) -> None:
        self._writer = writer
        self.is_full = writer.is_full

    def describe(self, manifest: RankManifest) -> None:
        if self._writer:
            self._writer.describe(manifest)

    def give_up(self, why: str) -> None:
        """Drop all rows and take no more: there will be no files."""
        self._failure = why
        for rows in self.rows.values():
            rows.clear()

    def close(self) -> None:
        if self._writer:
            self._writer.close()
