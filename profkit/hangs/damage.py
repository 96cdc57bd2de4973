"""Find what is damaged or missing among the status files of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from profkit.errors import UnreadableError
from profkit.hangs.evidence import HOST_SUFFIX, WORKER_SUFFIX
from profkit.hangs.incidents import SUFFIX as ALARMS_SUFFIX
from profkit.hangs.incidents import read_lines
from profkit.hangs.status import FOLDER, STACK_SUFFIX, SUFFIX, Status
from profkit.hangs.waits import say_ranks
from profkit.plain_file import open_plain
from profkit.text import plural, safe_text
from profkit.trace.folders import find_ranks
from profkit.trace.jsonfile import read_json


def find_damage(run: Path) -> Iterator[str]:
    """Yield a line about each file that cannot be read, and one about missing files."""
    folder = run / FOLDER
    if not folder.is_dir():
        return
    ranks = set()
    for path in sorted(folder.iterdir()):
        number = path.name.partition("-")[0]
        if path.name.endswith(SUFFIX) and number.isdecimal():
            ranks.add(int(number))
        problem = _read(path)
        if problem and os.path.lexists(path):  # while the job runs, a file may go
            yield problem
    lost = sorted({rank.rank for rank in find_ranks(run)} - ranks)
    if lost:
        yield f"{say_ranks(tuple(lost))}: no status file"


def _read(path: Path) -> str:
    """Return why a file of the folder cannot be read; empty if it can."""
    shown = safe_text(str(path))
    try:
        if path.name.endswith(SUFFIX):
            Status.read(path)
        elif path.name.endswith((HOST_SUFFIX, WORKER_SUFFIX)):
            read_json(path)
        elif path.name.endswith(ALARMS_SUFFIX):
            broken = read_lines(path).count(None)
            return f"{shown}: {plural(broken, 'line')} cannot be read" if broken else ""
        elif path.name.endswith(STACK_SUFFIX):
            open_plain(path).close()
    except UnreadableError as error:
        return str(error)
    except OSError as error:
        return f"{shown}: {error.strerror}"
    return ""
