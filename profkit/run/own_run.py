"""The folder of a job that `profkit run` did not start: all ranks of one launch share it."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profkit.rank import TORCHRUN, rank_of, read_number
from profkit.run.naming import name_script
from profkit.run.wiring import complete_manifest


def own_run_folder() -> Path:
    """Return the folder, which the first rank of the launch makes once it trains."""
    script = name_script(Path(sys.argv[0])) if sys.argv and sys.argv[0] else "python"
    parent = Path(os.environ.get("PROFKIT_OUTPUT", "traces")).absolute()
    return parent / f"{script}-{time.strftime('%Y%m%d')}-{name_launch()}"


def write_own_run(run: Path, framework: str, world_size: int, created_ns: int) -> None:
    """Write `run.json`; no launcher of ours does."""
    from profkit.command_words import plain_words
    from profkit.trace import RunManifest

    manifest = RunManifest(
        workload=Path(sys.argv[0]).stem,
        framework=framework,
        world_size=world_size,
        config={"command": plain_words(sys.argv)},
    )
    complete_manifest(manifest, created_ns=created_ns, in_job=True).write(run)


def conclude_own_run(run: Path, config: Mapping[str, Any]) -> None:
    """Write into `run.json` that the run has ended, and what it trained."""
    from profkit.run.run_folder import finish_run, record_own_cost
    from profkit.trace import RunManifest

    finish_run(run, config={**config, **RunManifest.read(run).config})
    record_own_cost(run)


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
