"""Shows the progress of long work on stderr."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TextIO

from profkit.clock import Clock
from profkit.text import duration

Progress = Callable[[int, int], None]
"""Called with the number of parts that are done, and of all parts."""

Narrator = Callable[[str], AbstractContextManager[Progress]]
"""Given a description (`making 720 JPEG files`), shows the progress until the context ends."""

REDRAW_NS = 100_000_000
"""Nanoseconds between two drawings of the bar."""

BAR_WIDTH = 20
CLEAR_LINE = "\r\x1b[K"


class ProgressBar:
    """A bar on a terminal; on other streams one line at the start and one at the end."""

    def __init__(
        self, what: str, stream: TextIO | None = None, clock: Clock = time.perf_counter_ns
    ) -> None:
        self._what = what
        self._stream = stream or sys.stderr
        self._clock = clock
        self._started_ns = self._drawn_ns = clock()
        self._live = self._stream.isatty()

    def __enter__(self) -> Progress:
        self._write(_cut(self._what, _columns()) if self._live else f"{self._what} ...\n")
        return self

    def __call__(self, done: int, total: int) -> None:
        now_ns = self._clock()
        if self._live and (done >= total or now_ns - self._drawn_ns >= REDRAW_NS):
            self._drawn_ns = now_ns
            self._write(CLEAR_LINE + bar_line(self._what, done, total, _columns()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ending = "stopped after" if kind else "done in"
        took = duration(self._clock() - self._started_ns, digits=2)
        start = CLEAR_LINE if self._live else ""
        self._write(f"{start}{self._what} ... {ending} {took}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def bar_line(what: str, done: int, total: int, width: int) -> str:
    """Return one line of at most `width` characters; only the description is ever cut."""
    share = min(1.0, done / total) if total else 1.0
    filled = int(share * BAR_WIDTH)
    bar = "#" * filled + "-" * (BAR_WIDTH - filled)
    figures = f" [{bar}] {done:,}/{total:,} {int(100 * share):3d} %"
    return _cut(what, width - len(figures)) + figures


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(0, room - 3)] + "..."


def _columns() -> int:
    """Return the terminal's width less one: a line that wraps cannot be drawn over."""
    return shutil.get_terminal_size().columns - 1
