"""Find the process that writes the rows of a run."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def scribe_of(run: Path) -> int:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"profkit.scribe.scribe" in words and os.fsencode(run.absolute()) in words:
                return int(pid)
    raise AssertionError(f"nobody writes {run}")
