"""Pitfalls of reading traces (an outside checklist) that a comparison of two runs can fall into."""

from __future__ import annotations

import math

import numpy as np
import pytest

from profkit.explain.explained import explain
from profkit.explain.ledger import Verdict
from profkit.testing.synthetic_timeline import OUTSIDE
from tests.explain.conftest import Make, plant


def test_rank_0_does_not_stand_for_all(make: Make) -> None:
    """The last of four ranks is late, and its neighbours only wait."""
    view = explain(
        make(4), make(4, seed=2, longer=plant("forward", lambda step: 12.0 + 0 * step, (3,)))
    )
    assert view.told_cells[0].ranks == (3,)


def test_the_length_of_a_collective_is_no_transfer(make: Make) -> None:
    """What the others wait in it is the late rank's, and the exchange has no cause of its own."""
    late = plant("backward", lambda step: 20.0 + 0 * step, (0,))
    view = explain(make(2), make(2, seed=2, longer=late))
    row = view.ledger.find("allreduce")
    assert row is not None
    assert row.delta.value > 0
    assert "exposed_communication" not in [cause.kind for cause in view.causes]


def test_exposed_is_not_blocking(make: Make) -> None:
    """Rank 1 takes 8 ms longer while rank 0, which takes 20 ms longer, delays the step anyway."""

    def longer(name: str, ns: np.ndarray) -> np.ndarray:
        ns = plant("forward", lambda step: 20.0 + 0 * step, (0,))(name, ns)
        return plant("data", lambda step: 8.0 + 0 * step, (1,))(name, ns)

    view = explain(make(2), make(2, seed=2, longer=longer))
    (cause,) = [each for each in view.causes if each.cost_ns]
    assert (cause.kind, cause.detail, cause.ranks) == ("late_rank", "forward", (0,))
    assert cause.cost_ns is not None
    assert cause.cost_ns.value == pytest.approx(20e6, rel=0.1)


def test_who_occupies_the_gap_did_not_make_it(make: Make) -> None:
    """All ranks wait in the exchange after rank 1 wrote a file in the step before."""
    late = plant(OUTSIDE, lambda step: 60.0 * (step % 6 == 5), (1,))
    view = explain(make(3), make(3, seed=2, longer=late))
    cell = view.told_cells[0]
    assert (cell.row, cell.ranks, cell.steps.period) == ("unknown", (1,), 6)


def test_savings_add_up_only_once(make: Make) -> None:
    """Causes are of disjoint cells, so together they cost no more than the gap."""

    def longer(name: str, ns: np.ndarray) -> np.ndarray:
        ns = plant("data", lambda step: 10.0 + 0 * step)(name, ns)
        return plant(OUTSIDE, lambda step: 15.0 + 0 * step, (1,))(name, ns)

    view = explain(make(2), make(2, seed=2, longer=longer))
    costs = [cause.cost_ns.value for cause in view.causes if cause.cost_ns and not cause.is_gain]
    gap_ns = view.ledger.total.delta.value * view.ledger.samples_per_step
    assert len(costs) == 2
    assert math.fsum(costs) == pytest.approx(gap_ns, rel=0.1)


def test_what_is_seen_is_called_inferred_without_a_place(make: Make) -> None:
    """A longer phase without a setting, a count or a line has no cause, only its own words."""
    view = explain(make(1), make(1, seed=2, longer=plant("forward", lambda step: 20.0 + 0 * step)))
    assert view.causes == ()
    assert view.open_cells[0].where == ""


def test_ranks_with_other_work_are_compared_by_sample(make: Make) -> None:
    """Twice as many ranks: the cells are time per sample, and add up to that gap."""
    view = explain(make(2), make(4, seed=2))
    assert view.ledger.verdict is Verdict.NEUTRAL
    assert sum(cell.exact for cell in view.cells.all) == view.ledger.total.exact


def test_a_step_is_that_of_its_slowest_rank(make: Make) -> None:
    """The ranks are late in turns: no rank is named, and the row has their waits."""

    def longer(name: str, ns: np.ndarray) -> np.ndarray:
        ns = plant("forward", lambda step: 20.0 * (step % 2), (0,))(name, ns)
        return plant("forward", lambda step: 20.0 * ((step + 1) % 2), (1,))(name, ns)

    view = explain(make(2), make(2, seed=2, longer=longer))
    forward = sum(cell.ns for cell in view.cells.all if cell.row == "forward")
    assert forward * view.cells.step == pytest.approx(20e6, rel=0.15)
