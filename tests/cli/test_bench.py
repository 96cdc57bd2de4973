"""`profkit bench`: the cells it runs, their order, the cells it repeats, and its output.

Only one matrix is really trained. The cells of the others are made up where `profkit trace` would
leave its runs.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import profkit.bench.run as runner
from profkit.analysis.matrix import Setting
from profkit.bench.process import run_logged
from profkit.bench.run import Plan, claim, find_finished, run_matrix, run_order
from profkit.cli import main
from profkit.errors import ProfkitError, UsageError
from profkit.testing import synthetic_trace
from profkit.trace.integrity import this_process
from profkit.trace.jsonfile import read_json, replace_json

PATIENCE_S = 300
LOADER = "none"
RECORD = {
    "log_file",
    "model_name",
    "mission_name",
    "direction_id",
    "run_mode",
    "index",
    "gpu_num",
    "FINAL_RESULT",
    "JOB_FAIL_FLAG",
    "UNIT",
}
MS = 1_000_000


class FakeTrace:
    """Replacement for the processes that would train: writes a run, and fails on request."""

    def __init__(self) -> None:
        self.calls: list[Sequence[str]] = []
        self.failing: Callable[[Sequence[str]], str] = lambda words: ""

    def __call__(self, words: Sequence[str], log: Path, limit_s: float | None) -> int:
        self.calls.append(words)
        said = self.failing(words)
        log.write_text(f"profkit: {said}\n" if said else "")
        if said:
            return 1
        option = dict(itertools.pairwise(words))
        mixed, ranks, batch = "--amp" in words, int(option["--ranks"]), int(option["--batch-size"])
        config = {
            "world_size": ranks,
            "batch_size": batch,
            "precision": "bf16" if mixed else "fp32",
            "loader": "DALI" if "--dali" in words else LOADER,
            "warmup": 5,
            "device": "cpu",
        }
        computing = (20 if mixed else 40) * MS
        waiting = 2 * MS if ranks == 1 else 2 * MS + 40 * MS - computing
        phases = {"forward": computing, "data": waiting, "backward": 10 * MS}
        synthetic_trace(
            Path(option["--output"]) / f"run-{len(self.calls)}",
            ranks=ranks,
            steps=30,
            seed=len(self.calls),
            batch_size=batch,
            phase_ns=phases,
            jitter=0.01,
            workload="resnet50",
            framework=option["--framework"],
            config=config,
        )
        return 0


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> FakeTrace:
    fake = FakeTrace()
    monkeypatch.setattr(runner, "run_logged", fake)
    return fake


def plan_of(
    *,
    gpus: Sequence[int] = (1, 2),
    amp: Sequence[str] = ("fp32", "amp"),
    repeats: int = 2,
    shared: tuple[str, ...] = (),
) -> Plan:
    settings = tuple(
        Setting(count, precision, 4, LOADER, "torch") for count in gpus for precision in amp
    )
    return Plan("resnet50", "--ranks", settings, repeats, 0, shared)


def quiet(words: str) -> None:
    """Nobody listens."""


def bench(folder: Path, *options: str) -> int:
    return main(["bench", "resnet50", "--data", "synthetic", "-o", str(folder), *options])


def test_cells_are_interleaved_and_each_repeat_has_an_order_of_its_own() -> None:
    plan = plan_of(gpus=(1, 2, 4), repeats=3)
    order = list(run_order(plan))
    rounds = [[setting for setting, repeat in order if repeat == each] for each in range(3)]
    assert [repeat for _, repeat in order] == [0] * 6 + [1] * 6 + [2] * 6
    assert all(sorted(each) == sorted(plan.settings) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1
    assert order == list(run_order(plan))


def test_what_is_finished_is_not_run_again_and_what_is_torn_is(
    tmp_path: Path, trace: FakeTrace
) -> None:
    plan = plan_of()
    assert len(run_matrix(plan, tmp_path, quiet).runs) == 8
    torn = tmp_path / plan.name(plan.settings[0], 1)
    with (torn / "r00000" / "spans.arrows").open("r+b") as file:
        file.truncate(100)
    trace.calls.clear()
    assert len(run_matrix(plan, tmp_path, quiet).runs) == 8
    assert len(trace.calls) == 1
    assert [path.name.startswith(torn.name) for path in (tmp_path / "unfinished").iterdir()] == [
        True
    ]


def test_a_matrix_grows_by_what_is_new(tmp_path: Path, trace: FakeTrace) -> None:
    run_matrix(plan_of(gpus=(1,)), tmp_path, quiet)
    trace.calls.clear()
    run_matrix(plan_of(gpus=(1, 2), repeats=2), tmp_path, quiet)
    assert {words[words.index("--ranks") + 1] for words in trace.calls} == {"2"}


def test_a_run_that_is_not_what_its_cell_says_is_a_failure(
    tmp_path: Path, trace: FakeTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a configuration file switches AMP on for all cells."""
    monkeypatch.setattr(
        Plan, "words", lambda self, setting, output: [*WORDS(self, setting, output), "--amp"]
    )
    progress = run_matrix(plan_of(gpus=(1,), amp=("fp32",), repeats=1), tmp_path, quiet)
    assert not progress.runs
    assert "mixed precision: False was asked for, the run has True" in next(
        iter(progress.failures.values())
    )


