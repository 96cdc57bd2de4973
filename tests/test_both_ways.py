"""The second held-out suite: its faults, and the score of a pair in both directions."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from profkit.testing import synthetic_trace

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks/faults"))
from accuracy_page import update_page
from both_ways import (
    DIRECTIONS,
    FASTER,
    SLOWER,
    Outcome,
    PairScore,
    figures_of,
    misses,
    right_places,
    score_both_ways,
)
from fault import Fault
from pairs import BASE, DONE, TARGET, folder_of, job_of
from scoring import Said, true_cost_ms
from second_page import SECOND_HEADING, as_misses
from second_parts import Options
from second_plants import OTHER
from variants import FAULTS_2, HELD_OUT_2, options_of

MS = 1_000_000
PAUSE = Fault(
    "pause", ((OTHER,),), {"pause_ms": 5.0}, "planted", ("before the step",), job="job_translate"
)
NOISY = Fault("healthy_noise", (), {}, None, job="job_translate", noise="both")


def outcome(*causes: Said, direction: str = SLOWER, place: int | None = None) -> Outcome:
    return Outcome(direction, "neutral", causes, place, None, "", "profkit explain a b")


def pair(fault: Fault, *outcomes: Outcome, true_ms: float | None = None) -> PairScore:
    return PairScore(fault, 0, outcomes, true_ms, "2026-01-02 03:04")


@pytest.mark.parametrize("fault", FAULTS_2, ids=lambda fault: fault.name)
def test_the_twins_differ_in_options_that_the_job_has(fault: Fault) -> None:
    base, target = (
        options_of(fault, planted=planted, variant=HELD_OUT_2) for planted in (False, True)
    )
    assert base != target
    assert {*base, *target} <= {field.name for field in dataclasses.fields(Options)}
    assert fault.healthy or fault.says


def test_there_are_enough_faults_and_healthy_pairs() -> None:
    assert len({fault.name for fault in FAULTS_2}) == len(FAULTS_2)
    assert sum(not fault.healthy for fault in FAULTS_2) >= 26
    assert {fault.noise for fault in FAULTS_2 if fault.healthy} == {"", "target", "both"}


def test_noise_is_next_to_the_sides_that_the_fault_names() -> None:
    on_target = dataclasses.replace(NOISY, noise="target")
    asked = [job_of(on_target, side, HELD_OUT_2, 0).get("noise") for side in (BASE, TARGET)]
    assert asked[0] is None
    assert asked[1]


def test_a_planted_time_is_that_of_the_rank_with_the_most(tmp_path: Path) -> None:
    for side, planted in ((BASE, 0.0), (TARGET, 8.0)):
        (tmp_path / side).mkdir()
        for rank in (0, 1):
            steps = [{"step": 20.0, "starts_epoch": 0.0, "planted": planted * rank}] * 30
            (tmp_path / side / f"own{rank}.json").write_text(json.dumps(steps))
    late = dataclasses.replace(PAUSE, ranks=2)
    assert true_cost_ms(tmp_path, late) == pytest.approx(8.0)


def test_a_pair_is_scored_in_both_directions(tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS_2 if fault.name == "translate_slow_storage")
    folder = folder_of(tmp_path, HELD_OUT_2, 0, fault)
    for side, data_ms in ((BASE, 2.0), (TARGET, 22.0)):
        (folder / side).mkdir(parents=True)
        synthetic_trace(
            folder / side / "run", steps=120, phase_ns={"data": int(data_ms * MS)}, seed=3
        )
        own = [{"step": 48.0, "starts_epoch": 0.0, "data": data_ms}] * 40
        (folder / side / "own0.json").write_text(json.dumps(own))
    jobs = {side: job_of(fault, side, HELD_OUT_2, 0) for side in (BASE, TARGET)}
    (folder / DONE).write_text(json.dumps({"jobs": jobs, "at": "2026-01-02 03:04"}))
    (score,) = score_both_ways(tmp_path)
    assert [each.direction for each in score.outcomes] == list(DIRECTIONS)
    assert [each.verdict for each in score.outcomes] == ["regression", "improvement"]
    assert [each.place for each in score.outcomes] == [0, 0]
    assert [each.causes[0].is_gain for each in score.outcomes] == [False, True]
    assert score.true_ms == pytest.approx(20.0)
    assert all((score.cost_error(each) or 0.0) < 0.05 for each in score.outcomes)
    assert not list(misses([score]))


def test_a_cause_is_right_by_kind_words_and_direction() -> None:
    causes = (
        Said("late_rank", 5.0, "before the step"),  # a kind of another meaning
        Said("new_kind", 5.0, "after the step"),
        Said("new_kind", 5.0, "before the step", is_gain=True),
        Said("new_kind", 5.0, "before the step"),
    )
    assert list(right_places(causes, PAUSE, is_gain=False)) == [3]
    assert list(right_places(causes, PAUSE, is_gain=True)) == [2]
    assert not list(right_places(causes, NOISY, is_gain=False))


def test_next_to_other_processes_a_busy_host_is_no_false_alarm() -> None:
    busy = outcome(Said("host_busy", 3.0, ""))
    late = outcome(Said("host_busy", 3.0, ""), Said("late_rank", 2.0, ""))
    verdict = dataclasses.replace(outcome(), verdict="regression")
    quiet = dataclasses.replace(NOISY, noise="")
    assert not list(misses([pair(NOISY, busy)]))
    assert list(misses([pair(NOISY, late)]))
    assert list(misses([pair(NOISY, verdict)]))
    assert list(misses([pair(quiet, busy)]))


def test_the_figures_of_a_direction_count_its_outcomes_only() -> None:
    right = outcome(Said("new_kind", 6.0, "before the step"), place=0)
    wrong = outcome(Said("late_rank", 6.0, ""), direction=FASTER)
    scores = [pair(PAUSE, right, wrong, true_ms=5.0)]
    slower, faster = (figures_of(scores, direction) for direction in DIRECTIONS)
    assert (slower.first, faster.first) == (1.0, 0.0)
    assert slower.cost_error == pytest.approx(0.2)
    assert faster.cost_error is None
    assert "pause, target faster" in as_misses(scores)


def test_the_page_keeps_the_part_of_which_there_are_no_scores() -> None:
    old = f"# Accuracy\n\nearlier table\n\n{SECOND_HEADING}\n\nold part\n"
    scores = [pair(PAUSE, outcome(), outcome(direction=FASTER), true_ms=5.0)]
    page = update_page(old, [], scores, has_gpu=False)
    assert page.startswith("# Accuracy\n\nearlier table\n")
    assert page.count(SECOND_HEADING) == 1
    assert "old part" not in page
    assert update_page(old, [], [], has_gpu=False) == old
