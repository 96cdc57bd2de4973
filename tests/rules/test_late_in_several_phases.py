"""One rank that is late in several phases at once costs what the others wait for it, once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import pytest

from profkit.explain.explained import Explained, explain
from profkit.testing import synthetic_trace
from profkit.testing.synthetic import MEAN_PHASE_NS
from profkit.trace import Trace

MS = 1_000_000
STEPS = 120

Added: TypeAlias = Mapping[int, Mapping[str, int]]
"""Milliseconds that phases of single ranks take longer."""

Compare: TypeAlias = Callable[["Plant"], Explained]


NOTHING: Mapping[Any, Any] = {}


class Plant(NamedTuple):
    """Phases that take longer, and what the lateness costs per step by the ranks' own work.

    The ranks meet once, at the end of backward, so a step is as long as the work of the latest.
    """

    late: Added
    cost_ms: float
    phases: tuple[str, ...]
    base: Added = NOTHING
    ranks: int = 2
    others: Mapping[str, float] = NOTHING
    """Costs of other causes."""


PLANTS = {
    "data and forward": Plant({1: {"data": 12, "forward": 9}}, 21, ("data", "forward")),
    "one of four": Plant({1: {"data": 12, "forward": 9}}, 21, ("data", "forward"), ranks=4),
    "data and backward": Plant({1: {"data": 12, "backward": 12}}, 24, ("data", "backward")),
    "three phases": Plant(
        {1: {"data": 8, "forward": 8, "backward": 8}}, 24, ("data", "forward", "backward")
    ),
    "data and optimizer": Plant({1: {"data": 12, "optimizer": 6}}, 18, ("data", "optimizer")),
    "catching up": Plant({1: {"forward": 14, "backward": -5}}, 9, ("forward",)),
    "late before": Plant({1: {"data": 12, "forward": 9}}, 9, ("forward",), base={1: {"data": 12}}),
    "slow data for all": Plant(
        {0: {"data": 8}, 1: {"data": 14, "forward": 4}},
        10,
        ("data", "forward"),
        others={"input_bound": 8},
    ),
    "slow forward for all": Plant(
        {0: {"forward": 8}, 1: {"forward": 14, "data": 5}}, 11, ("forward", "data")
    ),
    "two late ranks of four": Plant(
        {1: {"forward": 10}, 2: {"backward": 6}}, 10, ("forward",), ranks=4
    ),
    "half of the ranks": Plant({2: {"forward": 10}, 3: {"forward": 10}}, 10, ("forward",), ranks=4),
    "another is late elsewhere": Plant({0: {"forward": 10}, 1: {"data": 5}}, 10, ("forward",)),
    "two as late elsewhere": Plant({0: {"optimizer": 13}, 1: {"data": 11}}, 13, ("optimizer",)),
    "late in one phase": Plant({1: {"forward": 12}}, 12, ("forward",)),
}


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Compare:
    folder = tmp_path_factory.mktemp("runs")
    known: dict[str, Trace] = {}

    def write(ranks: int, added: Added, seed: int) -> Trace:
        name = str((ranks, added, seed))
        if name not in known:
            phases = {}
            for rank, each in added.items():
                phases[rank] = {name: MEAN_PHASE_NS[name] + ms * MS for name, ms in each.items()}
            known[name] = Trace.open(
                synthetic_trace(
                    folder / str(len(known)),
                    ranks=ranks,
                    steps=STEPS,
                    seed=seed,
                    rank_phase_ns=phases,
                )
            )
        return known[name]

    def run(plant: Plant) -> Explained:
        return explain(write(plant.ranks, plant.base, 1), write(plant.ranks, plant.late, 2))

    return run


@pytest.mark.parametrize("name", PLANTS)
def test_each_cost_is_the_planted_one(name: str, compare: Compare) -> None:
    plant = PLANTS[name]
    costs = {cause.kind: cause.cost_ns for cause in compare(plant).causes if cause.cost_ns}
    assert set(costs) == {"late_rank", *plant.others}
    for kind, ms in {"late_rank": plant.cost_ms, **plant.others}.items():
        assert costs[kind].value == pytest.approx(ms * MS, rel=0.15), kind


@pytest.mark.parametrize("name", PLANTS)
def test_the_costs_add_up_to_no_more_than_the_gap(name: str, compare: Compare) -> None:
    found = compare(PLANTS[name])
    gap_ns = found.ledger.total.delta.value * found.ledger.samples_per_step
    whole_ns = math.fsum(cause.cost_ns.value for cause in found.causes if cause.cost_ns)
    assert whole_ns <= 1.1 * gap_ns  # the noise of the other ranks is in the gap


@pytest.mark.parametrize("name", PLANTS)
def test_the_phases_in_which_the_rank_is_late_are_named(name: str, compare: Compare) -> None:
    plant = PLANTS[name]
    (late,) = (cause for cause in compare(plant).causes if cause.kind == "late_rank")
    assert late.detail == plant.phases[0]
    assert {*late.rows} - {"allreduce"} == {*plant.phases}
    assert late.ranks is not None
    assert all(f"rank {rank}" in late.evidence or len(late.ranks) > 1 for rank in late.ranks)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_as_late_as_another_one_was_costs_nothing(
    ranks: int, compare: Compare
) -> None:
    base: Added = {0: {"forward": 10}}
    plant = Plant({1: {"forward": 10}}, 0, (), base=base, ranks=ranks)
    assert compare(plant).causes == ()


def test_what_a_rank_was_late_by_before_is_no_cost(compare: Compare) -> None:
    plant = Plant({1: {"forward": 16}}, 10, ("forward",), base={1: {"forward": 6}})
    (late,) = compare(plant).causes
    assert late.cost_ns is not None
    assert late.cost_ns.value == pytest.approx(10 * MS, rel=0.15)
