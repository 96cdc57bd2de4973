"""Start the processes next to the job: one reads its stacks, the other writes its rows."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path

from profkit.eye.announcing import EYE_VARIABLE, name_eye
from profkit.run.choosing import Choice
from profkit.scribe.messages import socket_name

START = """
import importlib, json, signal, sys
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGPIPE"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
sys.path[:] = json.loads(sys.argv[1])
importlib.import_module(sys.argv[2]).main(*sys.argv[3:])
"""
"""Isolated, so that no file of the folder in which the job starts is taken for a module.

Signals that end a job reach all of its processes; these end after the job.
"""

EYE_MODULE, SCRIBE_MODULE = "profkit.eye.eye", "profkit.scribe.scribe"

LONGEST_END_S = 5.0
LONGEST_END_OF_RANK_S = 0.5
"""Other ranks may go on, and have their rows written by what this one has started."""

_LEFT: list[subprocess.Popen[bytes]] = []
"""Processes that were not waited for."""

MOST_WAITING = 4_096
"""Ranks of a host that may connect before the scribe has begun to answer."""


@contextlib.contextmanager
def outside(
    run: Path, environment: MutableMapping[str, str], *, in_job: bool = False
) -> Iterator[None]:
    """Have the rows of this run's ranks written, and their stacks read, while the block runs.

    Both go on until the processes have ended, or if one of them is this, only for the block.
    """
    with scribe_on(run, in_job=in_job), eye_on(run, environment, in_job=in_job):
        yield


@contextlib.contextmanager
def scribe_on(run: Path, *, in_job: bool = False) -> Iterator[None]:
    """Have the rows of this run's ranks on this host written by another process.

    Where there can be none, or is one already, nothing happens: ranks that find none write
    themselves. A rank that started it hardly waits for its end, which comes after all ranks.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as listener:
            listener.bind(socket_name(run))
            listener.listen(MOST_WAITING)
            number = listener.fileno()
            words = [SCRIBE_MODULE, str(run.absolute()), str(number)]
            wait_s = LONGEST_END_OF_RANK_S if in_job else LONGEST_END_S
            stack.enter_context(_waited_for(_start(words, [number]), wait_s))
        yield


@contextlib.contextmanager
def eye_on(
    run: Path, environment: MutableMapping[str, str], *, in_job: bool = False
) -> Iterator[None]:
    """Have the stacks of this run's processes read while the block runs, unless lines are off.

    The environment of the job gets the process id of the eye. The eye continues until the processes
    have ended, or only for the block if this is one of them.
    """
    is_on = Choice.read(environment).lines and sys.platform.startswith("linux")
    if not is_on or EYE_VARIABLE in environment:
        yield
        return
    try:
        eye = _start([EYE_MODULE, str(run.absolute())])
    except OSError:  # the user may have no processes left; then the run has no lines
        yield
        return
    environment[EYE_VARIABLE] = name_eye(eye.pid)
    with _waited_for(eye, LONGEST_END_S, b"\n" if in_job else b""):
        try:
            yield
        finally:
            environment.pop(EYE_VARIABLE, None)


def _start(words: Sequence[str], descriptors: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-c", START, json.dumps(sys.path), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,
    )


@contextlib.contextmanager
def _waited_for(
    process: subprocess.Popen[bytes], longest_s: float, last: bytes = b""
) -> Iterator[None]:
    """Tell the process after the block that this one is done, and wait until it has ended."""
    try:
        yield
    finally:
        if process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended before
                process.stdin.write(last)
                process.stdin.close()  # that is how it learns that the job has ended
        try:
            process.wait(longest_s)
        except subprocess.TimeoutExpired:
            _LEFT.append(process)
