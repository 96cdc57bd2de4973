"""What the jobs of both frameworks share: arguments, the places to hang, and when to hang there.

    hang_job_FRAMEWORK.py PLANT RANK STEP LIMIT FOLDER

A job writes the time at which it begins to hang to FOLDER/planted. The loops, models and
collectives are each framework's own: they are what profkit has to recognise.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hang_sites
from hang_plants import BY_NAME, HEALTHY

PLANT, RANK, STEP, LIMIT, FOLDER = sys.argv[1:6]
ME = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
IS_CULPRIT = int(RANK) == ME
AT = int(STEP)
LIMIT_S = float(LIMIT)
STEPS = 10_000
EVALUATED_S = 2.5
PAIR = sorted({int(RANK), (int(RANK) + 1) % WORLD})
"""The ranks of a group that is smaller than the job, if there are more than two."""

STEP_S = BY_NAME.get(PLANT, HEALTHY).step_s
SIMPLE = {
    "sleep": hang_sites.decode_sleeping,
    "spin": hang_sites.spin,
    "read": lambda: hang_sites.read_manifest(FOLDER),
    "lock": hang_sites.take_lock,
    "queue": hang_sites.take_from_queue,
    "native": hang_sites.call_native,
    "subprocess": hang_sites.run_tool,
    "pipe": hang_sites.write_log,
    "raise": hang_sites.fail,
    "stopped": hang_sites.stop,
    "killed": hang_sites.die,
    "exited": hang_sites.leave,
    "late": lambda: hang_sites.late(2 * LIMIT_S),
    "slow_steps": hang_sites.decode_sleeping,
    "helper": hang_sites.wait_for_helper,
    "deadlock": hang_sites.cross_locks,
    "network": hang_sites.ask_server,
    "coroutine": hang_sites.run_coroutine,
    "file": lambda: hang_sites.wait_for_file(FOLDER),
    "logging": hang_sites.log_line,
    "crash": hang_sites.crash,
    "quit": hang_sites.quit_early,
}
"""The hangs between two steps that need no framework."""


def note_time() -> None:
    """Note that the job begins to hang now."""
    Path(FOLDER, "planted").write_text(str(time.time()))


def plant(name: str) -> bool:
    """Return true if this rank is to hang in this way; note the time."""
    if name != PLANT or not IS_CULPRIT:
        return False
    note_time()
    return True


def plant_sample(index: int) -> None:
    """Hang in the data set, if this sample is the one."""
    if index == 8 * AT and (plant("data_inline") or plant("data_worker")):
        hang_sites.read_sample()
    if index == 8 * AT and plant("data_worker_stopped"):
        hang_sites.stop()
    if index == 8 * AT and plant("data_worker_dead"):
        hang_sites.die()


@dataclass
class SlowToSave:
    """Takes long to be pickled."""

    seconds: float = 1.5 * LIMIT_S

    def __reduce__(self) -> Any:
        time.sleep(self.seconds)  # site: checkpoint
        return dict, ()


def cut_links() -> None:
    """Have the sockets between ranks stay open and pass nothing on."""
    note_time()
    silent, other = socket.socketpair()
    store = int(os.environ["MASTER_PORT"])
    for number in list(map(int, os.listdir("/proc/self/fd"))):
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode) or number in {
                silent.fileno(),
                other.fileno(),
            }:
                continue
            peer = socket.socket(fileno=os.dup(number))
            ports = {peer.getsockname()[1], peer.getpeername()[1]}
        except (OSError, IndexError):
            continue
        if store not in ports:
            KEPT.append(peer)
            os.dup2(silent.fileno(), number)
    KEPT.extend([silent, other])


KEPT: list[Any] = []
