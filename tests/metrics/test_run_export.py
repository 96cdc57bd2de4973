"""`profkit run --export-to`: the watching process writes, the job is left alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from profkit import cli
from profkit.trace.reader import find_runs
from tests.metrics.test_exports import read_back

JOB = Path(__file__).parent / "jobs" / "sockets.py"


def record(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "profkit", "run", *options, "--", sys.executable, str(JOB)]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )


def test_the_file_holds_the_end_of_the_job_and_the_job_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("prometheus_client", reason="the extra 'prometheus' is not installed")
    exported = record(tmp_path, "--export-to", "train.prom")
    plain = record(tmp_path)
    assert exported.returncode == plain.returncode == 0, exported.stderr
    assert exported.stdout == plain.stdout
    found = read_back(tmp_path / "train.prom")
    values = {name: value for (name, _), value in found.items()}
    states = {dict(labels).get("state") for name, labels in found if name == "profkit_run_info"}
    run = find_runs(tmp_path / "traces")[0]
    assert cli.main(["report", str(run), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert values["profkit_steps"] == report["steps_seen"] == 30
    assert states == {"complete"}
    assert not values.keys() & {"profkit_stalled", "profkit_rank_step"}, "it runs no more"


def test_a_failing_place_leaves_the_job_alone(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="the extra 'prometheus' is not installed")
    done = record(tmp_path, "--export-to", "none/train.prom")
    assert done.returncode == 0
    said = [line for line in done.stderr.splitlines() if "metrics" in line]
    assert len(said) == 1
    assert "none/train.prom: No such file or directory" in said[0]
    assert said[0].endswith(("the job goes on", "the last figures may be missing there"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--export-to", "train.txt"], "neither a file that ends in .prom"),
        (["--log-to", "aim"], "not one of mlflow, wandb, tensorboard"),
        (["--export-to", "a.prom", "--repeats", "2"], "go with one run"),
    ],
)
def test_a_wrong_place_is_said_before_the_job_starts(
    tmp_path: Path, options: list[str], said: str
) -> None:
    pytest.importorskip("prometheus_client", reason="the extra 'prometheus' is not installed")
    done = record(tmp_path, *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "traces").exists()
