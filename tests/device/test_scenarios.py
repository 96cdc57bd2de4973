"""Every screen says of every scenario what follows from its parameters.

The runs are made by profkit's own hooks, recorder and writer on simulated accelerators. Each value
is compared with the truth, within 2 % of the step, and with the same value of the other screens.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.analysis.selection import steady_steps
from profkit.instrument.guard import FAILURES
from profkit.testing.accelerator.jobs import Finished, run_ranks
from profkit.testing.accelerator.paddle_job import PaddleRank
from profkit.trace import Trace
from tests.device import screens
from tests.device.scenarios import BASE, SCENARIOS, Scenario
from tests.device.truths import Truth, alone, factors, mean

PADDLE_PROBES_NS = 10_000
"""Paddle's events are tried out once by the loop's thread, which costs it some queries."""

TOLERANCE = 0.02
"""Largest error of a value, as a share of the step."""

KNOWN: tuple[tuple[str, str, str], ...] = ()
"""What the product says wrongly today: check, scenarios, and the reason."""


class Runs:
    """The runs of this session, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Finished] = {}

    def of(self, scenario: Scenario) -> Path:
        self.finished(scenario)
        return self._folder / scenario.name

    def finished(self, scenario: Scenario) -> Finished:
        if scenario.name not in self._made:
            run = self._folder / scenario.name
            self._made[scenario.name] = run_ranks(scenario.kind, scenario.jobs, scenario.loop, run)
        return self._made[scenario.name]

    def base_of(self, scenario: Scenario) -> tuple[Path, Truth]:
        """The run to compare with: one rank of the same job."""
        if len(scenario.jobs) == 1:
            return self.of(BASE), BASE.truths[0]
        job = scenario.jobs[0]
        single = dataclasses.replace(scenario, name=f"{scenario.name}_1", jobs=(job,))
        return self.of(single), alone(job)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("device"))


@pytest.fixture(autouse=True)
def _no_failures() -> None:
    FAILURES.clear()


def close(found: Mapping[str, float], truth: Truth, base: float | None = None) -> None:
    """Compare every part, also those that one side alone knows."""
    expected = {"step": truth.step, **truth.parts}
    wrong = {}
    for name in {*expected, *found}:
        is_, be = found.get(name, 0.0), expected.get(name, 0.0)
        if not abs(is_ - be) <= TOLERANCE * truth.step:
            wrong[name] = f"{is_ / 1e6:.2f} ms, truth {be / 1e6:.2f} ms"
    assert not wrong, wrong


def _admits(run: Path) -> bool:
    """The first screen says that device times are missing."""
    return any("device time" in notice for notice in screens.quality(run))


def check_job(runs: Runs, scenario: Scenario) -> None:
    """The job takes the time that it takes without profkit, and no row is lost."""
    bare = run_ranks(scenario.kind, scenario.jobs, scenario.loop)
    probes_ns = PADDLE_PROBES_NS if issubclass(scenario.kind, PaddleRank) else 0
    assert runs.finished(scenario).ended_ns == pytest.approx(bare.ended_ns, abs=probes_ns)
    trace = Trace.open(runs.of(scenario))
    steps = trace.steps
    wall = (steps["end_ns"].to_numpy() - steps["start_ns"].to_numpy()).astype(float)
    used = np.isin(steps["step"].to_numpy(), steady_steps(trace).steps)
    assert wall[used].mean() == pytest.approx(mean(scenario.truths).step, rel=0.005)
    assert len(steps) == scenario.jobs[0].steps * len(scenario.jobs)
    if scenario.faultless != scenario.jobs:
        sound = dataclasses.replace(
            scenario, jobs=scenario.faultless, name=f"{scenario.name}_sound"
        )
        assert trace.spans.num_rows == Trace.open(runs.of(sound)).spans.num_rows


def check_single(
    read: Callable[[Path], Mapping[str, float]], runs: Runs, scenario: Scenario
) -> None:
    run = runs.of(scenario)
    if scenario.says_missing and _admits(run):
        return
    close(read(run), mean(scenario.truths))


def check_each_rank(
    read: Callable[[Path], list[Mapping[str, float]]], runs: Runs, scenario: Scenario
) -> None:
    run = runs.of(scenario)
    if scenario.says_missing and _admits(run):
        return
    for found, truth in zip(read(run), scenario.truths, strict=True):
        close(found, truth)


