"""The planted faults: what they change, what names them, and how they are scored."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from profkit.plugins import RULES
from profkit.testing import synthetic_trace

FAULTS_FOLDER = Path(__file__).parents[2] / "benchmarks/faults"
sys.path.insert(0, str(FAULTS_FOLDER))
from job_parts import Options  # noqa: E402
from plants import DEVELOPMENT, FAULTS, HELD_OUT, SHAPES, Fault, options_of  # noqa: E402
from scoring import NOTHING, Score, as_document, as_text, score_all, summarize  # noqa: E402

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
        base, target = (options_of(fault, planted=planted, variant=variant) for planted in (False, True))
        assert {*base, *target} <= known
        assert {name for name in target if target[name] != base.get(name, getattr(Options(), name))} == set(fault.change)
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
    assert (found.single, found.top_1, found.top_3, found.healthy, found.quiet) == (2, 1.0, 1.0, 1, 1.0)


def test_what_is_wrong_is_listed(tmp_path: Path) -> None:
    missed = Score(LATE, HELD_OUT, 0, (), (None,), 10.0)
    loud = _said(_said_of(tmp_path), HEALTHY)
    document = as_document([missed, loud], has_gpu=False)
    assert "- held-out, trial 0, `late_in_forward`: says nothing; late_rank is not among the first three" in document
    assert "- development, trial 0, `healthy_pair`: says input_bound" in document
    assert "`item_syncs`" in document, "what needs a GPU is told"
    assert "healthy_pair" in as_text([missed, loud])


def _said_of(folder: Path) -> Score:
    _pair(folder, SLOW_INPUT, {"phase_ns": {"data": 9 * MS}}, {"data": 9.0})
    (score,) = score_all(folder, [SLOW_INPUT], [DEVELOPMENT])
    return score


def _said(score: Score, fault: Fault) -> Score:
    """The same findings, of another pair."""
    return dataclasses.replace(score, fault=fault, places=(), true_ms=None)


def _pair(work: Path, fault: Fault, planted: dict[str, Any], own_ms: dict[str, float]) -> None:
    """Two synthetic runs where the runner would have left real ones, with what their jobs' own clocks would have said."""
    folder = work / DEVELOPMENT / "0" / fault.name
    for number, (side, options, own) in enumerate((("base", {}, {"data": 2.0}), ("target", planted, own_ms))):
        (folder / side).mkdir(parents=True)
        synthetic_trace(folder / side / "run", ranks=fault.ranks, steps=120, seed=number, **options)
        for rank in range(fault.ranks):
            (folder / side / f"own{rank}.json").write_text(json.dumps([{**own, "step": 48.0, "starts_epoch": 0.0}] * 40))
    (folder / "done.json").write_text("{}")
