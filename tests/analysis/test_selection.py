"""Each step is used or excluded for one reason, and brute force agrees on it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.frame.selection import (
    EPOCH_START,
    NOT_ON_ALL_RANKS,
    PARTIAL_BATCH,
    SWITCHED_OFF,
    WARM_UP,
    select_steps,
)
from tests.analysis.tables import Step, steps_table

USUAL = 4


def _steps(count: int, *, ranks: int = 1) -> list[Step]:
    return [
        Step(rank, step, step * 10, step * 10 + 10, USUAL)
        for rank in range(ranks)
        for step in range(count)
    ]


def _replaced(rows: list[Step], step: int, **changes: Any) -> list[Step]:
    return [row._replace(**changes) if row.step == step else row for row in rows]


def _fate_by_brute_force(rows: list[Step], warm_up: int) -> dict[int, str]:
    """Return each step's reason to be excluded, or nothing, in the words of the contract."""
    numbers = sorted({row.step for row in rows})
    ranks = sorted({row.rank for row in rows})
    by_step = {number: [row for row in rows if row.step == number] for number in numbers}
    whole = [number for number in numbers if sorted(row.rank for row in by_step[number]) == ranks]
    totals = {number: sum(row.sample_count for row in by_step[number]) for number in numbers}
    often = Counter(totals[number] for number in whole)
    usual = max(often, key=lambda total: (often[total], total), default=0)
    if sum(often[total] for total in often if total > usual) > len(whole) / 20:
        usual = 0
    if sum(often[total] for total in often if total < usual) > len(whole) / 2:
        usual = 0
    epoch = {
        number: max(-1 if row.epoch is None else row.epoch for row in by_step[number])
        for number in numbers
    }
    fate = {}
    for place, number in enumerate(numbers):
        applies = {
            WARM_UP: number < numbers[0] + warm_up,
            NOT_ON_ALL_RANKS: number not in whole,
            SWITCHED_OFF: not all(row.instrumented for row in by_step[number]),
            EPOCH_START: place > 0 and epoch[number] != epoch[numbers[place - 1]],
            PARTIAL_BATCH: totals[number] < usual,
        }
        fate[number] = next((reason for reason, does in applies.items() if does), "")
    return fate


rows_of_steps = st.lists(
    st.builds(
        Step,
        rank=st.integers(0, 3),
        step=st.integers(0, 25),
        start_ns=st.just(0),
        end_ns=st.just(1),
        sample_count=st.sampled_from([USUAL, USUAL, USUAL, 2]),
        epoch=st.sampled_from([None, 0, 1, 2]),
        instrumented=st.sampled_from([True, True, True, False]),
    ),
    max_size=60,
)
regular_steps = st.builds(
    lambda count, ranks: _steps(count, ranks=ranks), st.integers(0, 30), st.integers(1, 4)
)


@given(
    rows=st.one_of(
        rows_of_steps,
        regular_steps,
        st.builds(lambda some, more: some + more, regular_steps, rows_of_steps),
    ),
    warm_up=st.integers(0, 12),
)
def test_a_brute_force_selects_the_same_steps_for_the_same_reasons(
    rows: list[Step], warm_up: int
) -> None:
    fate = _fate_by_brute_force(rows, warm_up)
    found = select_steps(steps_table(rows), warm_up=warm_up)
    assert found.steps.tolist() == [number for number, reason in fate.items() if not reason]
    assert dict(found.left_out) == Counter(reason for reason in fate.values() if reason)
    assert len(found.steps) + sum(found.left_out.values()) == len(fate)


def test_all_steady_steps_are_used() -> None:
    found = select_steps(steps_table(_steps(20, ranks=3)), warm_up=0)
    assert found.steps.tolist() == list(range(20))
    assert found.left_out == {}


def test_warm_up_counts_from_the_first_step_of_a_resumed_run() -> None:
    rows = [row._replace(step=row.step + 1_000) for row in _steps(20)]
    found = select_steps(steps_table(rows), warm_up=5)
    assert found.steps.tolist() == list(range(1_005, 1_020))
    assert found.left_out == {WARM_UP: 5}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"epoch": 1}, EPOCH_START),
        ({"sample_count": 1}, PARTIAL_BATCH),
        ({"instrumented": False}, SWITCHED_OFF),
    ],
)
def test_one_odd_step_is_left_out_for_its_reason(changes: dict[str, object], reason: str) -> None:
    rows = _replaced(_steps(20, ranks=2), 19, **changes)
    found = select_steps(steps_table(rows), warm_up=0)
    assert found.steps.tolist() == list(range(19))
    assert found.left_out == {reason: 1}


def test_a_step_that_one_rank_lacks_is_left_out() -> None:
    rows = [row for row in _steps(20, ranks=2) if (row.rank, row.step) != (1, 7)]
    found = select_steps(steps_table(rows), warm_up=0)
    assert 7 not in found.steps
    assert found.left_out == {NOT_ON_ALL_RANKS: 1}


def test_two_rows_of_one_rank_do_not_stand_for_two_ranks() -> None:
    rows = [
        row if (row.rank, row.step) != (1, 7) else row._replace(rank=0)
        for row in _steps(20, ranks=2)
    ]
    assert select_steps(steps_table(rows), warm_up=0).left_out == {NOT_ON_ALL_RANKS: 1}


def test_a_step_with_several_reasons_is_counted_once() -> None:
    rows = _replaced(_steps(20), 0, sample_count=1, instrumented=False)
    assert select_steps(steps_table(rows), warm_up=1).left_out == {WARM_UP: 1}


def test_with_as_many_partial_batches_as_full_ones_the_full_ones_are_usual() -> None:
    rows = _replaced(_steps(2), 1, sample_count=1)
    assert select_steps(steps_table(rows), warm_up=0).left_out == {PARTIAL_BATCH: 1}


@pytest.mark.parametrize("ranks", [1, 2])
def test_where_batches_vary_no_batch_is_partial(ranks: int) -> None:
    """As in batches that are filled up to a number of tokens."""
    sizes = np.random.default_rng(1).integers(20, 45, (400, ranks))
    rows = [
        row._replace(sample_count=int(sizes[row.step, row.rank]))
        for row in _steps(400, ranks=ranks)
    ]
    found = select_steps(steps_table(rows), warm_up=0)
    assert found.left_out == {}


@pytest.mark.parametrize("limit", [12, 48])
def test_batches_below_a_limit_are_whole_if_few_reach_it(limit: int) -> None:
    """Such a batch holds at most `limit` samples, and at most 1,000 tokens."""
    lengths = np.random.default_rng(2).integers(10, 100, 400)
    sizes = np.minimum(limit, 1_000 // lengths)
    rows = [row._replace(sample_count=int(sizes[row.step])) for row in _steps(400)]
    found = select_steps(steps_table(rows), warm_up=0)
    assert found.left_out == ({} if limit == 48 else {PARTIAL_BATCH: int((sizes < limit).sum())})


def test_steps_after_a_rank_died_do_not_decide_what_a_full_batch_is() -> None:
    rows = [row for row in _steps(30, ranks=2) if row.rank == 0 or row.step < 10]
    rows = [row._replace(sample_count=2) if row.step == 5 else row for row in rows]
    assert select_steps(steps_table(rows), warm_up=0).left_out == {
        NOT_ON_ALL_RANKS: 20,
        PARTIAL_BATCH: 1,
    }


def test_no_steps_at_all_are_no_error() -> None:
    found = select_steps(steps_table([]), warm_up=3)
    assert (found.steps.tolist(), sum(found.left_out.values())) == ([], 0)
