"""Device time closes: its parts fill the window, and only captured windows count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.analysis.kernels.device_time import device_times, waits_for_ranks
from profkit.frame.intervals import subtract_union
from profkit.vocab import HOST_SYNC, KERNELS
from tests.analysis.tables import rows_table

Interval = tuple[int, int]
CATEGORIES = ("gemm", "communication", "copy to host", "memset")


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    common = {"rank": 0, "device": "cuda:0", "stream": 7, "name": "k", "step": 0}
    return rows_table("kernels", [{**common, **row} for row in rows])


def _row(start: int, end: int, **more: Any) -> dict[str, Any]:
    return {"start_ns": start, "end_ns": end, "category": "gemm", **more}


works = st.tuples(
    st.integers(0, 80),
    st.integers(0, 20),
    st.sampled_from(CATEGORIES),
    st.sampled_from([None, 0, 5, 60_000]),
    st.sampled_from([None, 0, 1, 5]),
)


@given(st.lists(works, min_size=1, max_size=20), st.booleans())
@settings(max_examples=200, deadline=None)
def test_the_parts_fill_the_window(rows: list[Any], in_windows: bool) -> None:
    table = _table(
        [
            _row(start, start + length, category=category, launch_ns=launch, step=step)
            for start, length, category, launch, step in rows
        ]
    )
    for time in device_times(table, in_windows=in_windows):
        parts = time.compute_ns, time.exposed_ns, time.moves_alone_ns, time.idle_ns
        assert sum(parts) == time.window_ns
        idle = time.late_ns, time.synchronised_ns, time.idle_waiting_ns, time.queued_ns
        assert sum(idle) == time.idle_ns
        assert min(*parts, *idle, time.overlap_ns) >= 0


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8)


@given(intervals, intervals)
@settings(max_examples=300, deadline=None)
def test_what_is_left_of_intervals_is_what_counting_instants_says(
    mine: list[Interval], others: list[Interval]
) -> None:
    def instants(parts: list[Interval]) -> set[int]:
        return {at for start, length in parts for at in range(start, start + length)}

    def arrays(parts: list[Interval]) -> tuple[Any, Any]:
        starts, lengths = np.array(parts, dtype=np.int64).reshape(-1, 2).T
        return starts, starts + lengths

    starts, ends = subtract_union(*arrays(mine), *arrays(others))
    found = list(zip(starts.tolist(), ends.tolist(), strict=True))
    left = {at for start, end in found for at in range(start, end)}
    assert left == instants(mine) - instants(others)
    assert sum(end - start for start, end in found) == len(left)


def test_the_time_between_captured_windows_does_not_count() -> None:
    rows = []
    for step, begin in ((20, 0), (21, 1_000), (120, 9_000_000), (121, 9_001_000)):
        rows.append(_row(begin, begin + 600, step=step, launch_ns=begin))
    rows.append(_row(500_000, 600_000, step=None))
    (time,) = device_times(_table(rows), in_windows=True)
    assert (time.window_ns, time.busy_ns, time.late_ns) == (3_200, 2_400, 800)


def test_used_steps_count_from_begin_to_end() -> None:
    """A warm-up before them does not count, and neither does what outlasts the last of them."""
    rows = [_row(0, 1_000), _row(60_000, 90_000, launch_ns=50_000)]
    rows.append(_row(100_000, 130_000, launch_ns=5_000))
    used = {0: (np.array([40_000]), np.array([120_000]))}
    (time,) = device_times(_table(rows), used=used)
    assert (time.window_ns, time.busy_ns) == (80_000, 50_000)
    assert (time.late_ns, time.queued_ns) == (20_000, 10_000)
    (first,) = device_times(_table(rows[1:]), used=used)
    assert (first.window_ns, first.late_ns) == (80_000, 20_000)


def test_the_host_was_late_or_had_waited_or_the_work_was_queued() -> None:
    rows = [
        _row(0, 100_000, launch_ns=0),
        _row(150_000, 200_000, launch_ns=145_000),
        _row(300_000, 400_000, launch_ns=260_000),
        _row(430_000, 500_000, launch_ns=100_000),
        _row(600_000, 700_000),
    ]
    wait = {"rank": 0, "source": KERNELS, "metric": HOST_SYNC}
    samples = rows_table("samples", [wait | {"time_ns": 210_000, "value": 40_000.0}])
    (time,) = device_times(_table(rows), samples)
    assert (time.late_ns, time.synchronised_ns, time.queued_ns) == (50_000, 100_000, 130_000)


def test_waiting_for_a_rank_is_the_exposed_part_before_it_came() -> None:
    kernels, collectives = [], []
    for rank, begin in ((0, 0), (1, 700)):
        row = _row(begin, 1_000, category="communication", rank=rank, stream=9)
        kernels += [row, _row(200, 300, rank=rank)]
        common = {"communicator": "dp", "sequence": 0, "op": "all_reduce", "bytes": 8}
        common |= {"dtype": "f", "group_size": 2, "backend": "nccl", "step": 0}
        collectives.append(common | {"rank": rank, "start_ns": begin, "end_ns": 1_000})
    waits = waits_for_ranks(rows_table("collectives", collectives))
    early, late = device_times(_table(kernels), waits=waits)
    assert (early.exposed_ns, early.waiting_ns, early.overlap_ns) == (900, 600, 100)
    assert (late.exposed_ns, late.waiting_ns) == (300, 0)
    assert early.idle_waiting_ns == 0
    host = [_row(0, 100, launch_ns=0), _row(1_000, 1_100, launch_ns=990)]
    (idle,) = device_times(_table(host), waits=waits)
    assert (idle.idle_ns, idle.idle_waiting_ns, idle.late_ns) == (900, 600, 300)
    assert waits_for_ranks(rows_table("collectives", collectives[:1])) is None
