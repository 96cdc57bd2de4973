"""Every screen says of twelve scenarios what follows from their parameters; at night, of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from profkit.instrument.guard import FAILURES

if TYPE_CHECKING:
    from tests.device.checks import Runs

FEW = (
    "compute_bound",
    "input_bound_with_worker",
    "copy_pageable",
    "evaluation",
    "graphs",
    "clock_fast",
    "query_fails_once",
    "two_ranks_overlapped",
    "late_in_forward",
    "tiny_buckets",
    "accumulation_with_no_sync",
    "paddle_two_ranks_tail",
)


@pytest.mark.parametrize("name", FEW)
def test_all_screens_tell_the_truth(runs: Runs, name: str) -> None:
    from tests.device.checks import CHECKS
    from tests.device.scenarios import SCENARIOS

    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    FAILURES.clear()
    outcomes = {check: CHECKS[check](runs, scenario) for check in CHECKS}
    wrong = {check: outcome.where for check, outcome in outcomes.items() if not outcome.good}
    assert not wrong
    assert scenario.says_missing or not FAILURES
