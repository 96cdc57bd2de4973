"""The folder of a job that `profkit run` did not start: all ranks of one launch share it."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path

from profkit.errors import ProfkitError
from profkit.rank import TORCHRUN, rank_of, read_number
from profkit.run.naming import name_script


def make_own_run() -> Path:
    """Make the folder, or join the one that another rank of the launch has made."""
    script = name_script(Path(sys.argv[0])) if sys.argv and sys.argv[0] else "python"
    parent = Path(os.environ.get("PROFKIT_OUTPUT", "traces")).absolute()
    folder = parent / f"{script}-{time.strftime('%Y%m%d')}-{name_launch()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ProfkitError(f"{folder}: {error.strerror}") from error
    return folder


def name_launch() -> str:
    """Return a name that the ranks of one launch have in common, and that no other launch has.

    It is the launcher's name for the launch, which ranks on several nodes share, or else the id of
    the process that started the ranks. The name that a user gives to torchrun is used again, but
    with another port.
    """
    if rank_of() is None:
        # A user's script may start its own ranks, as Lightning does.
        is_child = read_number(os.environ, TORCHRUN.local_rank, 0) > 0
        if multiprocessing.parent_process() is not None:
            is_child = "MASTER_PORT" in os.environ
        return str(os.getppid() if is_child else os.getpid())
    elastic = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if elastic != "none" and os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE"):
        return f"{elastic}-{os.environ.get('MASTER_PORT', '')}"
    step = os.environ.get("SLURM_STEP_ID")
    return f"{os.environ.get('SLURM_JOB_ID', '')}.{step}" if step else str(os.getppid())
