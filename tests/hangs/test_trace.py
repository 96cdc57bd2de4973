"""`profkit trace` on two real ranks, one of which stands still, and `profkit why`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from profkit.hangs.account import FINE, HUNG, read_account
from profkit.hangs.status import ENDED, FOLDER, Status, read_statuses
from profkit.trace.reader import find_runs
from tests.hangs.test_jobs import PATIENCE_S, why
from tests.warm import warm_python

LIMIT_S = 3
AT = 12
STANDING = f"""
import os, time
if os.environ.get("RANK") == "1":
    from profkit.workloads.training.loop import Training
    steps = Training._step
    def stand_still(self, batch, epoch):
        if self._done.steps == {AT}:
            time.sleep(600)  # stands
        steps(self, batch, epoch)
    Training._step = stand_still
"""
SYSTEM = ("trace", "resnet50", "--data", "synthetic", "--image-size", "32", "--batch-size", "2")


def start(folder: Path, *words: str, standing: bool = True) -> subprocess.Popen[bytes]:
    """Start the smallest reference system, of which rank 1 stands still at a step."""
    plant = folder / "plant"
    plant.mkdir()
    if standing:
        (plant / "sitecustomize.py").write_text(STANDING)
    python = warm_python("paddle" if "paddle" in words else "torch")
    command = [python, "-m", "profkit", *SYSTEM, *words, "--collect", "none"]
    command += ["--hang-after", str(LIMIT_S), "-o", str(folder / "runs")]
    environment = {**os.environ, "PYTHONPATH": str(plant), "OMP_NUM_THREADS": "1"}
    with open(folder / "err", "w") as err:
        return subprocess.Popen(
            command, stdout=err, stderr=err, env=environment, start_new_session=True
        )


def wait_for(folder: Path, words: str, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while words not in (folder / "err").read_text():
        assert process.poll() is None, (folder / "err").read_text()
        assert time.monotonic() < deadline, (folder / "err").read_text()
        time.sleep(0.2)
    time.sleep(0.5)
    return (folder / "err").read_text()


@pytest.mark.parametrize(
    ("framework", "ended_by"), [("torch", signal.SIGKILL), ("paddle", signal.SIGTERM)]
)
def test_a_rank_that_stands_still_is_named_with_its_line(
    tmp_path: Path, framework: str, ended_by: signal.Signals
) -> None:
    words = ("--framework", framework, "--ranks", "2", "--steps", "500")
    process = start(tmp_path, *words)
    try:
        said = wait_for(tmp_path, "the job stands still", process)
    finally:
        if ended_by is signal.SIGKILL:
            os.killpg(process.pid, ended_by)
        else:
            process.terminate()
        process.wait()
    assert "rank 1 has not entered it: sitecustomize.py:8 stand_still" in said
    code, account = why(tmp_path)
    assert (code, account["state"]) == (12, HUNG)
    verdict = account["verdict"]
    assert (verdict["class"], verdict["ranks"], verdict["waiting"]) == ("never entered", [1], [0])
    place = verdict["places"]["1"]
    assert (Path(place["file"]).name, place["line"]) == ("sitecustomize.py", 8)


def test_a_system_that_trains_raises_no_alarm_and_says_its_end(tmp_path: Path) -> None:
    process = start(tmp_path, "--ranks", "2", "--steps", "30", standing=False)
    assert process.wait(PATIENCE_S) == 0
    assert "stands still" not in (tmp_path / "err").read_text()
    (run,) = find_runs(tmp_path / "runs")
    statuses = list(read_statuses(run / FOLDER))
    assert len(statuses) == 2
    for status in statuses:
        assert isinstance(status, Status)
        assert (status.state, status.steps) == (ENDED, 30)
    assert read_account(run).state == FINE


def statuses_of(folder: Path) -> list[Status]:
    """Return what the ranks have noted so far; a file that is being written is left out."""
    found = []
    for status_folder in folder.glob(f"runs/*/{FOLDER}"):
        for status in read_statuses(status_folder):
            if isinstance(status, Status):
                found.append(status)
    return found


def test_one_process_that_is_told_to_end_did_not_hang(tmp_path: Path) -> None:
    process = start(tmp_path, "--steps", "100000", standing=False)
    try:
        while not any(status.steps > 3 for status in statuses_of(tmp_path)):
            assert process.poll() is None, (tmp_path / "err").read_text()
            time.sleep(0.2)
        process.terminate()
        assert process.wait(PATIENCE_S)
    finally:
        process.kill()
    (run,) = find_runs(tmp_path / "runs")
    (status,) = read_statuses(run / FOLDER)
    assert isinstance(status, Status)
    assert status.steps > 3
    assert read_account(run).state == FINE