WORDS = Plan.words


def test_a_failing_cell_is_a_dash_with_its_reason_and_the_others_go_on(
    tmp_path: Path, trace: FakeTrace, capsys: pytest.CaptureFixture[str]
) -> None:
    trace.failing = lambda words: (
        "rank 1: out of memory" if "--amp" in words and "2" in words else ""
    )
    assert (
        bench(tmp_path, "--ranks", "1,2", "--batch-size", "4", "--amp", "both", "--repeats", "2")
        == 1
    )
    out = capsys.readouterr().out
    assert "- 2 ranks, amp, batch 4, none: rank 1: out of memory" in out
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["2"])
    assert row[-1] == "-"
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    (failed,) = [each for each in rows if each["JOB_FAIL_FLAG"]]
    assert failed["FINAL_RESULT"] is None
    assert failed["failure"] == "rank 1: out of memory"


def test_the_results_are_a_table_a_sheet_and_rows_with_the_records_fields(
    tmp_path: Path, trace: FakeTrace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        bench(tmp_path, "--ranks", "1,2", "--batch-size", "4", "--amp", "both", "--repeats", "3")
        == 0
    )
    markdown = (tmp_path / "results.md").read_text()
    assert "| ranks | FP32(BS=4) | AMP(BS=4) |" in markdown
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    assert all(each.keys() >= RECORD for each in rows)
    alone = next(each for each in rows if each["gpu_num"] == 1 and each["fp_item"] == "fp32")
    assert alone["run_mode"] == "sp"
    assert alone["FINAL_RESULT"] == pytest.approx(4 / 0.0565, rel=0.05)
    assert alone["ips_low"] < alone["ips"] < alone["ips_high"]
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as file:
        assert [each["model_name"] for each in csv.DictReader(file)] == [
            each["model_name"] for each in rows
        ]
    out = " ".join(capsys.readouterr().out.split())
    told = re.search(
        r"AMP saves (\S+) ms at 1 rank and changes nothing beyond the noise at 2 ranks "
        r"\(batch 4\), because (\S+) ms more go into the wait",
        out,
    )
    assert told, out
    assert [float(figure) for figure in told.groups()] == pytest.approx([5.0, 5.0], rel=0.1)


