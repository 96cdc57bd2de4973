"""The planted faults: their changes, the causes that name them, and their scores."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from profkit.plugins import RULES
from profkit.testing import synthetic_trace

FAULTS_FOLDER = Path(__file__).parents[2] / "benchmarks/faults"
sys.path.insert(0, str(FAULTS_FOLDER))
import scoring  # noqa: E402
from accuracy_page import as_document  # noqa: E402
from fault import Fault  # noqa: E402
from job_parts import Options  # noqa: E402
from pairs import BASE, DONE, TARGET, done_at, job_of  # noqa: E402
from scoring import NOTHING, Score, score_all  # noqa: E402
from summary import as_text, summarize  # noqa: E402
from variants import DEVELOPMENT, FAULTS, HELD_OUT, SHAPES, options_of  # noqa: E402

MS = 1_000_000
SLOW_INPUT = Fault("slow_read", (("input_bound",),), {"read_ms": 4.0}, "data")
LATE = Fault("late_in_forward", (("late_rank",),), {}, "planted", ("forward",), ranks=2)
HEALTHY = Fault("healthy_pair", (), {}, None)


def test_there_are_enough_faults_and_healthy_pairs() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert sum(not fault.healthy for fault in FAULTS) >= 24
    assert sum(fault.healthy for fault in FAULTS) >= 20
    assert {fault.ranks for fault in FAULTS} == {1, 2, 4}
    assert {fault.framework for fault in FAULTS if fault.healthy} == {"torch", "paddle"}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_told_by_options_and_rules_that_there_are(fault: Fault) -> None:
    known = {field.name for field in dataclasses.fields(Options)}
    for variant in SHAPES:
        base, target = (
            options_of(fault, planted=planted, variant=variant) for planted in (False, True)
        )
        assert {*base, *target} <= known
        assert {
            name for name in target if target[name] != base.get(name, getattr(Options(), name))
        } == set(fault.change)
    assert {kinds[0] for kinds in fault.causes} <= set(RULES.names())


def test_pairs_are_scored_against_the_jobs_own_clock(tmp_path: Path) -> None:
    _pair(tmp_path, SLOW_INPUT, {"phase_ns": {"data": 9 * MS}}, {"data": 9.0})
    _pair(tmp_path, LATE, {"rank_phase_ns": {1: {"forward": 22 * MS}}}, {"planted": 10.0})
    _pair(tmp_path, HEALTHY, {}, {})
    scores = score_all(tmp_path, [SLOW_INPUT, LATE, HEALTHY], [DEVELOPMENT])
    by_name = {score.fault.name: score for score in scores}
    assert by_name["slow_read"].first == "input_bound"
    assert by_name["slow_read"].true_ms == pytest.approx(7.0)
    assert by_name["slow_read"].cost_error == pytest.approx(0.0, abs=0.1)
    assert by_name["late_in_forward"].top_1
    assert by_name["healthy_pair"].first == NOTHING
    found = summarize(scores)
    assert (found.single, found.top_1, found.top_3, found.healthy, found.quiet) == (
        2,
        1.0,
        1.0,
        1,
        1.0,
    )


def test_what_is_wrong_is_listed(tmp_path: Path) -> None:
    missed = Score(LATE, HELD_OUT, 0, (), (None,), 10.0)
    loud = _said(_said_of(tmp_path), HEALTHY)
    document = as_document([missed, loud], has_gpu=False)
    assert (
        "- held-out, trial 0, `late_in_forward`: reports nothing; "
        "late_rank is not among the first three" in document
    )
    assert "- development, trial 0, `healthy_pair`: reports input_bound" in document
    assert "`item_syncs`" in document, "what needs a GPU is told"
    assert "healthy_pair" in as_text([missed, loud])


def test_what_a_sample_costs_more_counts_those_that_are_left_out(tmp_path: Path) -> None:
    fault = dataclasses.replace(SLOW_INPUT, truth="samples")
    _pair(tmp_path, fault, {}, {"samples": 6.0})
    (score,) = score_all(tmp_path, [fault], [DEVELOPMENT])
    assert score.true_ms == pytest.approx(48.0 / 6 * 8 - 48.0)


def test_a_pair_that_was_planted_otherwise_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _pair(tmp_path, SLOW_INPUT, {}, {})
    assert (
        score_all(
            tmp_path, [dataclasses.replace(SLOW_INPUT, change={"read_ms": 5.0})], [DEVELOPMENT]
        )
        == []
    )
    assert (
        capsys.readouterr().err == f"{tmp_path}/development/0/slow_read: left out, "
        "something else was planted when it was run; run it again\n"
    )


@pytest.mark.parametrize("done", [True, False], ids=["damaged", "being run again"])
def test_a_pair_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], done: bool
) -> None:
    _pair(tmp_path, SLOW_INPUT, {}, {})
    folder = tmp_path / DEVELOPMENT / "0" / "slow_read"
    shutil.rmtree(folder / TARGET)

    def taken_away(*pair: Any) -> str | None:
        at: str | None = done_at(*pair)
        if not done:
            (folder / DONE).unlink()
        return at

    monkeypatch.setattr(scoring, "done_at", taken_away)
    if done:
        with pytest.raises(
            SystemExit, match=r"slow_read: cannot be scored \(.*\); take it away and run it again"
        ):
            score_all(tmp_path, [SLOW_INPUT], [DEVELOPMENT])
    else:
        assert score_all(tmp_path, [SLOW_INPUT], [DEVELOPMENT]) == []
        assert capsys.readouterr().err == f"{folder}: left out, it is being run again\n"


def _said_of(folder: Path) -> Score:
    _pair(folder, SLOW_INPUT, {"phase_ns": {"data": 9 * MS}}, {"data": 9.0})
    (score,) = score_all(folder, [SLOW_INPUT], [DEVELOPMENT])
    return score


def _said(score: Score, fault: Fault) -> Score:
    """The same causes, of another pair."""
    return dataclasses.replace(score, fault=fault, places=(), true_ms=None)


def _pair(work: Path, fault: Fault, planted: dict[str, Any], own_ms: dict[str, float]) -> None:
    """Write two synthetic runs and their own clocks' times, like the real runner."""
    folder = work / DEVELOPMENT / "0" / fault.name
    for number, (side, options, own) in enumerate(
        ((BASE, {}, {"data": 2.0, "samples": 8.0}), (TARGET, planted, own_ms))
    ):
        (folder / side).mkdir(parents=True)
        synthetic_trace(folder / side / "run", ranks=fault.ranks, steps=120, seed=number, **options)
        for rank in range(fault.ranks):
            (folder / side / f"own{rank}.json").write_text(
                json.dumps([{**own, "step": 48.0, "starts_epoch": 0.0}] * 40)
            )
    jobs = {side: job_of(fault, side, DEVELOPMENT, 0) for side in (BASE, TARGET)}
    (folder / DONE).write_text(json.dumps({"jobs": jobs, "at": "2026-01-02 03:04"}))
