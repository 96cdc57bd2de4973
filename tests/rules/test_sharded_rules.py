"""Rules about sharded jobs: each names its cause, and nothing if only a sign of it is there."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from profkit.explain.explained import Explained, explain
from profkit.explain.rules.base import Cause
from profkit.frame.run_frame import frame_of
from profkit.trace import Trace
from tests.rules.conftest import Make
from tests.sharded_runs import Action, Begin, Phase, Wait, Work, both

MS = 1_000_000
MODULES = ("(root)", "blocks.0", "blocks.1", "blocks.2")
MB = 1 << 20


def fsdp(
    rank: int,
    *,
    again: bool = True,
    prefetch: bool = False,
    gather_ms: float = 2.0,
    sizes: dict[str, int] | None = None,
    parts: int = 1,
    reduced_in: int = 1,
    late: dict[int, float] | None = None,
    members: Sequence[Sequence[int]] = ((0, 1),),
    slow: dict[tuple[int, ...], float] | None = None,
    heavy: dict[tuple[str, int], float] | None = None,
    pace: float = 1.0,
    modules: Sequence[str] = MODULES,
) -> Iterator[Action]:
    """A step of FSDP: each module is gathered, computed, and in backward its gradients reduced."""
    (own,) = [tuple(group) for group in members if rank in group]
    factor = (slow or {}).get(own, 1.0)

    def gathers(module: str, around: str) -> list[Begin]:
        size = (sizes or {}).get(module, 8 * MB)
        length = factor * gather_ms * size / (8 * MB) / parts
        keys = [f"{own}{around}{module}{part}" for part in range(parts)]
        each = functools.partial(
            Begin, op="all_gather", ranks=own, ms=length + 0.05, dimension="fsdp", module=module
        )
        return [each(key, bytes=size // parts) for key in keys]

    yield Work(1.0 + (late or {}).get(rank, 0.0))
    for around, work, names in (("forward", 4.0, modules), ("backward", 8.0, modules[::-1])):
        yield Phase(around)
        waiting = gathers(names[0], around) if around == "forward" or again else []
        yield from waiting
        for place, name in enumerate(names):
            following: list[Begin] = []
            if place + 1 < len(names) and (around == "forward" or again):
                following = gathers(names[place + 1], around)
            yield from (Wait(begin.key) for begin in waiting)
            if prefetch:
                yield from following
            yield Work(pace * work + (heavy or {}).get((name, rank), 0.0))
            if not prefetch:
                yield from following
            waiting = following
            if around == "backward":
                size, length = 8 * MB // reduced_in, factor / reduced_in
                if reduced_in > 1:
                    length += 0.05
                for part in range(reduced_in):
                    key = f"{own}r{name}{part}"
                    yield from both(Begin(key, "reduce_scatter", own, length, "fsdp", name, size))
        yield Phase()
    yield Work(1.0)


def pipeline(
    rank: int,
    *,
    microbatches: int = 4,
    ms: dict[int, float] | None = None,
    ranks: int = 2,
    send_ms: float = 0.3,
    schedule_ms: float = 0.0,
    evaluation_ms: float = 0.0,
) -> Iterator[Action]:
    """A step of a pipeline: all forwards, then all backwards, each with its message."""
    mine = {0: 8.0, 1: 8.0, **(ms or {})}[rank] / microbatches

    def message(op: str, ends: tuple[int, int], kind: str, number: int) -> Begin:
        size = MB // microbatches
        return Begin(
            f"{kind}{ends}{number}", op, ends, send_ms, "pp", bytes=size, microbatch=number
        )

    yield Work(1.0)
    for kind, before, after, share in (
        ("forward", rank - 1, rank + 1, 1.0),
        ("backward", rank + 1, rank - 1, 2.0),
    ):
        sent: list[Begin] = []
        for number in range(microbatches):
            if 0 <= before < ranks:
                yield from both(message("recv", (before, rank), kind, number))
            yield Work(0.01)
            if schedule_ms:
                yield from other("pipeline schedule", schedule_ms)
            yield Phase(kind)
            yield Work(share * mine)
            yield Phase()
            if 0 <= after < ranks:
                sent.append(message("send", (rank, after), kind, number))
                yield sent[-1]
        yield from (Wait(each.key) for each in sent)
    if evaluation_ms:
        yield from other("evaluation", evaluation_ms)
    yield Work(1.0)


def other(region: str, ms: float) -> list[Action]:
    return [Phase("other", region), Work(ms), Phase()]


def causes(base: Trace, target: Trace) -> dict[str, Cause]:
    return {cause.kind: cause for cause in explain(base, target).causes}


def cost_ms(cause: Cause) -> float:
    assert cause.cost_ns is not None
    return cause.cost_ns.value / MS


def parts(*fingerprints: str) -> dict[int, dict[str, Any]]:
    """The configuration of the ranks of a pipeline, each with a stage."""
    found: dict[int, dict[str, Any]] = {}
    for rank, fingerprint in enumerate(fingerprints):
        facts = {"schedule": "ScheduleGPipe", "microbatches": 4, "own_stages": [rank]}
        found[rank] = {"parameters_fingerprint": fingerprint, "pipeline": facts}
    return found


def test_equal_sharded_jobs_have_no_cause(make: Make) -> None:
    assert causes(make(fsdp), make(fsdp)) == {}
    even = parts("a", "b")
    assert causes(make(pipeline, config=even), make(pipeline, config=even)) == {}


def test_gathers_again_in_backward_are_named_in_both_directions(make: Make) -> None:
    kept, again = make(fsdp, again=False), make(fsdp)
    found = causes(kept, again)
    assert set(found) == {"regathered_weights"}
    assert cost_ms(found["regathered_weights"]) == pytest.approx(
        2.05 + 3 * 1.05, rel=0.1
    )  # 1 ms under each reduce
    assert "went from 0 to 4.0 per step" in found["regathered_weights"].evidence
    gain = causes(again, kept)["regathered_weights"]
    assert gain.is_gain
    assert "went from 4.0 to 0 per step" in gain.evidence


def test_longer_gathers_in_backward_alone_are_not_gathered_again(make: Make) -> None:
    assert "regathered_weights" not in causes(make(fsdp), make(fsdp, gather_ms=6.0))


def accumulated(rank: int, *, rounds: int = 1) -> Iterator[Action]:
    """A step of FSDP in so many microbatches, each of which gathers all weights twice."""
    for number in range(rounds):
        for action in fsdp(rank, pace=1 / rounds):
            if isinstance(action, Begin | Wait):
                yield dataclasses.replace(action, key=f"{number} {action.key}")
            else:
                yield action


def test_more_gathers_in_forward_as_well_are_not_gathered_again(make: Make) -> None:
    once, often = make(accumulated), make(accumulated, rounds=4)
    assert "regathered_weights" not in causes(once, often)
    assert "regathered_weights" not in causes(often, once)


def test_gathers_without_prefetch_are_named_in_both_directions(make: Make) -> None:
    ahead, late = make(fsdp, prefetch=True), make(fsdp)
    found = causes(ahead, late)
    assert set(found) == {"no_prefetch"}
    assert cost_ms(found["no_prefetch"]) == pytest.approx(3 * 2.05 + 3 * 1.05, rel=0.1)
    assert causes(late, ahead)["no_prefetch"].is_gain


def test_slower_gathers_are_no_missing_prefetch(make: Make) -> None:
    found = causes(make(fsdp, prefetch=True), make(fsdp, gather_ms=12.0))
    assert "no_prefetch" not in found
    assert "exposed_communication" in found


@pytest.mark.parametrize("samples", [2, 8])
def test_gathers_with_less_computing_to_hide_under_are_no_missing_prefetch(
    make: Make, samples: int
) -> None:
    usual = make(fsdp, prefetch=True, gather_ms=3.0)
    fast = make(fsdp, prefetch=True, gather_ms=3.0, pace=0.15, samples=samples)
    assert "no_prefetch" not in causes(usual, fast)
    late = make(fsdp, gather_ms=3.0, pace=0.9)
    assert "no_prefetch" in causes(usual, late)


def test_many_tiny_collectives_are_named(make: Make) -> None:
    few, many = make(fsdp), make(fsdp, parts=40)
    found = causes(few, many)
    assert "tiny_collectives" in found
    assert "exposed_communication" not in found
    assert "all_gather went from 8.0 calls" in found["tiny_collectives"].evidence
    assert causes(many, few)["tiny_collectives"].is_gain


def test_small_collectives_of_several_operations_cost_what_all_of_them_do(make: Make) -> None:
    few, many = make(fsdp), make(fsdp, parts=40, reduced_in=40)
    found = causes(few, many)
    assert "tiny_collectives" in found
    assert "reduce_scatter went from 4.0 calls" in found["tiny_collectives"].evidence
    (exchange,) = (row for row in explain(few, many).ledger.rows if row.name == "allreduce")
    grown_ms = exchange.delta.value * explain(few, many).ledger.samples_per_step / MS
    assert cost_ms(found["tiny_collectives"]) == pytest.approx(grown_ms, rel=0.15)


def test_more_bytes_in_as_many_calls_are_not_tiny(make: Make) -> None:
    sizes = dict.fromkeys(MODULES, 32 * MB)
    assert "tiny_collectives" not in causes(make(fsdp), make(fsdp, sizes=sizes))


def test_one_slow_link_is_named_with_its_ranks(make: Make) -> None:
    groups = ((0, 1), (2, 3), (4, 5))
    usual = make(fsdp, ranks=6, members=groups)
    slow = make(fsdp, ranks=6, members=groups, slow={(2, 3): 4.0})
    cause = causes(usual, slow)["slow_link"]
    assert "ranks 2 and 3 of fsdp" in cause.evidence
    assert causes(slow, usual)["slow_link"].is_gain
    all_slow = make(fsdp, ranks=6, members=groups, slow=dict.fromkeys(groups, 4.0))
    assert "slow_link" not in causes(usual, all_slow)


def test_a_link_that_was_about_as_slow_in_the_base_is_not_named(make: Make) -> None:
    groups = ((0, 1), (2, 3), (4, 5))
    usual = make(fsdp, ranks=6, members=groups, slow={(2, 3): 1.9})
    slow = make(fsdp, ranks=6, members=groups, slow={(2, 3): 2.2}, late={3: 12.0})
    assert "slow_link" not in causes(usual, slow)
    slower = make(fsdp, ranks=6, members=groups, slow={(2, 3): 1.9, (4, 5): 5.0})
    assert "ranks 4 and 5" in causes(usual, slower)["slow_link"].evidence


def test_waiting_for_a_late_rank_is_no_cost_of_a_slow_link(make: Make) -> None:
    groups = ((0, 1), (2, 3), (4, 5))
    usual, slow = make(fsdp, ranks=6, members=groups), {(2, 3): 4.0}
    alone = causes(usual, make(fsdp, ranks=6, members=groups, slow=slow))["slow_link"]
    late = make(fsdp, ranks=6, members=groups, slow=slow, late={2: 12.0})
    with_late = causes(usual, late)["slow_link"]
    assert cost_ms(with_late) == pytest.approx(cost_ms(alone), rel=0.05)


def test_a_late_rank_is_late_only_in_its_own_group(make: Make) -> None:
    groups = ((0, 1), (2, 3))
    usual = make(fsdp, ranks=4, members=groups)
    late = make(fsdp, ranks=4, members=groups, late={3: 12.0})
    found = causes(usual, late)
    assert "slow_link" not in found
    assert "rank 3" in found["late_rank"].evidence


@pytest.mark.parametrize(("longer", "kind"), [(0, "uneven_stages"), (1, "long_last_stage")])
def test_a_longer_stage_is_named(make: Make, longer: int, kind: str) -> None:
    even = make(pipeline, config=parts("a", "b"))
    longer_part = parts("a2", "b") if longer == 0 else parts("a", "b2")
    uneven = make(pipeline, ms={longer: 12.0, 1 - longer: 4.0}, config=longer_part)
    found = causes(even, uneven)
    assert kind in found
    assert f"rank {longer}" in found[kind].evidence
    # Forward and backward take three times `ms`; of the first microbatch, nobody waits for it.
    assert cost_ms(found[kind]) == pytest.approx(3 * (12 - 8) * 3 / 4, rel=0.15)
    assert causes(uneven, even)[kind].is_gain


def test_the_schedule_of_a_pipeline_is_no_evaluation(make: Make) -> None:
    usual = make(pipeline, config=parts("a", "b"), schedule_ms=0.1)
    config = parts("a", "b")
    for facts in config.values():
        facts["pipeline"]["microbatches"] = 16
    divided = make(pipeline, config=config, schedule_ms=0.1, microbatches=16, send_ms=0.08)
    cause = causes(usual, divided)["pipeline_schedule"]
    assert "fewer microbatches" in cause.remedy
    assert cost_ms(cause) == pytest.approx(2 * (16 - 4) * 0.1, rel=0.1)
    assert "evaluation_in_training" not in causes(usual, divided)


def test_a_longer_schedule_has_a_cause_but_no_number_of_microbatches(make: Make) -> None:
    usual = make(pipeline, config=parts("a", "b"), schedule_ms=0.1)
    longer = make(pipeline, config=parts("a", "b"), schedule_ms=1.0)
    cause = causes(usual, longer)["pipeline_schedule"]
    assert "microbatches" not in cause.evidence
    assert "--lines on" in cause.remedy
    assert causes(longer, usual)["pipeline_schedule"].is_gain
    unseen = make(pipeline, config=parts("a", "b"))
    assert "pipeline_schedule" not in causes(unseen, longer)


def test_an_evaluation_in_a_pipeline_is_one(make: Make) -> None:
    usual = make(pipeline, config=parts("a", "b"), schedule_ms=0.1)
    evaluates = make(pipeline, config=parts("a", "b"), schedule_ms=0.2, evaluation_ms=4.0)
    cause = causes(usual, evaluates)["evaluation_in_training"]
    assert cost_ms(cause) == pytest.approx(4.0, rel=0.25)
    assert "pipeline schedule" not in cause.evidence


def test_a_slower_rank_with_the_same_stage_is_late(make: Make) -> None:
    same = parts("a", "b")
    found = causes(make(pipeline, config=same), make(pipeline, ms={0: 16.0}, config=same))
    assert not {"uneven_stages", "long_last_stage"} & set(found)
    assert found["late_rank"].ranks == (0,)
    usual, late = make(fsdp), make(fsdp, late={1: 12.0})
    assert causes(usual, late)["late_rank"].ranks == (1,)


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("send_ms", [0.3, 3.0])
def test_a_late_stage_costs_no_time_in_which_it_waited_before(
    make: Make, late: int, send_ms: float
) -> None:
    """The transfers of its messages hide behind its work."""
    config = parts("a", "b")
    base = make(pipeline, config=config, send_ms=send_ms)
    target = make(pipeline, ms={late: 16.0}, config=config, send_ms=send_ms)
    step_ms = [frame_of(run).costs.wall_ns.mean() / 2 / MS for run in (base, target)]
    cause = causes(base, target)["late_rank"]
    assert cost_ms(cause) == pytest.approx(step_ms[1] - step_ms[0], rel=0.3)


def test_a_late_stage_that_was_short_costs_what_it_takes_beyond_the_others(make: Make) -> None:
    base = make(pipeline, config=parts("a", "b"), ms={0: 7.0})
    target = make(pipeline, config=parts("a", "b"), ms={0: 16.0})
    cause = causes(base, target)["late_rank"]
    assert cost_ms(cause) == pytest.approx(3 * (16 - 8), rel=0.15)


@pytest.mark.parametrize("known", ["batch_elements", "batch_shapes"])
def test_longer_sequences_on_one_rank_are_named(make: Make, known: str) -> None:
    def shapes(*lengths: int) -> dict[int, dict[str, Any]]:
        if known == "batch_shapes":
            return {rank: {known: f"8x{each}, 8"} for rank, each in enumerate(lengths)}
        error = {"batch_elements_error": 1.0}
        return {rank: {known: 8 * each, **error} for rank, each in enumerate(lengths)}

    even = make(longer, config=shapes(100, 100))
    uneven = make(longer, more=20.0, config=shapes(100, 150))
    found = causes(even, uneven)
    assert set(found) == {"uneven_lengths"}
    assert cost_ms(found["uneven_lengths"]) == pytest.approx(20.0, rel=0.1)
    gain = causes(uneven, even)["uneven_lengths"]
    assert gain.is_gain
    assert "rank 1" in gain.evidence
    slow = make(longer, more=20.0, config=shapes(100, 100))
    assert "uneven_lengths" not in causes(even, slow)
    assert "uneven_lengths" not in causes(slow, even)


def longer(rank: int, more: float = 0.0) -> Iterator[Action]:
    """A step of FSDP in which rank 1 computes for longer."""
    for action in fsdp(rank):
        yield action
        if isinstance(action, Phase) and action.name == "forward" and rank == 1:
            yield Work(more)


def headed(rank: int, head: float) -> Iterator[Action]:
    """A step of FSDP whose root computes after its last block, and backward before it."""
    phase = ""
    for action in fsdp(rank):
        before, phase = phase, action.name if isinstance(action, Phase) else phase
        if (before, phase) == ("forward", ""):
            yield Work(head)
        yield action
        if (before, phase) == ("", "backward"):
            yield Work(head)


HEAVY = {("blocks.1", 0): 6.0, ("blocks.1", 1): 6.0}
"""A module that takes so many more ms in forward, and in backward, on both ranks."""


@pytest.mark.parametrize("prefetch", [False, True])
def test_one_slow_module_is_named_in_both_directions(make: Make, prefetch: bool) -> None:
    usual, slow = make(fsdp, prefetch=prefetch), make(fsdp, prefetch=prefetch, heavy=HEAVY)
    found = causes(usual, slow)
    assert set(found) == {"slow_module"}
    assert cost_ms(found["slow_module"]) == pytest.approx(12.0, rel=0.15)
    assert "blocks.1 computes 24" in found["slow_module"].evidence
    assert "on all ranks" in found["slow_module"].evidence
    assert "the other 3 modules" in found["slow_module"].evidence
    assert causes(slow, usual)["slow_module"].is_gain


def test_the_last_module_stands_for_what_is_computed_after_it_as_well(make: Make) -> None:
    usual, words = make(fsdp), "blocks.2 and what is computed after it take 28"
    slow_head = causes(usual, make(headed, head=8.0))["slow_module"]
    heavy = {("blocks.2", 0): 8.0, ("blocks.2", 1): 8.0}
    slow_block = causes(usual, make(fsdp, heavy=heavy))["slow_module"]
    for cause in (slow_head, slow_block):
        assert words in cause.evidence
        assert "after it" in cause.remedy
        assert cost_ms(cause) == pytest.approx(16.0, rel=0.15)


def test_the_last_block_of_a_stack_is_not_told_from_what_follows_it(make: Make) -> None:
    names = ("(root)", "encoder.0", "encoder.1", "decoder.0", "decoder.1")
    usual = make(fsdp, modules=names)
    for name, is_open in zip(names, (False, False, True, False, True), strict=True):
        slow = make(fsdp, modules=names, heavy={(name, 0): 8.0, (name, 1): 8.0})
        assert ("after it" in causes(usual, slow)["slow_module"].evidence) == is_open


def test_a_module_that_is_slow_on_one_rank_is_named_with_it(make: Make) -> None:
    found = causes(make(fsdp), make(fsdp, heavy={("blocks.0", 1): 6.0}))
    assert set(found) == {"slow_module"}
    assert cost_ms(found["slow_module"]) == pytest.approx(12.0, rel=0.15)
    assert "on 1 rank (1)" in found["slow_module"].evidence


@pytest.mark.parametrize("ranks", [(0, 1), (1,)])
def test_modules_that_all_become_slower_are_no_slow_module(
    make: Make, ranks: tuple[int, ...]
) -> None:
    heavy = {(name, rank): 4.0 for name in MODULES for rank in ranks}
    assert "slow_module" not in causes(make(fsdp), make(fsdp, heavy=heavy))


def test_rows_of_the_exchange_add_up(make: Make) -> None:
    found: Explained = explain(make(fsdp), make(fsdp, again=False, late={1: 5.0}))
    assert found.exchange is not None
    rows, whole = found.exchange.rows(), found.ledger.find("allreduce")
    assert whole is not None
    assert sum(row.exact for row in rows) == whole.exact
    for row in rows:
        assert sum(part.exact for part in row.inside) in (row.exact, 0)
