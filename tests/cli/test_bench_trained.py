"""`profkit bench` with cells that are really trained, that hang, and of several machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profkit.bench import process
from profkit.cli import main
from tests.cli.test_trace_nodes import _free_port

PATIENCE_S = 300
SMALL = ("--data", "synthetic", "--image-size", "32", "--batch-size", "2", "--steps", "12")
HANGING = """#!/bin/sh
case "$*" in
*"--ranks 2"*)
    trap "" INT TERM
    sleep 600 &
    echo $! > {pid}
    wait
    sleep 600
    ;;
*"--ranks 3"*)
    echo "profkit: no luck" >&2
    exit 1
    ;;
esac
exec {python} "$@"
"""


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def rows_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.timeout(PATIENCE_S)
def test_a_cell_that_hangs_is_ended_with_all_its_processes_and_the_matrix_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both frameworks are trained first; then one cell of torch hangs, and another fails."""
    folder, pid = tmp_path / "matrix", tmp_path / "pid"
    command = ["bench", "resnet50", *SMALL, "--repeats", "1", "-o", str(folder)]
    assert main([*command, "--framework", "torch,paddle", "--ranks", "1"]) == 0
    first = rows_of(folder)
    assert sorted(str(row["log_file"]) for row in first) == [
        "resnet50_paddle_rank1_fp32_bs2_r1.log",
        "resnet50_torch_rank1_fp32_bs2_r1.log",
    ]
    assert "paddle instead of torch" in capsys.readouterr().out

    script = tmp_path / "python"
    script.write_text(HANGING.format(pid=pid, python=sys.executable))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(process, "GRACE_S", 0.5)
    begin = time.monotonic()
    assert main([*command, "--ranks", "1,2,3", "--time-limit", "2"]) == 1
    assert time.monotonic() - begin < 60
    done, hung, failed = rows_of(folder)
    assert done in first
    assert str(hung["failure"]).startswith("timed out: it was ended after 2 s (--time-limit)")
    assert (hung["FINAL_RESULT"], failed["failure"]) == (None, "no luck")
    assert "timed out" in capsys.readouterr().out
    assert not is_alive(int(pid.read_text()))


@pytest.mark.timeout(PATIENCE_S)
def test_a_run_of_two_machines_joins_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint, nodes = f"127.0.0.1:{_free_port()}", []
    for node in range(2):
        where = ("--nnodes", "2", "--node-rank", str(node), "--rdzv-endpoint", endpoint)
        command = [sys.executable, "-m", "profkit", "trace", "resnet50", *SMALL, "--ranks", "1"]
        nodes.append(
            subprocess.Popen(
                [*command, *where], cwd=tmp_path, env=os.environ, stdout=subprocess.DEVNULL
            )
        )
    assert [node.wait(PATIENCE_S) for node in nodes] == [0, 0]
    options = ("--repeats", "0", "--add", str(tmp_path / "traces"), "-o", str(tmp_path / "matrix"))
    assert main(["bench", "resnet50", *options]) == 0
    (row,) = rows_of(tmp_path / "matrix")
    assert (row["device_num"], row["batch_size"], row["JOB_FAIL_FLAG"]) == ("N2C2", 2, 0)
    assert "ranks" in capsys.readouterr().out
