"""Every screen says of every scenario what follows from its parameters.

The runs are made by profkit's own hooks, recorder and writer on simulated accelerators. Each value
is compared with the truth, within 2 % of the step, and with the same value of the other screens.
"""

from __future__ import annotations

from typing import Any

import pytest

from profkit.instrument.guard import FAILURES
from tests.accelerator.jobs import Fault, Job
from tests.device.checks import CHECKS, Runs
from tests.device.scenarios import SCENARIOS, Scenario
from tests.device.truths import alone


def _cases() -> list[Any]:
    cases = []
    for scenario in SCENARIOS:
        for check in CHECKS:
            cases.append(pytest.param(scenario, check, id=f"{scenario.name}-{check}"))
    return cases


@pytest.mark.parametrize(("scenario", "check"), _cases())
def test_a_screen_tells_the_truth(runs: Runs, scenario: Scenario, check: str) -> None:
    FAILURES.clear()
    outcome = CHECKS[check](runs, scenario)
    assert outcome.good, outcome.where
    if not scenario.says_missing:
        assert not FAILURES


EVENTS_PER_STEP = 10
"""Two per phase; one more makes sure that a whole step is covered."""


@pytest.mark.parametrize("operation", ["create", "record", "query", "elapsed_time"])
@pytest.mark.parametrize("place", range(EVENTS_PER_STEP + 1))
def test_an_event_that_fails_anywhere_costs_no_row(runs: Runs, operation: str, place: int) -> None:
    job = Job(steps=12, fault=Fault(operation, place + 2 * EVENTS_PER_STEP))
    scenario = Scenario(f"{operation} {place}", (job,), (alone(job),))
    outcome = CHECKS["job"](runs, scenario)
    assert outcome.good, outcome.where


def test_there_are_enough_scenarios() -> None:
    assert len(SCENARIOS) >= 40
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
