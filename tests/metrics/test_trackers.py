"""Experiment trackers, without a network: what their own readers find."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from profkit.analysis.overview import build_overview
from profkit.errors import ProfkitError, UsageError
from profkit.metrics.base import open_tracker
from profkit.metrics.follow import Follower
from profkit.metrics.packages import import_package, need_package
from profkit.metrics.points import WHOLE, Snapshot, flat_names
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from profkit.vocab import RunState
from tests.hangs.test_alarm import wait_until
from tests.metrics.test_exports import live


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    run = synthetic_trace(tmp_path_factory.mktemp("runs") / "two", ranks=2, steps=60)
    return live(run)


def _log(word: str, snapshot: Snapshot, state: RunState = RunState.COMPLETE) -> Mapping[str, float]:
    before = dict(os.environ)
    sink = open_tracker(word)
    assert dict(os.environ) == before, "the job inherits the environment"
    sink.send(Snapshot((), None))  # before the first step there is nothing to log
    sink.send(snapshot)
    sink.close(state, None)
    return dict(flat_names(snapshot))


def test_tensorboard(snapshot: Snapshot, tmp_path: Path) -> None:
    loader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_file_loader",
        reason="tensorboard is not installed",
    )
    logged = _log(f"tensorboard={tmp_path}", snapshot)
    found = {}
    for event in loader.RawEventFileLoader(str(next(tmp_path.glob("two/events*")))).Load():
        from tensorboard.compat.proto.event_pb2 import Event

        each = Event.FromString(event)
        for value in each.summary.value:
            assert each.step == snapshot.step
            found[value.tag] = value.simple_value
    assert found == pytest.approx(logged, rel=1e-6)  # it stores single precision


def test_each_run_has_a_folder_of_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorBoard reads a folder as one run, and two runs of a job in it as one curve."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    monkeypatch.chdir(tmp_path)
    for name in ("train-20260101-000000", "train-20260101-000100"):
        shown = live(synthetic_trace(tmp_path / "traces" / name, steps=30))
        for word in ("tensorboard", "tensorboard=logs"):
            _log(word, shown)
        for folder in ("runs", "logs"):
            assert len(list((tmp_path / folder / name).glob("events*"))) == 1


ENDS = [
    (RunState.COMPLETE, "FINISHED", 0),
    (RunState.ABORTED, "FAILED", 1),
    (RunState.RUNNING, "FAILED", 1),
]
"""The state of a run when its job has ended, and what MLflow and W&B show; the last is unknown."""


@pytest.mark.parametrize(("state", "status"), [end[:2] for end in ENDS])
def test_mlflow(
    snapshot: Snapshot,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: RunState,
    status: str,
) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    address = (tmp_path / "mlruns").as_uri()
    logged = _log(f"mlflow={address}", snapshot, state)
    client = mlflow.MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("profkit")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "two"
    assert run.info.status == status
    assert run.data.metrics == pytest.approx(logged)
    history = client.get_metric_history(run.info.run_id, "profkit/step_seconds")
    assert [each.step for each in history] == [snapshot.step]


def test_a_tracker_has_the_figures_of_the_report_as_well(tmp_path: Path) -> None:
    """The latest 50 steps say how the job ended, and not what the run was like."""
    run, closed = synthetic_trace(tmp_path / "run", steps=200), list[Snapshot | None]()

    class Sink:
        def send(self, snapshot: Snapshot) -> None:
            """Take the latest figures."""

        def close(self, state: RunState, report: Snapshot | None) -> None:
            closed.append(report)

    follower = Follower(run, [Sink()], lambda words: None, every_s=60)
    follower.start()
    follower.stop()
    view = build_overview(Trace.open(run))
    assert closed[0] is not None
    found = dict(flat_names(closed[0], WHOLE))
    assert found["profkit/report/steps_used"] == view.steps_used > 100
    assert found["profkit/report/step_seconds"] == view.step_ns.value / 1e9
    assert found["profkit/report/throughput_samples_per_second"] == view.throughput.value


@pytest.mark.parametrize("word", ["tensorboard", "mlflow"])
def test_the_report_is_logged_under_names_of_its_own(
    snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    pytest.importorskip(word, reason=f"{word} is not installed")
    address = str(tmp_path) if word == "tensorboard" else (tmp_path / "mlruns").as_uri()
    sink = open_tracker(f"{word}={address}")
    sink.send(snapshot)
    sink.close(RunState.COMPLETE, snapshot)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("events*"))
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*step_seconds")}
    for name in ("profkit/step_seconds", "profkit/report/step_seconds"):
        assert name.encode() in stored or any(each.endswith(name) for each in names)


def test_wandb(snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    for name in ("WANDB_MODE", "WANDB_SILENT"):
        monkeypatch.setenv(name, {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}[name])
    logged = _log(f"wandb={tmp_path}", snapshot)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    wait_until(lambda: bool(_wandb_rows(file)))  # its service writes it
    ((step, values),) = _wandb_rows(file)
    assert step == snapshot.step
    assert {name: values.get(name) for name in logged} == pytest.approx(logged)


def _wandb_rows(file: Path) -> list[tuple[int, dict[str, float]]]:
    """Return the logged values of each step, by the client's own messages."""
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    rows = []
    for record in _wandb_records(file.read_bytes()):
        found = messages.Record.FromString(record)
        if found.WhichOneof("record_type") != "history":
            continue
        items = found.history.item
        values = {each.key or ".".join(each.nested_key): each.value_json for each in items}
        numbers = {name: json.loads(value) for name, value in values.items()}
        rows.append((found.history.step.num, numbers))
    return rows


