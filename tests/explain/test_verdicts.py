"""A verdict has three grades; what no machine makes needs no quiet machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from profkit.errors import ExitCode
from profkit.explain.between import is_evident
from profkit.explain.evidence_counters import Load
from profkit.explain.explained import Explained, explain
from profkit.explain.gate import Gate, apply_gates, exit_code
from profkit.explain.ledger import Verdict
from profkit.report.ledger_document import explained
from profkit.testing.synthetic_timeline import OUTSIDE
from tests.explain.conftest import Make, plant

SLOWER = 1.12


def _pair(make: Make, longer: Any, ranks: int = 1, others: float | None = 8.0) -> Explained:
    """Two runs on a machine that other processes use."""
    return explain(make(ranks, others=others), make(ranks, seed=2, others=others, longer=longer))


def _slow(name: str, ns: Any) -> Any:
    return (ns * SLOWER).astype(np.int64) if name != "outside" else ns


def test_what_a_busy_machine_can_make_is_at_most_probable(make: Make) -> None:
    ledger = _pair(make, _slow).ledger
    assert ledger.verdict in (Verdict.PROBABLE_REGRESSION, Verdict.CANNOT_JUDGE)
    assert ledger.probability is not None
    assert ledger.probability < 0.975
    assert (ledger.verdict is Verdict.PROBABLE_REGRESSION) == (ledger.probability >= 0.8)
    gates = apply_gates(ledger, [Gate.parse("3%")])
    assert exit_code(gates) == ExitCode.NOT_JUDGED


def test_work_of_a_period_is_certain_on_any_machine(make: Make) -> None:
    longer = plant(OUTSIDE, lambda step: 100.0 * (step % 10 == 9))
    view = _pair(make, longer)
    assert view.ledger.verdict is Verdict.REGRESSION
    assert view.ledger.evident is None or view.ledger.evident.rows == ("unknown",)
    assert exit_code(apply_gates(view.ledger, [Gate.parse("3%")])) == ExitCode.REGRESSION
    assert explained(view).headline.startswith("Regression: ")


def test_rare_long_steps_are_certain_though_their_mean_is_not(make: Make) -> None:
    is_slow = np.random.default_rng(5).random(200) < 1 / 15
    view = _pair(make, plant("data", lambda step: 450.0 * is_slow[step]))
    assert view.ledger.verdict is Verdict.REGRESSION
    assert view.ledger.doubt == ""


@pytest.mark.parametrize(("share", "evident"), [(0.05, ("forward",)), (1.0, ())])
def test_a_sleep_is_evident_and_as_much_computing_is_not(
    share: float, evident: tuple[str, ...], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processor time of the process says which it is."""
    base = make(1, others=1.0)
    target = make(1, seed=2, others=1.0, longer=plant("forward", lambda step: 8.0 + 0 * step))

    def load(evidence: Any) -> Load:
        added = 8.0 if evidence.trace is target else 0.0
        busy_ms = 45.0 + share * added
        return Load(16, busy_ms / (45.0 + added), 0.0, 15.0, 50.0, ranks=1)

    monkeypatch.setattr("profkit.explain.evidence.Evidence.load", property(load))
    told = explain(base, target).told_cells
    assert tuple(cell.row for cell in told if is_evident(cell)) == evident


def test_no_difference_comes_with_what_would_have_been_seen(make: Make) -> None:
    view = explain(make(2), make(2, seed=2))
    assert view.ledger.verdict is Verdict.NEUTRAL
    assert view.ledger.smallest_seen is not None
    assert "would have been seen" in explained(view).summary


def test_a_sleep_is_told_though_the_base_met_a_busier_machine(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else is quicker by as much, which is the machine's doing."""

    def slow(name: str, ns: Any) -> Any:
        return (ns * 1.5).astype(np.int64) if name == "backward" else ns

    base = make(1, others=8.0, longer=slow)
    target = make(1, seed=2, others=1.0, longer=plant("forward", lambda step: 12.0 + 0 * step))

    def load(evidence: Any) -> Load:
        ratio = 45.0 / 57.0 if evidence.trace is target else 1.0
        return Load(16, ratio, 0.0, 15.0 if evidence.trace is base else 3.0, 50.0, ranks=1)

    monkeypatch.setattr("profkit.explain.evidence.Evidence.load", property(load))
    view = explain(base, target)
    assert view.ledger.verdict is Verdict.REGRESSION
    assert "more in forward, in every step, asleep or blocked" in explained(view).headline


def _every(period: int, ms: float = 180.0) -> Any:
    return lambda step: ms * (step % period == period - 1)


def _rhythms(make: Make, base: Any, target: Any, steps: int = 100) -> Explained:
    longer = (plant(OUTSIDE, base), plant(OUTSIDE, target))
    runs = [make(1, seed=seed, steps=steps, longer=longer[seed]) for seed in range(2)]
    return explain(runs[0], runs[1])


@pytest.mark.parametrize("period", [5, 8, 10])
def test_a_second_rhythm_is_more_of_a_row_and_not_less_of_the_first(
    period: int, make: Make
) -> None:
    """In the base every 20th step is long, in the target these and others."""
    view = _rhythms(
        make, _every(20), lambda step: np.maximum(_every(20)(step), _every(period)(step))
    )
    assert view.ledger.verdict is Verdict.REGRESSION
    assert [cell.row for cell in view.told_cells if cell.ns < 0] == []
    cell = view.told_cells[0]
    assert cell.row == "unknown"
    planted = 180 * ((100 - 10) / period - (100 - 10) / 20) / 90
    assert cell.ns * view.ledger.samples_per_step / 1e6 == pytest.approx(planted, rel=0.35)
    back = _rhythms(
        make, lambda step: np.maximum(_every(20)(step), _every(period)(step)), _every(20)
    )
    assert back.ledger.verdict is Verdict.IMPROVEMENT


def test_what_a_slow_machine_makes_of_a_rhythm_is_not_evident(make: Make) -> None:
    view = _rhythms(make, _every(8), _every(8, 260.0), steps=200)
    assert [cell.steps.words() for cell in view.told_cells] == ["every 8th step"]
    assert not is_evident(view.told_cells[0])
    view = _rhythms(make, _every(8, 60.0), _every(8, 260.0), steps=200)
    assert is_evident(view.told_cells[0])


@pytest.mark.parametrize("share", [0.05, 0.13, 0.2])
def test_a_rhythm_is_found_among_steps_that_a_busy_machine_makes_long(
    share: float, make: Make
) -> None:
    def disturbed(step: Any) -> Any:
        late = np.random.default_rng(1).random(len(step)) < share
        return np.maximum(_every(8, 60.0)(step), late * 40.0)

    view = _rhythms(make, lambda step: 0.0 * step, disturbed, steps=300)
    assert "every 8th step" in {cell.steps.words() for cell in view.cells.all}


@pytest.mark.parametrize("seed", range(6))
def test_a_rhythm_that_a_busy_machine_hides_in_one_run_is_no_change(seed: int, make: Make) -> None:
    def disturbed(step: Any) -> Any:
        late = np.random.default_rng(seed).random(len(step)) < 0.06
        return np.maximum(_every(20)(step), late * 60.0)

    for view in (_rhythms(make, _every(20), disturbed), _rhythms(make, disturbed, _every(20))):
        assert not [cell for cell in view.told_cells if is_evident(cell)]
