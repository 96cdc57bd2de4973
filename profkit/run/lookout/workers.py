"""A thread of each loader worker that notes where a batch hangs.

The rank that waits for the batch sees no stack of another process. Where the eye may not read it,
the worker writes its own.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from pathlib import Path
from typing import Protocol

from profkit.clock import wall_ns
from profkit.eye.announcing import announce, why_not_read
from profkit.hangs.processes import look_at, pid_space
from profkit.hangs.status import FOLDER, SUFFIX, WORKER_SUFFIX, Status, read_limit
from profkit.instrument.guard import guarded
from profkit.rank import rank_of
from profkit.run.lookout.stacks import Stacks
from profkit.trace.jsonfile import replace_json

LOOKS_PER_LIMIT = 6
USUAL_LIMIT_S = 30.0


class Meter(Protocol):
    """The counters of a worker."""

    tasks: int
    idle: bool
    worker: int


def watch_worker(run: Path, meter: Meter, *, lines: bool = False) -> None:
    """Start the thread in this process, which is a worker of a loader."""
    threading.Thread(
        target=guarded("lookout in a worker", _watch, None),
        args=(run, meter, lines),
        name="profkit-lookout",
        daemon=True,
    ).start()


def _watch(run: Path, meter: Meter, lines: bool) -> None:
    folder = run / FOLDER
    every_s = (read_limit(os.environ) or USUAL_LIMIT_S) / LOOKS_PER_LIMIT
    stacks, thread = Stacks(), threading.main_thread()
    rank = rank_of()
    if lines:
        guarded("lines of a worker", _announce, None)(run, meter.worker)
    tasks, looks, path = -1, 0, None
    while True:
        time.sleep(every_s)
        if meter.tasks != tasks or meter.idle:
            tasks, looks = meter.tasks, 0
            if path is not None:
                path.unlink(missing_ok=True)
                path = None
            continue
        looks += 1
        if looks < 2 or why_not_read(run) is None:
            continue
        look = look_at(os.getpid(), os.getpid())
        stack, _ = stacks.read(thread.ident or 0)
        status = Status(
            rank.number if rank else 0,
            rank.world_size if rank else 1,
            platform.node(),
            os.getpid(),
            pid_space=pid_space(),
            written_ns=wall_ns(),
            thread_state=look.state,
            system_call=look.system_call,
            reads=stacks.shown(look.reads),
            stack=stack,
        )
        path = folder / status.file_name.replace(SUFFIX, WORKER_SUFFIX)
        with contextlib.suppress(OSError):  # a disk may be full for a while
            replace_json(path, status.as_content())


def _announce(run: Path, worker: int) -> None:
    """Have the thread that makes batches sampled from outside."""
    rank, thread = rank_of(), threading.main_thread().ident or 0
    witness, native = threading.get_ident(), os.getpid()
    number = rank.number if rank else 0
    announce(run, number, thread, "", native=native, witness=witness, worker=worker)
