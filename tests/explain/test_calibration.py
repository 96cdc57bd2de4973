"""Verdicts are right as often as they say, on public repeats of other people's jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from profkit.explain.noise import probability, spread_of_twins
from profkit.explain.policy import POLICY

ROOT = Path(__file__).parents[2]
REPEATS = ROOT.parent / "shared" / "data" / "mlperf" / "repeats.parquet"


@pytest.fixture(scope="module")
def calibration() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import calibration as module
    finally:
        sys.path.pop(0)
    return module


@pytest.mark.skipif(not REPEATS.exists(), reason="the public repeats of MLPerf are not here")
def test_twins_of_an_organisation_that_was_left_out_are_seldom_a_change(calibration: Any) -> None:
    pairs = calibration.read_pairs(REPEATS)
    found = calibration.joined(list(calibration.leave_one_out(pairs)))
    assert found.false_certain <= 0.02
    assert found.found[0.03] >= 0.97
    assert found.found[0.015] >= 0.80
    shipped = calibration.rate(pairs)
    assert shipped.false_certain <= 0.02
    assert shipped.false_probable <= 1 - POLICY.probable


def test_a_probability_grows_with_the_change() -> None:
    assert probability(0.0, 0.02) == 0.5
    assert probability(0.02, 0.02) == pytest.approx(POLICY.certain)
    assert probability(0.02, 0.02, 0.04) < POLICY.certain
    assert probability(0.01) == 1.0


def test_steps_that_scatter_make_twins_differ_up_to_a_limit() -> None:
    spreads = [spread_of_twins(error) for error in (0.0, 0.002, 0.01, 0.5)]
    assert spreads[0] < spreads[1] < spreads[2] == spreads[3]
