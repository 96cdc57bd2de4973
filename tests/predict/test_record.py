"""Predictions are kept, scored by the runs that make their change, and counted."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from pathlib import Path

import pytest

from profkit.analysis.estimate import Estimate
from profkit.cli import main
from profkit.explain.predict.ask import ask
from profkit.explain.predict.prediction import LINK, RANKS, WITHOUT, WORKERS, Prediction, Question
from profkit.explain.predict.record import (
    Entry,
    calibrate,
    keep,
    read_record,
    record_file,
)
from profkit.explain.predict.scoring import score_record
from profkit.testing.synthetic import synthetic_trace
from profkit.trace import Trace
from profkit.vocab import RECORD
from tests.predict.test_answers import LATE, job_of


def touch(run: Path, later_s: int, **config: object) -> None:
    """Let a run begin so much later than now, with other settings; 0 leaves its beginning."""
    path = run / "run.json"
    content = json.loads(path.read_text())
    if later_s:
        content["created_ns"] = time.time_ns() + later_s * 1_000_000_000
    content["config"] = {**content["config"], **config}
    path.write_text(json.dumps(content))


def predicted(folder: Path, kind: str, value: float = 0.0, cause: str = "") -> Prediction:
    """Ask about the run `late` of a folder, and keep the answer."""
    run = synthetic_trace(folder / "late", ranks=2, rank_phase_ns=LATE, config={"workers": 2})
    answer = ask(job_of(run), Question(kind, value, cause))
    assert keep(answer, Trace.open(run), folder / RECORD) == ""
    return answer


def test_a_later_run_without_the_cause_scores_the_prediction(tmp_path: Path) -> None:
    answer = predicted(tmp_path, WITHOUT, cause="late_rank")
    (waiting,) = score_record(tmp_path / RECORD, tmp_path)
    assert waiting.measured_ns is None, "no other run is there yet"
    twin = synthetic_trace(tmp_path / "twin", ranks=2, config={"workers": 2})
    touch(twin, 60)
    (entry,) = score_record(tmp_path / RECORD, tmp_path)
    assert entry.scored_run == "twin"
    assert entry.inside
    assert entry.measured_ns == pytest.approx(job_of(twin).now_ns.value)
    assert answer.step_ns is not None
    assert entry.step_ns == answer.step_ns.value
    assert entry.error is not None
    assert abs(entry.error) < 0.05
    lines = (tmp_path / RECORD).read_text().splitlines()
    score_record(tmp_path / RECORD, tmp_path)
    assert (tmp_path / RECORD).read_text().splitlines() == lines, "it is scored once"


def test_a_run_that_still_has_the_cause_scores_nothing(tmp_path: Path) -> None:
    predicted(tmp_path, WITHOUT, cause="late_rank")
    still = synthetic_trace(tmp_path / "still", ranks=2, rank_phase_ns=LATE, seed=1)
    touch(still, 60, workers=2)
    assert score_record(tmp_path / RECORD, tmp_path)[0].measured_ns is None


def test_an_earlier_run_and_another_job_score_nothing(tmp_path: Path) -> None:
    predicted(tmp_path, WITHOUT, cause="late_rank")
    earlier = synthetic_trace(tmp_path / "earlier", ranks=2, config={"workers": 2})
    touch(earlier, -60)
    other = synthetic_trace(tmp_path / "other", ranks=2, config={"workers": 2})
    touch(other, 60, model="another")
    more = synthetic_trace(tmp_path / "more", ranks=3, config={"workers": 2})
    touch(more, 60)
    assert score_record(tmp_path / RECORD, tmp_path)[0].measured_ns is None


@pytest.mark.parametrize(
    ("changed", "is_scored"), [({"workers": 4}, True), ({"workers": 3}, False),
                               ({"workers": 4, "pin": False}, False), ({}, False)],
)  # fmt: skip
def test_only_the_asked_change_scores_a_prediction(
    tmp_path: Path, changed: dict[str, object], is_scored: bool
) -> None:
    run = synthetic_trace(tmp_path / "run", config={"workers": 2})
    answer = dataclasses.replace(
        ask(job_of(run), Question(WORKERS, 4.0)), step_ns=Estimate(1.0, 0.5, 2.0)
    )
    keep(answer, Trace.open(run), tmp_path / RECORD)
    later = synthetic_trace(tmp_path / "later", config={"workers": 2})
    touch(later, 60, **changed)
    (entry,) = score_record(tmp_path / RECORD, tmp_path)
    assert (entry.measured_ns is not None) is is_scored


def test_more_ranks_score_a_prediction_of_ranks(tmp_path: Path) -> None:
    predicted(tmp_path, RANKS, 4.0)
    later = synthetic_trace(tmp_path / "later", ranks=4, config={"workers": 2})
    touch(later, 60)
    assert score_record(tmp_path / RECORD, tmp_path)[0].scored_run == "later"


def test_links_cannot_be_seen_in_a_run(tmp_path: Path) -> None:
    predicted(tmp_path, LINK, 2.0)
    later = synthetic_trace(tmp_path / "later", ranks=2, config={"workers": 2})
    touch(later, 60)
    assert score_record(tmp_path / RECORD, tmp_path)[0].measured_ns is None


def test_the_last_of_equal_predictions_counts(tmp_path: Path) -> None:
    answer = predicted(tmp_path, LINK, 2.0)
    other = dataclasses.replace(answer, step_ns=Estimate(1e6, 1e6, 2e6))
    keep(other, Trace.open(tmp_path / "late"), tmp_path / RECORD)
    assert [entry.step_ns for entry in read_record(tmp_path / RECORD)] == [1e6]


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    predicted(tmp_path, LINK, 2.0)
    with open(tmp_path / RECORD, "a") as file:
        file.write('not json\n[1]\n{"prediction": 1}\n{"scored": "x", "measured_ns": "y"}\n\xff\n')
    assert len(read_record(tmp_path / RECORD)) == 1


def test_no_file_is_an_empty_record(tmp_path: Path) -> None:
    assert read_record(tmp_path / RECORD) == score_record(tmp_path / RECORD, tmp_path) == ()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "runs" / "run", ranks=2)
    (tmp_path / "runs").chmod(0o500)
    answer = ask(job_of(run), Question(LINK, 2.0))
    assert "not in the record" in keep(answer, Trace.open(run), record_file(run))


def test_a_file_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", ranks=2)
    answer = ask(job_of(run), Question(LINK, 2.0))
    assert "not in the record" in keep(answer, Trace.open(run), tmp_path)


def test_an_answer_without_an_interval_is_not_kept(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run")
    answer = ask(job_of(run), Question(LINK, 2.0))
    assert answer.step_ns is None
    assert keep(answer, Trace.open(run), tmp_path / RECORD) == ""
    assert not (tmp_path / RECORD).exists()


def entry(kind: str, measured: float | None, *, conclusive: bool = True) -> Entry:
    entry = Entry("k", "run", kind, kind, 100.0, 90.0, 110.0, conclusive, {}, 0, 0)
    return dataclasses.replace(entry, scored_run="r", measured_ns=measured)


def test_the_calibration_counts_what_was_scored_and_conclusive() -> None:
    entries = [entry("a", 100.0), entry("a", 80.0), entry("a", None), entry("b", 105.0)]
    entries.append(entry("b", 10.0, conclusive=False))
    first, second, both = calibrate(entries)
    assert (first.kind, first.made, first.scored, first.conclusive) == ("a", 3, 2, 2)
    assert first.median_error == pytest.approx(0.125)
    assert first.inside == 0.5
    assert (second.scored, second.conclusive, second.inside) == (2, 1, 1.0)
    assert (both.scored, both.conclusive) == (4, 3)
    assert both.half_width == pytest.approx(0.1)
    assert calibrate([])[-1].median_error is None


BAD_NUMBERS = ("Infinity", "-Infinity", "NaN", "1e999", "1" + "0" * 400, '"x"', "null", "[1]", "{}")


@pytest.mark.parametrize("number", BAD_NUMBERS)
@pytest.mark.parametrize(
    "name",
    ["run_created_ns", "at_ns", "step_ns", "low_ns", "high_ns", "base_created_ns", "samples"],
)
def test_a_number_that_is_none_makes_no_command_fail(
    tmp_path: Path, name: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    predicted(tmp_path, WITHOUT, cause="late_rank")
    file = tmp_path / RECORD
    (text,) = file.read_text().splitlines()
    line = {**json.loads(text), "base": "b", "base_created_ns": 1, "prediction": "other"}
    line[name] = "HERE"
    damaged = json.dumps(line).replace('"HERE"', number)
    file.write_text(f"{text}\n{damaged}\n")
    twin = synthetic_trace(tmp_path / "twin", ranks=2, config={"workers": 2})
    touch(twin, 60)
    assert main(["whatif", "--record", str(tmp_path), "--json"]) == 0
    assert "Infinity" not in capsys.readouterr().out
    assert main(["whatif", str(tmp_path / "late"), "--link", "2x"]) in (0, 11)
    assert [entry.key for entry in read_record(file)][:1] == [json.loads(text)["prediction"]]


@pytest.mark.parametrize("number", [*BAD_NUMBERS, "0", "-1", "5e-324", "1e308"])
@pytest.mark.parametrize("name", ["measured_ns", "run_created_ns"])
def test_a_damaged_score_is_none(tmp_path: Path, name: str, number: str) -> None:
    predicted(tmp_path, WITHOUT, cause="late_rank")
    file = tmp_path / RECORD
    (line,) = file.read_text().splitlines()
    score = {"scored": json.loads(line)["prediction"], "run": "x", "measured_ns": 1e7}
    score |= {"run_created_ns": 2**62, name: "HERE"}
    file.write_text(line + "\n" + json.dumps(score).replace('"HERE"', number) + "\n")
    for entry in read_record(file):
        assert entry.error is None or math.isfinite(entry.error)
    assert main(["whatif", "--record", str(tmp_path)]) == 0


@pytest.mark.parametrize("step", ["0", "-1", "1e-320"])
def test_a_prediction_of_no_time_is_none(tmp_path: Path, step: str) -> None:
    predicted(tmp_path, WITHOUT, cause="late_rank")
    file = tmp_path / RECORD
    line = {**json.loads(file.read_text()), "step_ns": "HERE", "low_ns": -1, "conclusive": True}
    score = {"scored": line["prediction"], "run": "x", "run_created_ns": 2**62, "measured_ns": 1e7}
    file.write_text(json.dumps(line).replace('"HERE"', step) + "\n" + json.dumps(score) + "\n")
    assert main(["whatif", "--record", str(tmp_path)]) == 0
    assert main(["whatif", "--record", str(tmp_path), "--json"]) == 0
    assert read_record(file) == ()


@pytest.mark.parametrize("words", ["[" * 100_000, '{"a":' * 100_000, "\x00", '"\\ud800"'])
def test_a_line_that_no_reader_takes_is_skipped(tmp_path: Path, words: str) -> None:
    predicted(tmp_path, LINK, 2.0)
    with open(tmp_path / RECORD, "a") as file:
        file.write(words + "\n")
    assert len(read_record(tmp_path / RECORD)) == 1
    assert main(["whatif", "--record", str(tmp_path)]) == 0


@pytest.mark.parametrize("word", ["\ud800", "\0", "..", "a" * 5_000, "\x1b[31m"])
@pytest.mark.parametrize("name", ["run", "words", "base", "prediction"])
def test_a_name_that_no_run_has_makes_no_command_fail(tmp_path: Path, name: str, word: str) -> None:
    predicted(tmp_path, WITHOUT, cause="late_rank")
    line = json.loads((tmp_path / RECORD).read_text())
    line |= {"base": "b", "base_created_ns": 1, name: word}
    score = {"scored": line["prediction"], "run": word, "run_created_ns": 2**62, "measured_ns": 1e7}
    twin = synthetic_trace(tmp_path / "twin", ranks=2, config={"workers": 2})
    touch(twin, 60)
    (tmp_path / RECORD).write_text(f"{json.dumps(line)}\n{json.dumps(score)}\n")
    assert main(["whatif", "--record", str(tmp_path)]) == 0
    (tmp_path / RECORD).write_text(f"{json.dumps(line)}\n")
    assert main(["whatif", "--record", str(tmp_path), "--json"]) == 0
    assert main(["report", str(twin)]) == 0
