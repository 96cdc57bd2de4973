"""The planted faults: their options, the causes that name them, and the score of a pair."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from profkit.testing import synthetic_trace

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks/faults"))
from job_parts import Options
from pairs import BASE, DONE, TARGET, folder_of, job_of
from plants import FAULTS, OTHER, Fault
from scoring import Said, Score, as_text, right_places, score_all, summarize, true_cost_ms

MS = 1_000_000
PAUSE = Fault(
    "pause", "job_translate", {"pause_ms": 5.0}, (OTHER,), "planted", ("before the step",)
)
NOISY = Fault("healthy_noise", "job_translate", {}, noise="both")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_twins_differ_in_options_that_the_job_has(fault: Fault) -> None:
    base, target = (fault.options(planted=planted) for planted in (False, True))
    assert base != target
    assert {*base, *target} <= {field.name for field in dataclasses.fields(Options)}


def test_there_are_enough_faults_and_healthy_pairs() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert sum(not fault.healthy for fault in FAULTS) >= 60
    assert {fault.noise for fault in FAULTS if fault.healthy} == {"", "target", "both"}


def test_noise_is_next_to_the_sides_that_the_fault_names() -> None:
    on_target = dataclasses.replace(NOISY, noise="target")
    asked = [job_of(on_target, side, 0).get("noise") for side in (BASE, TARGET)]
    assert asked[0] is None
    assert asked[1]


def test_a_planted_time_is_that_of_the_rank_with_the_most(tmp_path: Path) -> None:
    for side, planted in ((BASE, 0.0), (TARGET, 8.0)):
        (tmp_path / side).mkdir()
        for rank in (0, 1):
            steps = [{"step": 20.0, "planted": planted * rank}] * 30
            (tmp_path / side / f"own{rank}.json").write_text(json.dumps(steps))
    assert true_cost_ms(tmp_path, dataclasses.replace(PAUSE, ranks=2)) == pytest.approx(8.0)


def _write_pair(work: Path, fault: Fault, data_ms: float) -> None:
    """Write two synthetic runs and their own clocks' times, like the real runner."""
    folder = folder_of(work, 0, fault)
    for seed, (side, wait_ms) in enumerate(((BASE, 2.0), (TARGET, data_ms))):
        (folder / side).mkdir(parents=True)
        phases = {"data": int(wait_ms * MS)}
        synthetic_trace(folder / side / "run", steps=120, phase_ns=phases, seed=seed)
        own = [{"step": 48.0, "data": wait_ms}] * 40
        (folder / side / "own0.json").write_text(json.dumps(own))
    jobs: dict[str, Any] = {side: job_of(fault, side, 0) for side in (BASE, TARGET)}
    (folder / DONE).write_text(json.dumps(jobs))


def test_pairs_are_scored_against_the_jobs_own_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {fault.name: fault for fault in FAULTS}
    slow, healthy = known["translate_slow_storage"], known["healthy_translate"]
    _write_pair(tmp_path, slow, 22.0)
    _write_pair(tmp_path, healthy, 2.0)
    scores = score_all(tmp_path, FAULTS)
    found = {score.fault.name: score for score in scores}
    assert found[slow.name].verdict == "regression"
    assert found[slow.name].place == 0
    assert found[slow.name].true_ms == pytest.approx(20.0)
    assert found[slow.name].cost_error == pytest.approx(0.0, abs=0.05)
    assert found[healthy.name].is_right
    figures = summarize(scores)
    assert (figures["named_first"], figures["faults"], figures["quiet"]) == (1, 1, 1)
    assert slow.name in as_text(scores)
    others = [dataclasses.replace(slow, change={"storage_ms": 9.0})]
    assert score_all(tmp_path, others) == []
    assert "its options have changed" in capsys.readouterr().err


def test_a_cause_is_right_by_kind_words_and_direction() -> None:
    causes = (
        Said("late_rank", 5.0, "before the step"),  # a kind of another meaning
        Said("new_kind", 5.0, "after the step"),
        Said("new_kind", 5.0, "before the step", is_gain=True),
        Said("new_kind", 5.0, "before the step"),
    )
    assert list(right_places(causes, PAUSE)) == [3]
    assert not list(right_places(causes, NOISY))


def test_next_to_other_processes_a_busy_host_is_no_false_alarm() -> None:
    busy = (Said("host_busy", 3.0, ""),)
    late = (*busy, Said("late_rank", 2.0, ""))
    quiet = dataclasses.replace(NOISY, noise="")
    assert Score(NOISY, 0, "neutral", busy, None, None).is_right
    assert not Score(NOISY, 0, "neutral", late, None, None).is_right
    assert not Score(NOISY, 0, "regression", (), None, None).is_right
    assert not Score(quiet, 0, "neutral", busy, None, None).is_right
