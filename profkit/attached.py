"""Names and notes that `profkit run` shares with the processes of its job.

Every Python process of a job loads this module at its start, so it imports nothing that Python has
not loaded by then. A Python without profkit loads it by its path.
"""

import os
import sys
from _thread import allocate_lock, start_new_thread

RUN_VARIABLE = "PROFKIT_RUN"
"""The environment variable that holds the run's folder."""

SAMPLES_VARIABLE = "PROFKIT_SAMPLES_PER_STEP"
"""The environment variable that says how many samples a rank trains on in each step."""

FULL_VARIABLE = "PROFKIT_FULL_MB"
"""The environment variable that says how large a rank's tables become before they are thinned."""

FRAMEWORKS = {"torch": "pytorch", "paddle": "paddlepaddle"}
"""The module by which a framework is known, and its file in `profkit.instrument.frameworks`."""

NOTES_FILE = ".attached"
ANSWER_S = 2.0
"""A process waits so long for the disk to take a note, and leaves no further one after that."""

MOST_NOTES_BYTES = 65_536
"""A job that starts workers in every epoch must not fill the disk with notes."""

STARTED = "started"
WITHOUT_PROFKIT = "without"
HOOKED = "hooked"
MISSED = "missed"
FAILED = "failed"
TRAINED = "trained"
UNCOMPILED = "uncompiled"

_stuck = []  # type: list[str]
"""The run whose disk has not answered this process."""


def disabled() -> bool:
    """Return true if `PROFKIT_DISABLE` switches profkit off."""
    return os.environ.get("PROFKIT_DISABLE", "").lower() not in {"", "0", "false", "no"}


def note(event: str, detail: str = "") -> None:
    """Append what this process has come to; the launcher reads it if nothing was recorded."""
    run = os.environ.get(RUN_VARIABLE)
    if not run or run in _stuck:
        return
    line = f"{event}\t{os.getpid()}\t{detail}\n"
    written = allocate_lock()
    written.acquire()

    def write() -> None:
        try:
            _append(os.path.join(run, NOTES_FILE), line.encode("utf-8", "replace"))
        finally:
            written.release()

    try:
        start_new_thread(write, ())
    except RuntimeError:  # Python is about to end, or the user has no threads left
        write()
        return
    if not written.acquire(timeout=ANSWER_S):
        _stuck.append(run)


def _append(notes: str, line: bytes) -> None:
    try:
        file = os.open(notes, os.O_WRONLY | os.O_APPEND)
        try:
            if os.fstat(file).st_size < MOST_NOTES_BYTES:
                os.write(file, line)
        finally:
            os.close(file)
    except OSError:  # without the notes the launcher's hint says less
        return


def read_notes(run: str) -> list[tuple[str, int, str]]:
    """Return the event, the process and the detail of each note in a run."""
    from profkit.plain_file import read_plain  # not needed by processes of the job

    notes = []
    try:
        text = read_plain(os.path.join(run, NOTES_FILE), 2 * MOST_NOTES_BYTES)
    except OSError:
        return []
    for line in text.decode("utf-8", "replace").splitlines():
        event, _, rest = line.partition("\t")
        process, _, detail = rest.partition("\t")
        if process.isdigit():
            notes.append((event, int(process), detail))
    return notes


def executable() -> str:
    """Return the path of this Python, for a note."""
    return sys.executable or "python"
