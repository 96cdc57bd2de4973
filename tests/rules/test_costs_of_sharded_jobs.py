"""Costs of sharded jobs are what a step becomes longer by, also if part of a cause is hidden.

The ranks are played from scripts, so the difference of the steps is the truth.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from profkit.frame.run_frame import frame_of
from profkit.trace import Trace
from tests.rules.conftest import Make
from tests.rules.test_sharded_rules import MS, causes, cost_ms, fsdp, parts, pipeline
from tests.sharded_runs import Action, Begin, Phase, Work, both

FEW_CORES = 2
"""Two ranks share them with the threads that send."""


def longer_ms(base: Trace, target: Trace) -> float:
    """Return by how much the target's mean step is longer."""
    base_ns, target_ns = (
        frame_of(run).costs.wall_ns.mean() / len(run.ranks) for run in (base, target)
    )
    return float(target_ns - base_ns) / MS


class InTurns:
    """A job whose ranks are late in turns: one before its forward, the other within it.

    So their whole work is equally long in each step, and still each waits for the other once. In
    a later job, one is late within its forward, and the other within its backward.
    """

    def __init__(self, *, is_later: bool = False) -> None:
        self._steps = Counter[int]()
        self._is_later = is_later

    def __call__(
        self,
        rank: int,
        turn_ms: float = 0.0,
        late: tuple[int, float] = (1, 0.0),
        longer: tuple[int, float] = (1, 0.0),
        transfer_ms: float = 1.0,
    ) -> Iterator[Action]:
        """Yield a step in which a rank is late, or computes longer."""
        self._steps[rank] += 1
        is_first = (self._steps[rank] + rank) % 2 == 0
        first_ms, second_ms = turn_ms * is_first, turn_ms * (not is_first)
        turns_ms = (0.0, first_ms, second_ms) if self._is_later else (first_ms, second_ms, 0.0)
        yield Work(1.0 + turns_ms[0] + (late[1] if rank == late[0] else 0.0))
        yield Phase("forward")
        yield from both(Begin("a", "all_gather", (0, 1), transfer_ms, "fsdp", "a"))
        yield Work(4.0 + turns_ms[1])
        yield from both(Begin("b", "all_gather", (0, 1), transfer_ms, "fsdp", "b"))
        more_ms = longer[1] if rank == longer[0] else 0.0
        yield Work(4.0 + more_ms)
        yield Phase("backward")
        yield Work(8.0 + more_ms + turns_ms[2])
        yield from both(Begin("c", "reduce_scatter", (0, 1), transfer_ms, "fsdp", "b"))
        yield Phase()


@pytest.mark.parametrize("turn_ms", [0.0, 6.0, 12.0])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_late_rank_costs_no_time_in_which_it_waited_before(
    make: Make, rank: int, turn_ms: float
) -> None:
    base = make(InTurns(), turn_ms=turn_ms)
    target = make(InTurns(), turn_ms=turn_ms, late=(rank, 20.0))
    cause = causes(base, target)["late_rank"]
    assert cost_ms(cause) == pytest.approx(longer_ms(base, target), rel=0.35)
    assert causes(target, base)["late_rank"].is_gain


@pytest.mark.parametrize("late", [{1: 20.0}, {0: 20.0}])
@pytest.mark.parametrize("gather_ms", [2.0, 6.0])
def test_lateness_that_nothing_hides_is_its_whole_cost(
    make: Make, late: dict[int, float], gather_ms: float
) -> None:
    base = make(fsdp, gather_ms=gather_ms, cores=FEW_CORES)
    target = make(fsdp, gather_ms=gather_ms, late=late, cores=FEW_CORES)
    cause = causes(base, target)["late_rank"]
    assert cost_ms(cause) == pytest.approx(20.0, rel=0.03)


def test_lateness_among_several_groups_costs_what_a_step_grows_by(make: Make) -> None:
    groups = ((0, 1), (2, 3))
    base = make(fsdp, ranks=4, members=groups, late={2: 5.0, 0: 2.0})
    target = make(fsdp, ranks=4, members=groups, late={2: 5.0, 0: 2.0, 3: 15.0})
    cause = causes(base, target)["late_rank"]
    assert cause.ranks == (3,)


def test_a_quicker_exchange_hides_no_lateness_if_there_are_cores_for_it(make: Make) -> None:
    base, target = make(fsdp, gather_ms=4.0), make(fsdp, gather_ms=2.0, late={1: 30.0})
    cause = causes(base, target)["late_rank"]
    assert cost_ms(cause) == pytest.approx(30.0, rel=0.03)


@pytest.mark.parametrize("turn_ms", [0.0, 8.0])
def test_longer_sequences_cost_no_time_in_which_their_rank_waited_before(
    make: Make, turn_ms: float
) -> None:
    def lengths(*found: int) -> dict[int, dict[str, Any]]:
        return {rank: {"batch_shapes": f"8x{each}, 8"} for rank, each in enumerate(found)}

    base = make(InTurns(is_later=True), turn_ms=turn_ms, config=lengths(100, 100))
    target = make(
        InTurns(is_later=True), turn_ms=turn_ms, longer=(1, 15.0), config=lengths(100, 150)
    )
    cause = causes(base, target)["uneven_lengths"]
    assert cost_ms(cause) == pytest.approx(longer_ms(base, target), rel=0.35)


