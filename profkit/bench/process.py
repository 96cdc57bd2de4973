"""The process of one cell: its output goes to a file, and it ends together with us."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

AXES: Final = (
    "PROFKIT_GPUS",
    "PROFKIT_DEVICES",
    "PROFKIT_RANKS",
    "PROFKIT_AMP",
    "PROFKIT_BATCH_SIZE",
    "PROFKIT_DALI",
)
"""The variables that set an axis of the matrix; each cell gets its own place as options."""

GRACE_S: Final = 30.0
"""A run that is asked to end may take this long to close its files."""


def run_logged(words: Sequence[str], log: Path) -> int:
    """Run `profkit` with these words, write its output to `log`, and return its exit status.

    If we are interrupted, all processes of the run are interrupted once.
    """
    environment = dict(os.environ)
    for name in AXES:
        environment.pop(name, None)
    with log.open("wb") as file, _interruptible():
        process = subprocess.Popen(
            [sys.executable, "-m", "profkit", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment,
            start_new_session=True,
        )
        try:
            return process.wait()
        except BaseException:
            _end(process)
            raise


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C, so that the running cell is closed first."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the run's processes as a terminal does on Ctrl-C; kill them if they stay."""
    try:
        _signal_all(process, signal.SIGINT)
        process.wait(GRACE_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        _signal_all(process, signal.SIGKILL)
        process.wait()


def _signal_all(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
