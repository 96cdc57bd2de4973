"""Signals that reach profkit while a job runs: they are passed on to its processes."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that reach profkit alone. The terminal itself sends Ctrl-C to the job's processes."""

ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""Signals that ask a job to end; it may do so with exit code 0, after a last checkpoint."""


@contextlib.contextmanager
def forwarding(
    told: Callable[[], object] = lambda: None, received: list[int] | None = None
) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Yield a function that starts processes, which get the signals that are sent to profkit.

    A signal that comes while a process is being started is passed on then. `told` is called at
    each signal that asks processes to end, and `received` gets the numbers of all. Ctrl-C is
    handled and not passed on: if we ignored it, the processes that we start would, too. What
    `nohup` has us ignore stays ignored.
    """
    processes: list[subprocess.Popen[bytes]] = []
    received = [] if received is None else received

    def forward(number: int, frame: FrameType | None) -> None:
        if number in ENDING:
            told()
        received.append(number)
        _send(number, processes)

    def start(command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, **how)
        processes.append(process)
        for number in received:
            _send(number, [process])
        return process

    handlers = {}
    for number in (*FORWARDED, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            handlers[number] = signal.signal(number, forward)
    try:
        yield start
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _send(number: int, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Pass a signal on, unless the terminal has sent it to the processes itself."""
    if number in FORWARDED:
        for process in processes:
            process.send_signal(number)
