"""The row and the lines that published benchmarks keep of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profkit.cli import main
from profkit.errors import ExitCode
from profkit.exporters.benchmark import FIELDS
from profkit.importers.base import Target
from profkit.importers.training_log import IMPORTER
from tests.importers.logs.samples import BATCH, SAMPLES, STEP_S


def export(folder: Path, name: str, text: str) -> tuple[dict[str, object], list[str]]:
    path = folder / name
    path.write_text(text)
    (made,) = IMPORTER.read([path], Target(folder / "traces"))
    out = folder / "row.txt"
    command = ["export", str(made.run), "--format", "benchmark", "-w", str(out)]
    assert main(command) == ExitCode.DONE
    row, *lines = out.read_text().splitlines()
    return json.loads(row), lines


def test_a_log_of_one_rank_gives_the_row_of_all(tmp_path: Path) -> None:
    row, lines = export(tmp_path, "seg.log", SAMPLES["paddleseg"].text)
    assert tuple(row) == FIELDS
    assert row["FINAL_RESULT"] == pytest.approx(2 * BATCH / STEP_S, rel=0.01)
    assert (row["run_mode"], row["gpu_num"], row["direction_id"]) == ("mp", 2, 0)
    assert (row["log_file"], row["UNIT"], row["JOB_FAIL_FLAG"]) == ("seg.log", "samples/sec", 0)
    assert row["model_name"] == "PaddleSeg_bs40"  # the log states no precision
    assert lines[0].startswith("AI-Rank-log 17096189")  # when the log ended
    assert lines[0].endswith("avg_ips:160samples/sec")


def test_a_row_of_one_rank_has_the_profilers_fields(tmp_path: Path) -> None:
    text = SAMPLES["paddlenlp_bert"].text
    row, _ = export(tmp_path, "bert_fp16_gpu1.log", text)
    assert list(row) == [*FIELDS, "log_with_profiler", "profiler_path"]
    assert (row["run_mode"], row["direction_id"], row["UNIT"]) == ("sp", 1, "sequences/sec")
    assert row["profiler_path"] is None


def test_a_run_without_samples_has_no_result_and_is_no_zero(tmp_path: Path) -> None:
    text = SAMPLES["mmcv"].text.replace("samples_per_gpu", "unknown")
    row, lines = export(tmp_path, "seg.log", text)
    assert row["FINAL_RESULT"] is None
    assert row["JOB_FAIL_FLAG"] == 1
    assert lines == []


def test_results_that_ai_rank_knows_are_kept(tmp_path: Path) -> None:
    mark = "2024-03-05 06:09:00 [INFO]\tAI-Rank-log 1709618948.198982 eval_accuracy:0.711\n"
    _, lines = export(tmp_path, "seg.log", SAMPLES["paddleseg"].text + mark)
    assert lines[-1].endswith(" eval_accuracy:0.711")
