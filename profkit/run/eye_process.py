"""Start the eye: the process that reads the stacks of the job from outside."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from profkit.eye.announcing import EYE_VARIABLE, name_eye
from profkit.run.choosing import Choice

START = """
import sys
words = sys.argv[1:]
import json
sys.path[:] = json.loads(words[0])
from profkit.eye.eye import main
main(words[1])
"""
"""Isolated, so that no file of the folder in which the job starts is taken for a module."""

LONGEST_END_S = 5.0


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
    command = [sys.executable, "-I", "-c", START, json.dumps(sys.path), str(run.absolute())]
    try:
        eye = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:  # the user may have no processes left; then the run has no lines
        yield
        return
    environment[EYE_VARIABLE] = name_eye(eye.pid)
    try:
        yield
    finally:
        environment.pop(EYE_VARIABLE, None)
        if eye.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended before
                if in_job:
                    eye.stdin.write(b"\n")
                eye.stdin.close()  # that is how it learns that the job has ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            eye.wait(LONGEST_END_S)
