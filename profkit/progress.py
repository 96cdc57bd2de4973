"""How far a long piece of work has come, told on stderr."""

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
"""Called with how many parts are done, and of how many."""

Narrator = Callable[[str], AbstractContextManager[Progress]]
"""Given what is being done (`making 720 JPEG files`), tells of it until the context ends."""

_REDRAW_NS = 100_000_000
_BAR_WIDTH = 20


class ProgressBar:
    """A bar on a terminal; where the stream is none, one line at the start and one at the end."""

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
        if self._live and (done >= total or now_ns - self._drawn_ns >= _REDRAW_NS):
            self._drawn_ns = now_ns
            self._write("\r\x1b[K" + bar_line(self._what, done, total, _columns()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ending = "stopped after" if kind else "done in"
        took = duration(self._clock() - self._started_ns, digits=2)
        self._write(("\r\x1b[K" if self._live else "") + f"{self._what} ... {ending} {took}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def bar_line(what: str, done: int, total: int, width: int) -> str:
    """One line of at most `width` characters; what does not fit is cut from `what`, never from the figures."""
    share = min(1.0, done / total) if total else 1.0
    filled = int(share * _BAR_WIDTH)
    figures = (
        f" [{'#' * filled}{'-' * (_BAR_WIDTH - filled)}] {done:,}/{total:,} {int(100 * share):3d} %"
    )
    return _cut(what, width - len(figures)) + figures


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(0, room - 3)] + "..."


def _columns() -> int:
    """The terminal's width less one: a full line would wrap, and a wrapped line cannot be drawn over."""
    return shutil.get_terminal_size().columns - 1