def check_ledger(runs: Runs, scenario: Scenario) -> None:
    base, truth = runs.base_of(scenario)
    values, found = screens.ledger(base, runs.of(scenario), scenario.samples)
    if scenario.says_missing and found["verdict"] == "cannot judge":
        assert "device time" in str(found["why_not_judged"])
        return
    close(values, mean(scenario.truths))
    gap = (mean(scenario.truths).step / scenario.samples * 32 - truth.step) / truth.step
    if abs(gap) > TOLERANCE:
        assert found["verdict"] == ("regression" if gap > 0 else "improvement")
    else:
        assert found["verdict"] == "neutral"


def check_scaling(runs: Runs, scenario: Scenario) -> None:
    if len(scenario.jobs) == 1:
        pytest.skip("one rank does not scale")
    base, truth = runs.base_of(scenario)
    row = screens.scaling(base, runs.of(scenario))
    if scenario.says_missing and row["efficiency_share"]["value"] is None:
        return
    expected = factors(truth, mean(scenario.truths))
    found = {"efficiency": row["efficiency_share"]["value"]}
    for name, factor in row["factors_ratio"].items():
        found[name] = factor["value"]
    assert found == pytest.approx(expected, abs=TOLERANCE)


def check_exchange(runs: Runs, scenario: Scenario) -> None:
    if len(scenario.jobs) == 1:
        assert screens.exchange(runs.of(scenario)) == []
        return
    found = screens.exchange(runs.of(scenario))
    if scenario.says_missing and _admits(runs.of(scenario)):
        return
    assert len(found) == len(scenario.jobs)
    for row, truth in zip(found, scenario.truths, strict=True):
        expected = {
            "exposed": truth.allreduce,
            "waiting": truth.waiting,
            "transfer": truth.allreduce - truth.waiting,
        }
        for name, value in expected.items():
            assert abs(row[name] - value) <= TOLERANCE * truth.step, (name, row[name], value)


def check_agreement(runs: Runs, scenario: Scenario) -> None:
    """All screens show the same figures, to the nanosecond."""
    run = runs.of(scenario)
    first = screens.overview(run)
    reported = screens.report(run)
    rows = screens.ranks(run)
    names = {*first, *reported}
    for row in rows:
        names.update(row)
    for name in sorted(names):
        value = first.get(name, 0.0)
        assert reported.get(name, 0.0) == pytest.approx(value, abs=1), f"report: {name}"
        averaged = sum(row.get(name, 0.0) for row in rows) / len(rows)
        assert averaged == pytest.approx(value, abs=1), f"ranks: {name}"
    if not scenario.says_missing:
        base = runs.base_of(scenario)[0]
        ledger, _ = screens.ledger(base, run, scenario.samples)
        for name in {*ledger, *names}:
            assert ledger.get(name, 0.0) == pytest.approx(first.get(name, 0.0), abs=1), name


CHECKS: Mapping[str, Callable[[Runs, Scenario], None]] = {
    "job": check_job,
    "report": functools.partial(check_single, screens.report),
    "overview": functools.partial(check_single, screens.overview),
    "live": functools.partial(check_single, screens.live),
    "ranks": functools.partial(check_each_rank, screens.ranks),
    "timeline": functools.partial(check_each_rank, screens.timeline),
    "ledger": check_ledger,
    "scaling": check_scaling,
    "exchange": check_exchange,
    "agreement": check_agreement,
}


def _cases() -> list[Any]:
    cases = []
    for scenario in SCENARIOS:
        for check in CHECKS:
            marks = []
            for checks, names, reason in KNOWN:
                if fnmatch.fnmatch(check, checks) and fnmatch.fnmatch(scenario.name, names):
                    marks.append(pytest.mark.xfail(strict=True, reason=reason))
            cases.append(pytest.param(scenario, check, id=f"{scenario.name}-{check}", marks=marks))
    return cases


@pytest.mark.parametrize(("scenario", "check"), _cases())
def test_a_screen_tells_the_truth(runs: Runs, scenario: Scenario, check: str) -> None:
    CHECKS[check](runs, scenario)


def test_there_are_enough_scenarios() -> None:
    assert len(SCENARIOS) >= 40
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
