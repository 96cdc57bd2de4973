"""Jobs that tests run to their end, and the runs that they leave."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from profkit.trace import Trace
from profkit.trace.reader import find_runs

PATIENCE_S = 300
"""A job on a busy machine ends within this time, or hangs."""


def run_to_end(
    command: Sequence[object], folder: Path, environ: Mapping[str, str] = os.environ
) -> str:
    """Run a command with one thread per process, and return its output; it has to succeed."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def newest_run(folder: Path) -> Trace:
    """Open the newest run that a job in this folder left."""
    return Trace.open(find_runs(folder / "traces")[-1])
