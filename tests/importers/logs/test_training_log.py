"""A log becomes a run that verifies, and its report shows the log's own figures."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from profkit.analysis.overview import build_overview
from profkit.cli import main
from profkit.errors import ExitCode, UnreadableError
from profkit.frame.estimate import estimate_ratios
from profkit.importers.base import Imported, ImportOptions, Target
from profkit.importers.reading.plan import plan_import
from profkit.importers.training_log import IMPORTER
from profkit.plugins import IMPORTERS
from profkit.trace import Trace, verify
from profkit.vocab import Integrity, RunState
from tests.documents import report_json, report_text
from tests.importers.logs.samples import BATCH, SAMPLES, STEP_S


def write(folder: Path, name: str, data: bytes | None = None) -> Path:
    sample = SAMPLES[name]
    path = folder / sample.name
    path.write_bytes(sample.data if data is None else data)
    return path


def bring_in(path: Path, **options: object) -> list[Imported]:
    target = Target(path.parent / "traces", ImportOptions(**options))  # type: ignore[arg-type]
    return list(IMPORTER.read([path], target))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_report_of_an_imported_log_shows_the_throughput_of_all_ranks(
    name: str, tmp_path: Path
) -> None:
    sample = SAMPLES[name]
    path = write(tmp_path, name)
    (made,) = bring_in(path)
    view = build_overview(Trace.open(made.run))
    if name != "paddlevideo_with_end":  # its lines are samples of an epoch whose mean is another
        ranks = sample.world_size if view.config["samples_counted_of"] == "one card" else 1
        assert view.throughput.value == pytest.approx(sample.throughput * ranks, rel=0.01)
        assert view.step_ns.value == pytest.approx(sample.step_s * 1e9, rel=0.01)
    assert view.world_size == sample.world_size
    assert verify(made.run).state is Integrity.COMPLETE
    assert "log  " in report_text(view)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_log_is_known_among_all_formats(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, name)
    importers, _ = IMPORTERS.load_all()
    assert plan_import([path], importers).sources == {"training_log": (path,)}


def test_a_log_is_known_though_its_records_come_late(tmp_path: Path) -> None:
    path = write(
        tmp_path, "paddleclas_2022", b"a warning\n" * 20_000 + SAMPLES["paddleclas_2022"].data
    )
    assert IMPORTER.recognises(path.read_bytes()[:65_536], path) == 0.8


@pytest.mark.parametrize(
    "head", [b"", b'{"traceEvents": []}', b"SQLite format 3\0", b"\0" * 90, b"hello\n"]
)
def test_other_formats_are_left_to_others(head: bytes) -> None:
    assert IMPORTER.recognises(head, Path("unknown")) == 0


def test_a_gzipped_log_is_read_too_and_a_torn_one_as_far_as_it_goes(tmp_path: Path) -> None:
    packed = gzip.compress(SAMPLES["dllogger_pytorch"].data)
    (whole,) = bring_in(write(tmp_path, "dllogger_pytorch", packed))
    assert whole.rows["steps"] == 200
    (torn,) = bring_in(write(tmp_path, "dllogger_pytorch", packed[:-400]))
    assert 0 < torn.rows["steps"] < 200
    assert any("its gzip data ends early" in flag for flag in torn.flags)


def test_windows_become_steps_of_their_mean_that_tile_the_time(tmp_path: Path) -> None:
    (made,) = bring_in(write(tmp_path, "paddleseg"))
    trace = Trace.open(made.run)
    steps = trace.steps
    assert steps["step"].to_pylist() == list(range(200))
    start, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    assert np.abs(start[1:] - end[:-1]).max() <= 1
    assert (end - start)[:10].ptp() <= 1 if hasattr(end, "ptp") else np.ptp((end - start)[:10]) <= 1
    assert steps["sample_count"].to_pylist() == [BATCH] * 200
    assert steps["epoch"].null_count == 200
    assert steps["loss"].null_count == 180
    assert trace.spans["phase"].to_pylist() == ["data"] * 200
    config = trace.manifest.config
    assert (config["steps_per_line"], config["step_times"], config["warmup"]) == (
        10,
        "the steps since the line before",
        10,
    )


def test_single_steps_keep_their_epoch_and_leave_out_what_was_not_printed(tmp_path: Path) -> None:
    (made,) = bring_in(write(tmp_path, "paddlevideo"))
    steps = Trace.open(made.run).steps
    assert steps["step"].to_pylist() == list(range(0, 200, 20))
    assert set(steps["epoch"].to_pylist()) == {1}


def test_intervals_of_repeated_means_are_those_of_the_windows() -> None:
    """Twenty windows of ten are twenty observations, not two hundred."""
    numbers = np.random.default_rng(3)
    widths = []
    for _ in range(20):
        windows = numbers.normal(1.0, 0.1, 40)
        one = estimate_ratios(windows[None, :], np.ones((1, 40)))[0]
        rows = np.repeat(windows, 10)
        many = estimate_ratios(rows[None, :], np.ones((1, 400)))[0]
        widths.append(((many.high or 0) - (many.low or 0)) / ((one.high or 0) - (one.low or 0)))
    assert 0.8 < float(np.median(widths)) < 1.6


def test_a_log_of_all_cards_says_for_how_many_it_speaks(tmp_path: Path) -> None:
    (made,) = bring_in(write(tmp_path, "dllogger_pytorch"))
    trace = Trace.open(made.run)
    assert set(trace.steps["sample_count"].to_pylist()) == {BATCH}
    assert trace.manifest.config["rows_speak_for_ranks"] == 4
    assert build_overview(trace).throughput.value == pytest.approx(4 * BATCH / STEP_S, rel=0.01)


def test_two_runs_in_one_file_become_two(tmp_path: Path) -> None:
    data = SAMPLES["dllogger_tensorflow"].data
    first, second = bring_in(write(tmp_path, "dllogger_tensorflow", data + data))
    assert [first.run.name, second.run.name] == ["tf_gpu2_fp32_bs40-run1", "tf_gpu2_fp32_bs40-run2"]
    assert any("the file holds 2 runs" in flag for flag in first.flags)


def test_flags_and_stated_results_are_shown_on_both_screens(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "paddleclas_2022",
        SAMPLES["paddleclas_2022"].data.replace(b"top5:  0.2000", b"top5: -0.2000"),
    )
    (made,) = bring_in(path)
    view = build_overview(Trace.open(made.run))
    text, data = report_text(view), report_json(view)
    assert "flag            19 x an accuracy below zero: the metric is broken" in text
    assert (
        "stated          step time at an epoch's end 0.5 s (epoch 0, mean from the fifth step on), "
        "line 21" in text
    )
    assert data["flags"] == list(made.flags)
    assert data["config"]["stated"][0]["value"] == 0.5


def test_a_killed_run_is_aborted(tmp_path: Path) -> None:
    (made,) = bring_in(
        write(
            tmp_path,
            "paddleclas_2022",
            SAMPLES["paddleclas_2022"].data
            + b"LAUNCH INFO 2024-03-05 06:10:00,001 Terminating with signal 15\n",
        )
    )
    assert Trace.open(made.run).manifest.state is RunState.ABORTED


def test_marks_alone_make_a_run_without_steps(tmp_path: Path) -> None:
    path = tmp_path / "marks.log"
    path.write_bytes(b"AI-Rank-log 1621335959.198982 avg_ips:76.19images/sec\n")
    (made,) = bring_in(path)
    assert made.rows == {}
    assert Trace.open(made.run).manifest.config["stated"][0]["value"] == 76.19


def test_what_is_no_log_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "hello.txt"
    path.write_text("hello\n")
    with pytest.raises(
        UnreadableError, match="no line belongs to a training log that profkit knows"
    ):
        bring_in(path)


def test_the_verb_imports_and_a_user_tells_the_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "mmcv", SAMPLES["mmcv"].data.replace(b"samples_per_gpu", b"unknown"))
    folder = tmp_path / "traces"
    assert (
        main(
            [
                "import",
                str(path),
                "-o",
                str(folder),
                "--name",
                "mine",
                "--samples-per-step",
                "7",
                "--json",
            ]
        )
        == ExitCode.DONE
    )
    (made,) = json.loads(capsys.readouterr().out)
    assert made["format"] == "training_log"
    assert main(["report", made["run"], "--json"]) == ExitCode.DONE
    report = json.loads(capsys.readouterr().out)
    assert report["throughput_samples_per_s"]["value"] == pytest.approx(2 * 7 / STEP_S, rel=0.01)


def test_the_rows_of_a_table_are_lines(tmp_path: Path) -> None:
    """Ultralytics prints the time since the start with each epoch; Lightning what a job logs."""
    path = tmp_path / "results.csv"
    rows = "".join(f"{epoch},{10.5 * epoch:.2f},1.2,0.1\n" for epoch in range(1, 12))
    path.write_text(f"epoch,time,train/box_loss,lr/pg0\n{rows}")
    importers, _ = IMPORTERS.load_all()
    assert plan_import([path], importers).sources == {"training_log": (path,)}
    (made,) = bring_in(path)
    view = build_overview(Trace.open(made.run))
    assert view.step_ns.value == pytest.approx(10.5e9)
    assert "a step here is an epoch" in report_text(view)
    rows = "".join(f"0,{10 * row},{3.0 - row},0.25,64\n" for row in range(1, 12))
    path.write_text(f"epoch,step,train_loss,train/batch_time,device/samples_per_sec\n{rows}")
    (made,) = bring_in(path)
    view = build_overview(Trace.open(made.run))
    assert view.step_ns.value == pytest.approx(0.25e9)
    assert view.throughput.value == pytest.approx(64)


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("a.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
        ("a.nsys-rep", b"\x01\x02", "nsys export --type sqlite"),
        ("a.xplane.pb", b"\x0a\x1e", "XPlane"),
        ("events.out", b"\x18\0\0\0\0\0\0\0\xa3\x7fbrain.Event:2", "TensorBoard"),
        (
            "a.json",
            b'{"nodes": [{"name": "[pytorch|profiler|execution_trace|process]"}]}',
            "execution",
        ),
        ("a.csv", b'"Name","Calls","TotalDurationNs"\n"k",1,2\n', "rocprof"),
        (
            "trainer_state.json",
            b'{"log_history": [{"loss": 3.1, "step": 10}]}',
            "no times of steps",
        ),
        ("a.log", b"{'loss': 3.1, 'epoch': 0.1}\n{'loss': 3.0, 'epoch': 0.2}\n", "Hugging Face"),
        ("metrics.csv", b"epoch,step,train_loss\n0,10,3.1\n0,20,3.0\n", "a table"),
    ],
)
def test_a_refusal_says_what_the_file_is(name: str, data: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    importers, _ = IMPORTERS.load_all()
    with pytest.raises(UnreadableError, match=what):
        plan_import([tmp_path / name], importers)


def test_lines_of_json_are_a_log(tmp_path: Path) -> None:
    """OpenMMLab's and detectron2's own files of metrics are such."""
    path = tmp_path / "log.json"
    lines = [json.dumps({"env_info": "Python 3.11", "seed": 1})]
    for step in range(50, 650, 50):
        train = {"mode": "train", "epoch": 1, "iter": step, "data_time": 0.05, "time": 0.25}
        lines.append(json.dumps({**train, "loss": 2.1}))
    lines.append(json.dumps({"mode": "val", "epoch": 1, "iter": 600, "time": 9.0}))
    path.write_text("\n".join(lines) + "\n")
    importers, _ = IMPORTERS.load_all()
    assert plan_import([path], importers).sources == {"training_log": (path,)}
    (made,) = bring_in(path)
    assert build_overview(Trace.open(made.run)).step_ns.value == pytest.approx(0.25e9)
