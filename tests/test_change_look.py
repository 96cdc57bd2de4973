"""How much processor time the detection of changes may take while a job runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from profkit.analysis.change_points import find_shifts, seems_changed
from profkit.run.change_look import (
    CREDIT_S,
    MOST_CORE,
    MOST_LOAD,
    MOST_READINGS,
    MOST_S_PER_STEP,
    Budget,
    Look,
)
from profkit.testing.series import series_trace
from profkit.trace.tail import Latest, RunTail


@pytest.mark.parametrize("step_s", [0.0001, 0.001, 0.01, 0.1, 10.0])
@pytest.mark.parametrize("suspect", [True, False])
def test_looks_and_searches_stay_within_their_budget(step_s: float, suspect: bool) -> None:
    """Searches take 30 ms here, and looks 1 ms; the credit may be spent once."""
    budget, spent_s, now_s, pause_s = Budget(), 0.0, 0.0, 1.0
    while now_s < 50_000 * step_s + 3_600:
        now_s += pause_s
        budget.earn(pause_s, step_s)
        spent_s += 0.001
        if budget.allows(suspect=suspect):
            budget.pay(0.03)
            spent_s += 0.03
        pause_s = budget.pause_s(0.001)
    allowed = max(MOST_LOAD, min(MOST_CORE, MOST_S_PER_STEP / step_s))
    assert spent_s <= CREDIT_S + 0.05 + allowed * now_s
    if step_s == 0.1:
        assert allowed * step_s <= 5e-6


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_whatever_is_found_seems_changed_first(seed: int, correlation: float) -> None:
    random = np.random.default_rng(seed)
    noise, last = 0.03 * random.standard_normal(700), 0.0
    for place, each in enumerate(noise.tolist()):
        last = correlation * last + each
        noise[place] = last
    for rise in (0.1, 0.2, -0.1):
        logs = noise.copy()
        logs[500:] += rise
        shifts = find_shifts(np.exp(logs) * 1e8)
        if shifts:
            assert seems_changed(np.exp(logs) * 1e8, 200)


def test_steps_that_are_alike_do_not_seem_changed() -> None:
    quiet = 0
    for seed in range(20):
        lengths = np.exp(0.02 * np.random.default_rng(seed).standard_normal(1_000)) * 1e8
        quiet += not seems_changed(lengths, 100)
    assert quiet > 12, "nearly every look would search"
    assert not seems_changed(np.full(20, 1e8), 10), "too few steps"


def test_a_look_returns_rows_only_if_they_are_worth_a_search(tmp_path: Path) -> None:
    forward = np.exp(0.02 * np.random.default_rng(0).standard_normal(400))
    run = series_trace(tmp_path / "run", {"forward": 50e6 * forward})
    look = Look(run, run / "r00000")
    latest, pause_s = look.look(1.0)
    assert latest is not None, "the credit is full"
    assert latest.steps.num_rows == 400
    assert pause_s >= 1.0
    assert look.look(1.0)[0] is None, "nothing is new"


def test_a_search_reads_one_rank_however_many_there_are(tmp_path: Path) -> None:
    forward = np.exp(0.02 * np.random.default_rng(0).standard_normal(400))
    run = series_trace(tmp_path / "run", {"forward": 50e6 * forward}, ranks=3)
    latest, _ = Look(run, run / "r00001").look(1.0)
    assert latest is not None
    assert [*latest.ranks] == [1]
    assert set(latest.steps["rank"].to_pylist()) == {1}
    assert latest.ranks_in_all == 3


@pytest.mark.parametrize("missing", [0, 3, MOST_READINGS])
def test_a_search_comes_once_all_tables_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    """Marks that are not read yet would leave steps that profkit made longer to be found."""
    forward = np.exp(0.02 * np.random.default_rng(0).standard_normal(400))
    run = series_trace(tmp_path / "run", {"forward": 50e6 * forward})
    whole, readings = RunTail(run, marks=True).look(), 0

    def read_a_part(tail: RunTail) -> Latest:
        nonlocal readings
        readings += 1
        return dataclasses.replace(whole, behind=readings <= missing)

    monkeypatch.setattr(RunTail, "look", read_a_part)
    latest = Look(run, run / "r00000").look(1.0)[0]
    assert (latest is not None) == (missing < MOST_READINGS)
    assert latest is None or not latest.behind
