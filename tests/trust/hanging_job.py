"""Two ranks, one of which is stopped twice in training: for a while, then for ever.

The launcher ends both ranks if one fails, as real launchers do. The job waits for events and not
for fixed times: the rank is stopped for ever once its rows are on disk, and then the other rank
starts to look for it.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STOPPED_AT, STOPPED_S, LOST_AT = 40, 4.0, 60
LATE = 1
PATIENCE_S = 480.0
STOPPED = Path("stopped")
COME_BACK = (
    "while ! grep -q '^State:.*stopped' /proc/{pid}/status; do sleep 0.05; done; "
    "sleep {seconds}; kill -CONT {pid}"
)


def launch() -> int:
    """Start the ranks; 1 where one failed, after the other one was killed."""
    env = {**os.environ, "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(2)
    ]
    wait_for(
        lambda: any(rank.poll() for rank in ranks) or all(rank.poll() == 0 for rank in ranks),
        PATIENCE_S,
    )
    for rank in ranks:
        rank.kill()
    return max(rank.wait() != 0 for rank in ranks)


def train(rank: int) -> None:
    import torch  # the launcher needs none
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{Path.cwd()}/meet", rank=rank, world_size=2
    )
    torch.manual_seed(0)
    inner = torch.nn.Linear(8, 2)
    model = torch.nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(8 * LOST_AT, 8)), batch_size=4
    )
    for step, (batch,) in enumerate(batches):
        if step == STOPPED_AT and rank == LATE:
            stop_in_forward(inner)
        elif step == LOST_AT:
            stop_for_ever() if rank == LATE else look_for_the_other()
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def stop_in_forward(model: Any) -> None:
    """Stop this process in its next forward; a shell lets it go on."""

    def stop(module: object, arguments: object) -> None:
        handle.remove()
        subprocess.Popen(["sh", "-c", COME_BACK.format(pid=os.getpid(), seconds=STOPPED_S)])
        os.kill(os.getpid(), signal.SIGSTOP)

    handle = model.register_forward_pre_hook(stop)


def stop_for_ever() -> None:
    wait_for(lambda: steps_on_disk() >= LOST_AT, PATIENCE_S / 4)
    STOPPED.touch()
    os.kill(os.getpid(), signal.SIGSTOP)


def look_for_the_other() -> None:
    """The job's own time limit: it fails where the other rank does not come."""
    import torch.distributed as dist

    wait_for(STOPPED.exists, PATIENCE_S / 2)
    dist.monitored_barrier(timeout=dt.timedelta(seconds=1))


def steps_on_disk() -> int:
    from profkit.trace import Trace
    from profkit.trace.reader import find_runs

    runs = find_runs(Path("traces"))
    return (
        sum(rank == LATE for rank in Trace.open(runs[0]).steps["rank"].to_pylist()) if runs else 0
    )


def wait_for(condition: Callable[[], bool], most_s: float) -> None:
    """Until it is so; what comes after `most_s` finds out that it is not."""
    limit = time.monotonic() + most_s
    while not condition() and time.monotonic() < limit:
        time.sleep(0.05)


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]))
    else:
        sys.exit(launch())
