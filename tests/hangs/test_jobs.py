"""Real jobs of two ranks over gloo that hang: what `profkit run` says, and `profkit why` later."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.house.test_packaging import TOP

HANGS = TOP / "benchmarks" / "hangs"
LIMIT_S = 4
PATIENCE_S = 240
AT = 25


def start(folder: Path, plant: str, *, framework: str = "torch") -> subprocess.Popen[bytes]:
    """Start a job whose rank 1 hangs, recorded by `profkit run`, in a group of its own."""
    command = [HANGS / "hang_launch.py", 2, HANGS / f"hang_job_{framework}.py"]
    command += [plant, 1, AT, LIMIT_S, folder]
    profkit = [sys.executable, "-m", "profkit", "run", "--collect", "none", "--hang-after"]
    profkit += [str(LIMIT_S), "-o", str(folder / "runs"), "--", sys.executable]
    with open(folder / "err", "w") as err:
        return subprocess.Popen(
            [*profkit, *map(str, command)], stdout=err, stderr=err, start_new_session=True
        )


def kill_after_verdict(process: subprocess.Popen[bytes], folder: Path) -> str:
    """Kill profkit and all ranks once an alarm was printed; return what was printed."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        # Before the first step there may be a notice, if the machine is busy.
        if "the job stands still" in (folder / "err").read_text():
            time.sleep(0.5)
            break
        time.sleep(0.2)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return (folder / "err").read_text()


def why(folder: Path) -> tuple[int, Any]:
    run = next((folder / "runs").glob("*/run.json")).parent
    done = subprocess.run(
        [sys.executable, "-m", "profkit", "why", "--json", str(run)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_a_rank_that_never_enters_is_named_with_its_line(tmp_path: Path, framework: str) -> None:
    if framework == "paddle":
        pytest.importorskip("paddle")
    said = kill_after_verdict(start(tmp_path, "sleep", framework=framework), tmp_path)
    assert "the job stands still" in said
    code, account = why(tmp_path)
    assert code == 12
    verdict = account["verdict"]
    assert (verdict["class"], verdict["ranks"], verdict["waiting"]) == ("never entered", [1], [0])
    lines = (HANGS / "hang_sites.py").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "# site: sleep" in text)
    place = verdict["places"]["1"]
    assert (Path(place["file"]).name, place["line"]) == ("hang_sites.py", line)
    assert place["function"] == "Resizer.__call__"
    assert "rank 1 has not entered it" in said


def test_a_call_that_holds_the_interpreter_has_a_line_too(tmp_path: Path) -> None:
    kill_after_verdict(start(tmp_path, "native"), tmp_path)
    _, account = why(tmp_path)
    lines = (HANGS / "hang_sites.py").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "# site: native" in text)
    assert account["verdict"]["ranks"] == [1]
    assert account["verdict"]["places"]["1"]["line"] == line


def test_long_parts_of_a_healthy_job_raise_no_alarm(tmp_path: Path) -> None:
    process = start(tmp_path, "healthy")
    assert process.wait(PATIENCE_S) == 0
    said = (tmp_path / "err").read_text()
    assert "stands still" not in said
    assert "which may be as it should: only some ranks evaluate" in said
    code, account = why(tmp_path)
    assert (code, account["state"]) == (0, "did not hang")


SLOW_AFTER_EVALUATION = """
import os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
inner = torch.nn.Linear(4, 4)
model = torch.nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
is_first = os.environ["RANK"] == "0"
for number in range(60):
    if number == 40 and is_first:
        inner.eval()
        time.sleep(6)
        inner.train()
        time.sleep(2.5)  # as a batch that is slow to load
    model(torch.ones(4, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
dist.barrier()
dist.destroy_process_group()
"""


