"""The split of the gradient exchange agrees with brute force and with planted lateness."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.frame.columns import split_ranks
from profkit.frame.exchange import (
    Exchange,
    by_chance,
    count_late_steps,
    expose,
    find_late_rank,
    is_end_shared,
    match_all,
    split_exchange,
)
from profkit.frame.intervals import covered_each, union_length
from profkit.frame.lateness import work_of
from profkit.frame.rank_sums import sum_spans
from profkit.schema import open_schema
from profkit.trace.arrays import build_batch
from tests.analysis.tables import Span, rows_table, spans_table

Interval = tuple[int, int]
intervals = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(
        lambda pair: (pair[0], pair[0] + pair[1])
    ),
    max_size=8,
)


def _windows(borders: list[int]) -> list[Interval]:
    """Sorted windows apart from each other, from any list of numbers."""
    unique = sorted(set(borders))
    return list(zip(unique[::2], unique[1::2], strict=False))


@settings(max_examples=300, deadline=None)
@given(intervals, st.lists(st.integers(0, 90), max_size=10).map(_windows))
def test_covered_time_is_what_counting_instants_says(
    parts: list[Interval], windows: list[Interval]
) -> None:
    under = {instant for start, end in parts for instant in range(start, end)}
    inside = {instant for start, end in windows for instant in range(start, end)}
    starts, ends = np.array(parts, dtype=np.int64).reshape(-1, 2).T
    opens, closes = np.array(windows, dtype=np.int64).reshape(-1, 2).T
    assert covered_each(starts, ends, opens, closes).sum() == len(under & inside)
    assert union_length(starts, ends) == len(under)


def _collectives(
    rows: list[tuple[int, int, int, int]], *, ranks: int, buckets: bool = False
) -> pa.Table:
    """Rows of (rank, sequence, start, end), all of step 0 and one communicator."""
    count = len(rows)
    rank, sequence, start, end = (list(column) for column in zip(*rows, strict=True))
    names = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["dp"]))
    columns = {
        "rank": rank,
        "sequence": sequence,
        "bytes": [100] * count,
        "group_size": [ranks] * count,
        "start_ns": start,
        "end_ns": end,
        "step": [0] * count,
    }
    if buckets:
        columns["bucket"] = sequence
    blank = build_batch(
        "collectives",
        {**columns, **{name: [0] * count for name in ("communicator", "op", "dtype", "backend")}},
    )
    table = pa.Table.from_batches([blank])
    for name in ("communicator", "op", "dtype", "backend"):
        table = table.set_column(table.schema.get_field_index(name), name, names)
    for name in ("dimension", "module"):
        unknown = pa.nulls(count, names.type)
        table = table.set_column(table.schema.get_field_index(name), name, unknown)
    return table.cast(open_schema("collectives"))


def _exposed(rows: list[tuple[int, int, int]]) -> pa.Table:
    """The exposed part of backward, as rows of (rank, start, end), all of step 0."""
    rank, start, end = (list(column) for column in zip(*rows, strict=True))
    return pa.table(
        {
            "rank": rank,
            "step": [0] * len(rows),
            "phase": ["allreduce"] * len(rows),
            "start_ns": start,
            "end_ns": end,
        }
    )


def _split(
    collectives: list[tuple[int, int, int, int]],
    exposed: list[tuple[int, int, int]],
    *,
    ranks: int = 2,
) -> Exchange:
    found = split_exchange(
        expose(_collectives(collectives, ranks=ranks), _exposed(exposed), np.array([0]))
    )
    assert found is not None
    return found


def test_the_shortest_duration_is_transfer_and_the_rest_is_waiting() -> None:
    found = _split([(0, 0, 100, 210), (1, 0, 200, 210)], [(0, 120, 210), (1, 200, 210)])
    first, second = found.ranks
    assert (
        first.exposed_ns,
        first.waiting_ns,
        first.transfer_ns,
        first.not_ready_ns,
        first.hidden_ns,
    ) == (90, 80, 10, 0, 20)
    assert (second.exposed_ns, second.waiting_ns, second.transfer_ns) == (10, 0, 10)
    assert found.late_rank == 1
    assert found.waited_for == {1: 1.0}


def _with_calls(rows: pa.Table, op: str, calls: list[int], backend: str = "gloo") -> pa.Table:
    """The rows with a bucket each, but for those of these sequence numbers, which are calls."""
    numbers = rows["sequence"].to_pylist()
    bucket = pa.array([None if number in calls else 0 for number in numbers], pa.int32())
    ops = pa.array([op if number in calls else "all_reduce" for number in numbers])
    backends = pa.array([backend] * len(numbers))
    columns = {"bucket": bucket, "op": ops.dictionary_encode()}
    columns["backend"] = backends.dictionary_encode()
    for name, column in columns.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(
            place, rows.schema.field(name), column.cast(rows.schema.types[place])
        )
    return rows


def test_a_call_of_all_ranks_is_waiting_and_no_bucket_that_is_not_ready() -> None:
    rows = [(0, 0, 0, 60), (1, 0, 50, 60), (0, 1, 100, 110), (1, 1, 100, 110)]
    exposed = _exposed([(0, 0, 60), (1, 50, 60), (0, 105, 110), (1, 105, 110)])
    collectives = _with_calls(_collectives(rows, ranks=2), "broadcast", [0])
    found = split_exchange(expose(collectives, exposed, np.array([0])))
    assert found is not None
    first, second = found.ranks
    assert (first.waiting_ns, first.transfer_ns, first.not_ready_ns) == (50, 15, 0)
    assert (second.waiting_ns, second.transfer_ns, second.not_ready_ns) == (0, 15, 0)
    assert found.waited_for == {0: 0.0, 1: 1.0}


def test_calls_whose_wait_nobody_timed_are_not_called_hidden() -> None:
    rows = [(0, 0, 0, 60), (1, 0, 50, 60), (0, 1, 100, 110), (1, 1, 100, 110)]
    exposed = _exposed([(0, 105, 110), (1, 105, 110)])
    collectives = _with_calls(_collectives(rows, ranks=2), "broadcast", [0], backend="nccl")
    found = split_exchange(expose(collectives, exposed, np.array([0])))
    assert found is not None
    assert [part.hidden_ns for part in found.ranks] == [5, 5]
    assert found.collectives == 1


def test_a_broadcast_names_nobody_among_three_ranks() -> None:
    """The root is quick although rank 1 is late: only rank 2 receives through rank 1."""
    rows = [(0, 0, 0, 2), (1, 0, 50, 60), (2, 0, 0, 60)]
    rows += [(rank, 1, 100, 110 - rank) for rank in range(3)]
    exposed = _exposed([(rank, 0, 110) for rank in range(3)])
    collectives = _with_calls(_collectives(rows, ranks=3), "broadcast", [0])
    found = split_exchange(expose(collectives, exposed, np.array([0])))
    assert found is not None
    assert found.ranks[2].waiting_ns == 58
    assert found.late_rank == 2  # by the bucket alone


def test_a_message_names_no_late_rank() -> None:
    """A receive that is posted early waits for nobody, though it is open for long."""
    rows = [(0, 0, 90, 100), (1, 0, 0, 100)]
    rows += [(rank, 1, 100, 110) for rank in range(2)]
    exposed = _exposed([(rank, 0, 110) for rank in range(2)])
    collectives = _with_calls(_collectives(rows, ranks=2), "send", [0])
    found = split_exchange(expose(collectives, exposed, np.array([0])))
    assert found is not None
    assert found.late_rank is None


def test_a_call_of_one_rank_does_not_hide_what_the_buckets_say() -> None:
    rows = [(0, 0, 0, 60), (0, 1, 100, 120), (1, 1, 110, 120)]
    collectives = _with_calls(_collectives(rows, ranks=2), "all_reduce", [0])
    found = split_exchange(
        expose(collectives, _exposed([(0, 100, 120), (1, 110, 120)]), np.array([0]))
    )
    assert found is not None
    assert (found.collectives, found.matched) == (1, 1)
    assert found.waited_for == {1: 1.0}


BACKWARDS = [
    *((0, number, 10 * (number + 1), 64) for number in range(4)),
    *((1, number, 20 + 10 * (number + 1), 64) for number in range(4)),
]
"""Four buckets of two ranks, the second of which is late by 20; all of them end with the last."""


def test_buckets_that_end_together_wait_until_the_last_rank_is_ready_for_the_last_one() -> None:
    collectives = _collectives(BACKWARDS, ranks=2, buckets=True)
    exposed = _exposed([(0, 40, 64), (1, 60, 64)])
    found = split_exchange(expose(collectives, exposed, np.array([0])))
    assert found is not None
    times = [(rank.waiting_ns, rank.transfer_ns, rank.hidden_ns) for rank in found.ranks]
    assert times == [(20, 4, None), (0, 4, None)]
    assert (found.ends_shared, found.late_rank) == (True, 1)
    assert is_end_shared(collectives).tolist() == [True, True, True, False] * 2


def test_one_bucket_or_a_jobs_own_collectives_have_ends_of_their_own() -> None:
    one = _collectives([BACKWARDS[3], BACKWARDS[7]], ranks=2, buckets=True)
    assert not is_end_shared(one).any()
    assert not is_end_shared(_collectives(BACKWARDS, ranks=2)).any()
    exposed = _exposed([(0, 40, 64), (1, 60, 64)])
    found = split_exchange(expose(one, exposed, np.array([0])))
    assert found is not None
    assert [rank.hidden_ns for rank in found.ranks] == [0, 0]


def test_waits_that_are_negligible_next_to_a_step_name_nobody() -> None:
    """Both runs wait for rank 1 alone; in the second one for a thousandth of a step."""
    spans = spans_table(
        [
            Span(0, 0, "allreduce", 0, "main", 100, 210),
            Span(1, 0, "forward", 0, "main", 0, 200),
            Span(1, 0, "allreduce", 0, "main", 200, 210),
        ]
    )
    collectives = _collectives([(0, 0, 100, 210), (1, 0, 200, 210)], ranks=2)
    found, ranks = split_exchange(expose(collectives, spans, np.array([0]))), split_ranks(spans)
    assert found is not None
    for length, is_named in ((1_000, True), (100_000, False)):
        times = []
        for rank, own in ranks.items():
            times.append((rank, sum_spans(own, np.array([0])).exposed, np.array([length])))
        late = find_late_rank(found, work_of(times), length)
        assert (late is not None) == is_named


def test_exposed_time_without_a_collective_under_way_is_a_bucket_not_ready() -> None:
    found = _split(
        [(0, 0, 0, 10), (1, 0, 0, 10), (0, 1, 40, 50), (1, 1, 40, 50)], [(0, 5, 50), (1, 5, 50)]
    )
    assert [(rank.transfer_ns, rank.not_ready_ns) for rank in found.ranks] == [(15, 30), (15, 30)]


def test_the_parts_add_up_to_the_exposed_time() -> None:
    rng = np.random.default_rng(1)
    rows, exposed = [], []
    for rank in range(4):
        for sequence in range(6):
            ready = 100 * sequence + int(rng.integers(0, 80))
            rows.append((rank, sequence, ready, 100 * sequence + 95 + int(rng.integers(0, 30))))
        exposed.append((rank, 250, 650))
    for part in _split(rows, exposed, ranks=4).ranks:
        assert part.waiting_ns is not None
        assert part.transfer_ns is not None
        assert part.waiting_ns + part.transfer_ns + part.not_ready_ns == pytest.approx(
            part.exposed_ns
        )


def test_clocks_that_are_apart_change_nothing() -> None:
    together = _split([(0, 0, 100, 210), (1, 0, 200, 210)], [(0, 120, 210), (1, 200, 210)])
    apart = _split(
        [(0, 0, 100, 210), (1, 0, 10**9 + 200, 10**9 + 210)],
        [(0, 120, 210), (1, 10**9 + 200, 10**9 + 210)],
    )
    assert apart == together


def test_a_rank_that_is_missing_leaves_waiting_unknown() -> None:
    found = _split([(0, 0, 100, 210), (1, 0, 200, 210)], [(0, 120, 210), (1, 200, 210)], ranks=3)
    assert (found.matched, found.collectives) == (0, 1)
    assert found.late_rank is None
    assert all(rank.waiting_ns is None and rank.transfer_ns is None for rank in found.ranks)
    assert found.ranks[0].exposed_ns == 90


def test_no_collectives_are_no_exchange() -> None:
    empty = open_schema("collectives").empty_table()
    assert (
        split_exchange(expose(empty, open_schema("spans").empty_table(), np.array([0, 1]))) is None
    )


# -- messages --------------------------------------------------------------------------------------


def _messages(steps: int, ahead_ns: int, *, both_ways: bool = True) -> pa.Table:
    """Messages of 2 us between stages that begin them 50 us before, and end them 30 us after.

    Only the receiver's end is that of the message. The clock of rank 1 is ahead.
    """
    rows = []
    for step in range(steps):
        at = 1_000 * step
        for sender, receiver, name, sent in (
            (0, 1, "pp:0>1", at + 100),
            (1, 0, "pp:1>0", at + 500),
        ):
            if sender and not both_ways:
                continue
            common = {"communicator": name, "sequence": step, "step": step, "bytes": 64}
            common |= {"dtype": "float32", "group_size": 2, "backend": "gloo", "ready_ns": None}
            shift = [0, ahead_ns]
            start, end = sent + shift[sender], sent + 32 + shift[sender]
            rows.append({**common, "op": "send", "rank": sender, "start_ns": start, "end_ns": end})
            start, end = sent - 50 + shift[receiver], sent + 2 + shift[receiver]
            rows.append(
                {**common, "op": "recv", "rank": receiver, "start_ns": start, "end_ns": end}
            )
    return rows_table("collectives", rows)


@pytest.mark.parametrize("ahead_ns", [0, 3_600_000_000_000, -50_000_000])
def test_a_message_that_both_ranks_began_early_took_less_than_either_call(ahead_ns: int) -> None:
    found = match_all(_messages(20, ahead_ns))
    assert found.is_message.all()
    assert set(found.transfer.tolist()) == {2}


def test_messages_in_one_way_are_bounded_by_their_calls() -> None:
    found = match_all(_messages(20, 0, both_ways=False))
    assert set(found.transfer.tolist()) == {32}


def test_clocks_that_drift_apart_show_no_transfer() -> None:
    rows = _messages(20, 0).to_pylist()
    for row in rows:
        if row["rank"]:  # 10 ns per step, which is more than a message takes
            row["start_ns"] += 10 * row["step"]
            row["end_ns"] += 10 * row["step"]
    found = match_all(rows_table("collectives", rows))
    assert set(found.transfer.tolist()) == {32}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 3), st.integers(0, 9)), max_size=30))
def test_the_steps_of_a_late_rank_are_those_with_most_waiting_for_it(
    rows: list[tuple[int, int, int]],
) -> None:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    sums: dict[int, dict[int, int]] = {}
    for step, late, waiting in rows:
        if late >= 0 and waiting:
            of_step = sums.setdefault(step, {})
            of_step[late] = of_step.get(late, 0) + waiting
    found = count_late_steps(*columns)
    assert sum(found.values()) == len(sums)
    certain = [max(each, key=lambda rank: each[rank]) for each in sums.values() if is_clear(each)]
    for rank, count in Counter(certain).items():
        assert found[rank] >= count


def is_clear(sums: dict[int, int]) -> bool:
    """Return true if one rank alone is waited for most."""
    return sorted(sums.values())[-2:] != [max(sums.values())] * 2


@pytest.mark.parametrize(
    ("late", "steps", "chance"),
    [(14, 23, True), (23, 23, False), (72, 118, True), (118, 118, False), (4, 4, False)],
)
def test_of_two_ranks_that_are_alike_one_is_late_more_often(
    late: int, steps: int, chance: bool
) -> None:
    assert by_chance({0: steps - late, 1: late}, 1, 2) == chance