@pytest.mark.parametrize("send_ms", [0.3, 3.0])
@pytest.mark.parametrize("longer", [0, 1])
def test_a_longer_stage_costs_what_a_step_grows_by(make: Make, longer: int, send_ms: float) -> None:
    names = ["a", "b"]
    even = make(pipeline, config=parts(*names), send_ms=send_ms)
    names[longer] += "2"
    sizes = {longer: 12.0, 1 - longer: 4.0}
    uneven = make(pipeline, config=parts(*names), ms=sizes, send_ms=send_ms)
    found, kind = causes(even, uneven), ("uneven_stages", "long_last_stage")[longer]
    if longer_ms(even, uneven) < 1.0:  # the messages take as long as before
        assert kind not in found
    else:
        assert cost_ms(found[kind]) == pytest.approx(longer_ms(even, uneven), rel=0.06)


def called(rank: int, *, call_ms: float, only: str = "", **options: Any) -> Iterator[Action]:
    """A step of FSDP in which each collective takes so long to call, or those of one phase do."""
    phase = ""
    for action in fsdp(rank, **options):
        if isinstance(action, Phase):
            phase = action.name
        if isinstance(action, Begin) and phase and only in {"", phase}:
            yield Work(call_ms)
        yield action


def test_small_collectives_cost_what_calling_them_takes(make: Make) -> None:
    few, many = make(called, call_ms=0.02), make(called, call_ms=0.02, parts=40)
    cause = causes(few, many)["tiny_collectives"]
    assert cost_ms(cause) == pytest.approx(longer_ms(few, many), rel=0.05)
    assert "forward and backward, which call them" in cause.evidence
    gain = causes(many, few)["tiny_collectives"]
    assert gain.is_gain
    assert cost_ms(gain) == pytest.approx(cost_ms(cause), rel=0.01)


def test_small_collectives_that_take_no_time_to_call_cost_what_is_exposed(make: Make) -> None:
    few, many = make(fsdp), make(fsdp, parts=40)
    cause = causes(few, many)["tiny_collectives"]
    assert cost_ms(cause) == pytest.approx(longer_ms(few, many), rel=0.05)
    assert "which call them" not in cause.evidence


def test_calls_cost_no_more_than_the_quickest_module_takes_for_each(make: Make) -> None:
    """What all modules compute longer, the base's calls cannot make, however many come to them."""
    few = make(called, call_ms=0.02)
    heavy = {(name, rank): 45.0 for name in ("blocks.0", "blocks.1") for rank in (0, 1)}
    slow = make(called, call_ms=0.02, parts=40, heavy=heavy)
    cause = causes(few, slow)["tiny_collectives"]
    assert cost_ms(cause) < longer_ms(few, slow) - 100.0
    assert cause.cost_ns is not None
    assert cause.cost_ns.low is not None
    assert cause.cost_ns.low < cause.cost_ns.value - cause.open_ns


def test_weights_that_are_gathered_again_cost_what_their_copies_take(make: Make) -> None:
    kept, again = make(called, call_ms=2.0, again=False), make(called, call_ms=2.0)
    cause = causes(kept, again)["regathered_weights"]
    assert cost_ms(cause) == pytest.approx(longer_ms(kept, again), rel=0.05)
    assert "backward, which call them" in cause.evidence


def test_weights_that_are_gathered_again_slow_other_collectives(make: Make) -> None:
    kept, again = make(fsdp, again=False), make(reduced_slowly)
    found = causes(kept, again)
    assert set(found) == {"regathered_weights"}
    assert cost_ms(found["regathered_weights"]) == pytest.approx(longer_ms(kept, again), rel=0.05)


def reduced_slowly(rank: int) -> Iterator[Action]:
    """A step of FSDP whose reductions take three times as long next to the gathers."""
    for action in fsdp(rank):
        if isinstance(action, Begin) and action.op == "reduce_scatter":
            yield dataclasses.replace(action, ms=3 * action.ms)
        else:
            yield action


@pytest.mark.parametrize("cores", [FEW_CORES, 8])
def test_a_missing_prefetch_costs_less_if_the_gathers_took_the_cores_of_computing(
    make: Make, cores: int
) -> None:
    """With enough cores, computing is shorter for another reason."""
    ahead = make(fsdp, prefetch=True, pace=1.05, cores=cores)
    late = make(fsdp, cores=cores)
    cause = causes(ahead, late)["no_prefetch"]
    if cores == FEW_CORES:
        assert cost_ms(cause) == pytest.approx(longer_ms(ahead, late), rel=0.05)
        assert "computing, which shares its cores, went from" in cause.evidence
    else:
        assert cost_ms(cause) == pytest.approx(3 * 2.05 + 3 * 1.05, rel=0.1)
    assert cause.cost_ns is not None
    assert cause.cost_ns.high is not None
    assert cause.cost_ns.high >= 9.0 * MS
