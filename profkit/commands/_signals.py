"""Signals that end a process, as exceptions: what is open is closed and marked."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Terminated(SystemExit):
    """The process was told to end by a signal; the exit code is the shell's for it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name

    def __str__(self) -> str:
        return self.name


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that the run is closed and marked."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise Terminated(number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