def test_json_has_the_same_figures(
    tmp_path: Path, trace: FakeTrace, capsys: pytest.CaptureFixture[str]
) -> None:
    bench(tmp_path, "--ranks", "1,2", "--batch-size", "4", "--repeats", "2", "--json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [cell["gpu_num"] for cell in found["cells"]] == [1, 2]
    (effect,) = found["effects"]
    assert (effect["axis"], effect["from"], effect["to"]) == ("gpus", 1, 2)
    assert effect["difference_ns"]["value"] == pytest.approx(
        found["cells"][1]["time_per_sample_per_gpu_ms"] * 1e6 - effect["base_ns"]["value"]
    )
    assert {table["source"] for table in found["published"]} >= {"Paddle ResNet50V1.5 report"}


def test_a_cell_that_timed_out_is_not_repeated_and_the_others_are(
    tmp_path: Path, trace: FakeTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(words: Sequence[str], log: Path, limit_s: float | None) -> int:
        if "--amp" in words:
            trace.calls.append(words)
            raise subprocess.TimeoutExpired("profkit", 2.0)
        return trace(words, log, limit_s)

    monkeypatch.setattr(runner, "run_logged", hang)
    progress = run_matrix(plan_of(gpus=(1,), repeats=3), tmp_path, quiet)
    assert len(progress.runs) == 3
    assert len(progress.failures) == 3
    assert sum("--amp" in words for words in trace.calls) == 1


def test_both_frameworks_are_columns_of_one_table(
    tmp_path: Path, trace: FakeTrace, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--ranks", "1,2", "--batch-size", "4", "--repeats", "2")
    assert bench(tmp_path, "--framework", "torch,paddle", *options) == 0
    out = capsys.readouterr().out
    assert "paddle FP32(BS=4)" in out
    assert "torch FP32(BS=4)" in out
    assert "paddle instead of torch" in out
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len({row["log_file"] for row in rows}) == 4
    assert bench(tmp_path, *options) == 0
    assert len(trace.calls) == 8, "the table of one framework uses the finished runs"
    assert "paddle FP32" not in capsys.readouterr().out


def test_an_unknown_framework_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, "--framework", "torch,jax", "--ranks", "1") == 2
    assert "jax" in capsys.readouterr().err


def test_runs_of_other_machines_become_cells(
    tmp_path: Path, trace: FakeTrace, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of 16 ranks on two machines, and one that is added to a cell that is run here."""
    elsewhere = tmp_path / "elsewhere"
    for ranks in (1, 16, 16):
        words = ["--ranks", str(ranks), "--batch-size", "4", "--framework", "torch"]
        trace([*words, "--output", str(elsewhere)], tmp_path / "log", None)
    (tmp_path / "here").mkdir()
    added = ("--add", str(elsewhere), str(next(elsewhere.iterdir())))
    options = ("--ranks", "1", "--batch-size", "4", "--repeats", "2")
    assert bench(tmp_path / "here", *options, *added) == 0
    assert "16 ranks instead of 1" in capsys.readouterr().out
    text = (tmp_path / "here" / "results.jsonl").read_text()
    alone, many = [json.loads(line) for line in text.splitlines()]
    assert (alone["device_num"], alone["repeats"], alone["repeats_planned"]) == ("N1C1", 3, 3)
    assert (many["device_num"], many["repeats"], many["repeats_planned"]) == ("N2C16", 2, 2)
    assert many["FINAL_RESULT"] > alone["FINAL_RESULT"]
    calls = len(trace.calls)
    assert bench(tmp_path / "merged", "--repeats", "0", *added[:2]) == 0
    assert len(trace.calls) == calls, "--repeats 0 runs nothing"


def test_a_cell_never_pools_repeats_of_different_machines(
    tmp_path: Path, trace: FakeTrace, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, model in enumerate(("A", "B")):
        words = ["--ranks", "1", "--batch-size", "4", "--framework", "torch", "--output"]
        trace([*words, str(tmp_path / "runs")], tmp_path / "log", None)
        path = tmp_path / "runs" / f"run-{number + 1}" / "run.json"
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "environment": {"cpu": f"processor {model}"}}))
    assert bench(tmp_path / "out", "--repeats", "0", "--add", str(tmp_path / "runs")) == 2
    assert "its machine has processor B" in capsys.readouterr().err


def test_runs_of_the_output_folder_are_not_added_to_it(
    tmp_path: Path, trace: FakeTrace, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--ranks", "1", "--batch-size", "4", "--repeats", "1")
    assert bench(tmp_path, *options) == 0
    assert bench(tmp_path, *options, "--add", str(tmp_path)) == 2
    assert "is in the output folder already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--repeats", "0"), "--add names no runs"),
        (("--add", "{run}", "--gpus", "1"), "GPU"),
        (("--add", "{torn}"), "not complete"),
        (("--add", "{other}"), "a run of 'tsm'"),
        (("--add", "{foreign}"), "it has no 'world_size'"),
        (("--add", "{none}"), "no such folder"),
    ],
)
def test_runs_that_are_no_cells_are_refused(
    tmp_path: Path,
    trace: FakeTrace,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    why: str,
) -> None:
    made = ["--ranks", "1", "--batch-size", "4", "--framework", "torch", "--output"]
    trace([*made, str(tmp_path / "run")], tmp_path / "log", None)
    trace([*made, str(tmp_path / "torn")], tmp_path / "log", None)
    for path in tmp_path.glob("torn/*/r00000/spans.arrows"):
        path.write_bytes(path.read_bytes()[:100])
    synthetic_trace(tmp_path / "other", workload="tsm", steps=5)
    synthetic_trace(tmp_path / "foreign", workload="resnet50", steps=5)
    places = {name: tmp_path / name for name in ("run", "torn", "other", "foreign", "none")}
    assert bench(tmp_path / "out", *(word.format(**places) for word in words)) in {2, 3}
    assert why in capsys.readouterr().err


def test_a_folder_with_other_settings_is_refused(tmp_path: Path) -> None:
    with claim(plan_of(shared=("--steps", "12")), tmp_path):
        pass
    with (
        pytest.raises(
            UsageError,
            match=r"holds a matrix of other settings \(shared: --steps 12 there, nothing now\)",
        ),
        claim(plan_of(), tmp_path),
    ):
        pass


def test_a_folder_in_which_a_matrix_runs_is_refused(tmp_path: Path) -> None:
    with claim(plan_of(), tmp_path):
        content = read_json(tmp_path / "bench.json")
        replace_json(tmp_path / "bench.json", {**content, "owner": this_process()})
        with (
            pytest.raises(ProfkitError, match=f"being run there by process {os.getpid()}"),
            claim(plan_of(), tmp_path),
        ):
            pass


def test_gpus_that_are_not_there_are_refused_and_so_is_asking_for_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, "--gpus", "1,1000") == 2
    assert "--ranks trains on the CPU" in capsys.readouterr().err
    assert bench(tmp_path, "--gpus", "1", "--ranks", "1") == 2
    assert bench(tmp_path, "--ranks", "1,x") == 2
    assert "'x' is not a whole number" in capsys.readouterr().err


def test_what_was_published_is_shown_without_running_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "hrnet_w18", "--published", "-o", str(tmp_path / "none")]) == 0
    out = capsys.readouterr().out
    assert "PaddleSeg HRNetW18 report" in out
    assert not (tmp_path / "none").exists()


@pytest.mark.timeout(PATIENCE_S)
def test_ctrl_c_closes_the_cell_that_runs_and_reaches_all_its_processes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "job"
    ready, closed = tmp_path / "ready", tmp_path / "closed"
    script.write_text(
        f"#!{sys.executable}\nimport pathlib, time\ntry:\n"
        f"    pathlib.Path({str(ready)!r}).touch()\n    time.sleep(600)\n"
        f"except KeyboardInterrupt:\n    pathlib.Path({str(closed)!r}).touch()\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(script))

    def press() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    presser = threading.Thread(target=press, daemon=True)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        run_logged(["trace"], tmp_path / "log")
    presser.join()
    assert closed.exists()


def test_a_matrix_that_is_really_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    small = (
        "--ranks",
        "1",
        "--image-size",
        "32",
        "--batch-size",
        "2",
        "--steps",
        "12",
        "--repeats",
        "1",
    )
    assert bench(tmp_path / "matrix", *small) == 0
    first = capsys.readouterr()
    assert "ResNet50 v1.5, torch: samples/sec" in first.out
    assert bench(tmp_path / "matrix", *small) == 0
    again = capsys.readouterr()
    assert "1 of 1 run is finished already" in again.err
    assert again.out == first.out
    finished = find_finished(
        Plan("resnet50", "--ranks", (Setting(1, "fp32", 2, "none", "torch"),), 1, 0),
        tmp_path / "matrix",
    )
    assert [path.name for path in finished.runs.values()] == ["resnet50_torch_rank1_fp32_bs2_r1"]
