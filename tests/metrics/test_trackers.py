"""Experiment trackers, without a network: what their own readers find."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from profkit.errors import ProfkitError, UsageError
from profkit.metrics.base import open_tracker
from profkit.metrics.packages import need_package
from profkit.metrics.points import Snapshot, flat_names
from profkit.testing import synthetic_trace
from tests.metrics.test_exports import live


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    run = synthetic_trace(tmp_path_factory.mktemp("runs") / "two", ranks=2, steps=60)
    return live(run)


def _log(word: str, snapshot: Snapshot) -> Mapping[str, float]:
    before = dict(os.environ)
    sink = open_tracker(word, "job")
    assert dict(os.environ) == before, "the job inherits the environment"
    sink.send(Snapshot((), None))  # before the first step there is nothing to log
    sink.send(snapshot)
    sink.close()
    return dict(flat_names(snapshot))


def test_tensorboard(snapshot: Snapshot, tmp_path: Path) -> None:
    loader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_file_loader",
        reason="tensorboard is not installed",
    )
    logged = _log(f"tensorboard={tmp_path}", snapshot)
    found = {}
    for event in loader.RawEventFileLoader(str(next(tmp_path.glob("events*")))).Load():
        from tensorboard.compat.proto.event_pb2 import Event

        each = Event.FromString(event)
        for value in each.summary.value:
            assert each.step == snapshot.step
            found[value.tag] = value.simple_value
    assert found == pytest.approx(logged, rel=1e-6)  # it stores single precision


def test_mlflow(snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    address = (tmp_path / "mlruns").as_uri()
    logged = _log(f"mlflow={address}", snapshot)
    client = mlflow.MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("profkit")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "job"
    assert run.info.status == "FINISHED"
    assert run.data.metrics == pytest.approx(logged)
    history = client.get_metric_history(run.info.run_id, "profkit/step_seconds")
    assert [each.step for each in history] == [snapshot.step]


def test_wandb(snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    for name in ("WANDB_MODE", "WANDB_SILENT"):
        monkeypatch.setenv(name, {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}[name])
    _log(f"wandb={tmp_path}", snapshot)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"profkit/step_seconds" in file.read_bytes()


def test_an_unknown_tracker_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="--log-to aim: not one of mlflow, wandb, tensorboard"):
        open_tracker("aim", "job")


def test_a_missing_package_is_named() -> None:
    with pytest.raises(ProfkitError, match="pip install nowhere"):
        need_package("profkit_nowhere", "--log-to nowhere", "nowhere")