def run_healthy(folder: Path, job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a job of two ranks under `profkit run` to its end."""
    (folder / "job.py").write_text(job)
    profkit = [sys.executable, "-m", "profkit", "run", "--hang-after", str(LIMIT_S)]
    profkit += ["-o", str(folder / "runs"), "--", sys.executable, str(HANGS / "hang_launch.py")]
    done = subprocess.run(
        [*profkit, "2", str(folder / "job.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_slow_batch_after_an_evaluation_raises_no_alarm(tmp_path: Path) -> None:
    """The other rank has waited for longer than the limit, but the batch has a limit of its own."""
    done = run_healthy(tmp_path, SLOW_AFTER_EVALUATION)
    assert "which may be as it should: only some ranks evaluate" in done.stderr
    assert "stands still" not in done.stderr


SLOW_WRITER = """
import time
import torch.distributed.checkpoint as checkpoint

class SlowWriter(checkpoint.FileSystemWriter):
    def write_data(self, plan, planner):
        time.sleep(9)
        return super().write_data(plan, planner)
"""
ASYNC_SAVE = """
import os, sys, time
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint

sys.path.append(os.path.join(sys.argv[1], "site-packages"))
from slow_writer import SlowWriter

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
is_first = os.environ["RANK"] == "0"
saving = None
for number in range(60):
    if number == 40 and is_first:
        writer = SlowWriter(os.path.join(sys.argv[1], "checkpoint"))
        state = {"model": model.state_dict()}
        saving = checkpoint.async_save(state, storage_writer=writer, no_dist=True)
    if number == 45 and saving is not None:
        saving.result()  # before the next one
    model(torch.ones(4, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
dist.barrier()
dist.destroy_process_group()
"""


def test_a_wait_for_a_checkpoint_that_torch_writes_in_a_thread_raises_no_alarm(
    tmp_path: Path,
) -> None:
    """No frame of that thread is in the job's own code."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/slow_writer.py").write_text(SLOW_WRITER)
    done = run_healthy(tmp_path, ASYNC_SAVE, str(tmp_path))
    assert "stands still" not in done.stderr
    assert "which may be as it should: checkpoint" in done.stderr
    assert "waits for a lock or a thread; another thread of it is in " in done.stderr


STANDING = """
import sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for number, (batch,) in enumerate(DataLoader(TensorDataset(torch.ones(400, 4)), 4)):
    model(batch).sum().backward()
    optimizer.step()
    time.sleep(0.02)
    if number == 60:
        time.sleep(600)
"""


def listeners(group: int) -> list[str]:
    """Return the sockets on which a process of this group listens."""
    listening: set[str] = set()
    for table in ("tcp", "tcp6"):
        rows = map(str.split, Path("/proc/net", table).read_text().splitlines()[1:])
        listening.update(row[9] for row in rows if row[3] == "0A")
    for row in map(str.split, Path("/proc/net/unix").read_text().splitlines()[1:]):
        if int(row[3], 16) & 0x10000:
            listening.add(row[6])
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            open_file = os.readlink(link)
            if open_file.strip("socket:[]") in listening:
                found += [open_file] * (os.getpgid(int(link.parts[2])) == group)
    return found


def test_a_job_that_stands_still_has_no_listener(tmp_path: Path) -> None:
    """profkit finds out who hangs from files alone."""
    (tmp_path / "job.py").write_text(STANDING)
    profkit = [sys.executable, "-m", "profkit", "run", "--hang-after"]
    profkit += [str(LIMIT_S), "-o", str(tmp_path / "runs"), "--", sys.executable]
    with open(tmp_path / "err", "w") as err, socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        assert listeners(os.getpgrp()), "the check sees a listener"
        process = subprocess.Popen(
            [*profkit, str(tmp_path / "job.py")], stdout=err, stderr=err, start_new_session=True
        )
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and process.poll() is None:
            if "the job stands still" in (tmp_path / "err").read_text():
                break
            time.sleep(0.2)
        is_running, found = process.poll() is None, listeners(process.pid)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert is_running
    assert "the job stands still" in (tmp_path / "err").read_text()
    assert found == []
