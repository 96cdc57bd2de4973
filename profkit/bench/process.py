"""The process of one cell: its output goes to a file, and it ends together with us."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
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
    "PROFKIT_FRAMEWORK",
)
"""The variables that set an axis of the matrix; each cell gets its own place as options."""

GRACE_S: Final = 30.0
"""A run that is asked to end may take this long to close its files."""


def run_logged(words: Sequence[str], log: Path, limit_s: float | None = None) -> int:
    """Run `profkit` with these words, write its output to `log`, and return its exit status.

    All processes of the run are ended if we are interrupted, or if the run takes longer than its
    limit, which is a `subprocess.TimeoutExpired`. SIGTERM and SIGHUP are treated as Ctrl-C.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    environment = dict(os.environ)
    for name in AXES:
        environment.pop(name, None)
    handlers = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "profkit", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
            )
        try:
            return process.wait(limit_s)
        except BaseException:
            _end_group(process)
            raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the run's processes as a terminal does on Ctrl-C; kill those that stay.

    Its first process may end before a rank or a loader worker that hangs, so the group is killed
    in any case.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
