"""Runs whole processes, and measures their time and memory."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Cost(NamedTuple):
    """Time and memory of one process, and its output."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    printed: str = ""


def bytecode_in(folder: Path) -> dict[str, str]:
    """Return an environment with bytecode in a folder of its own, like an installed program."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPYCACHEPREFIX": str(folder),
    }


def measure(command: Sequence[str], environment: Mapping[str, str]) -> Cost:
    """Run `command` to its end."""
    with tempfile.TemporaryFile("w+") as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.DEVNULL, env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        printed = output.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6, printed)