def _wandb_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format: blocks of 32 KiB with parts of records."""
    place, record = 7, b""  # after the header of the file
    while place + 7 <= len(content):
        if 0x8000 - place % 0x8000 < 7:  # too little room for a header at the end of a block
            place += 0x8000 - place % 0x8000
            continue
        size, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        if kind == 0:
            return
        record += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            yield record
            record = b""


@pytest.mark.parametrize(("state", "exit_code"), [end[::2] for end in ENDS])
def test_wandb_shows_how_the_job_ended(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch, state: RunState, exit_code: int
) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    ends: list[int] = []

    def finish(*, exit_code: int) -> None:
        ends.append(exit_code)

    run = SimpleNamespace(log=lambda values, step: None, finish=finish)
    monkeypatch.setattr(wandb, "init", lambda **options: run)
    _log("wandb", snapshot, state)
    assert ends == [exit_code]


@pytest.mark.parametrize("state", list(RunState))
def test_a_follower_closes_its_sinks_with_the_state_of_the_run(
    tmp_path: Path, state: RunState
) -> None:
    run, closed = synthetic_trace(tmp_path / "run", steps=30), list[RunState]()
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**content, "state": state.value}))

    class Sink:
        def send(self, snapshot: Snapshot) -> None:
            raise ValueError("even if the last figures cannot be sent")

        def close(self, state: RunState, report: Snapshot | None) -> None:
            closed.append(state)

    follower = Follower(run, [Sink()], lambda words: None, every_s=60)
    follower.start()
    follower.stop()
    assert closed == [state]


def test_a_place_that_cannot_be_written_has_a_remedy(snapshot: Snapshot, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    (tmp_path / "file").touch()
    sink = open_tracker(f"tensorboard={tmp_path / 'file'}")
    with pytest.raises(ProfkitError, match="name a folder that may be written to"):
        sink.send(snapshot)


def test_a_default_place_that_needs_more_packages_has_a_remedy(
    snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's default is a database, which the small package cannot write."""
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    sink = open_tracker("mlflow=nonsense://x")
    with pytest.raises(ProfkitError, match="name a server with --log-to mlflow=http"):
        sink.send(snapshot)


def test_what_a_receiver_answers_cannot_steer_a_terminal(tmp_path: Path) -> None:
    run, said = synthetic_trace(tmp_path / "run", steps=30), list[str]()

    class Sink:
        def send(self, snapshot: Snapshot) -> None:
            raise ValueError("two\nlines \x1b[2J")

        def close(self, state: RunState, report: Snapshot | None) -> None:
            """Have nothing to close."""

    follower = Follower(run, [Sink()], said.append, every_s=60)
    follower.start()
    follower.stop()
    (line,) = said
    assert "two lines \\x1b[2J" in line


def test_an_unknown_tracker_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="--log-to aim: not one of mlflow, wandb, tensorboard"):
        open_tracker("aim")


@pytest.mark.parametrize("look_up", [need_package, import_package])
def test_a_folder_of_its_name_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_up: Callable[[str, str, str], object]
) -> None:
    """W&B makes a folder `wandb` where a job runs, and `python -m` looks there first."""
    (tmp_path / "profkit_nowhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    with pytest.raises(ProfkitError, match="pip install nowhere"):
        look_up("profkit_nowhere", "--log-to nowhere", "nowhere")


def test_a_missing_package_is_named() -> None:
    with pytest.raises(ProfkitError, match="pip install nowhere"):
        need_package("profkit_nowhere", "--log-to nowhere", "nowhere")
