"""Device time in the windows adds up, whatever overlaps, and their cost is reported."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.analysis.kernels.modules import ModuleTime, compare_modules, module_times
from profkit.analysis.kernels.windows import NO_PHASE, exclusive_times, kernel_windows
from profkit.frame.own_cost import without
from profkit.frame.selection import KERNEL_WINDOW, select_steps, window_steps
from profkit.vocab import KERNELS, WINDOW_BORDER, WINDOW_READING, WINDOW_STEP
from tests.analysis.tables import Step, rows_table, steps_table


def _kernel(start: int, end: int, **known: Any) -> dict[str, Any]:
    return {
        "rank": 0,
        "device": "cuda:0",
        "stream": 7,
        "start_ns": start,
        "end_ns": end,
        "name": "k",
        "category": "gemm",
        "step": 3,
        **known,
    }


def _sample(metric: str, value: float, rank: int = 0) -> dict[str, Any]:
    return {"rank": rank, "source": KERNELS, "metric": metric, "time_ns": 0, "value": value}


intervals = st.tuples(
    st.integers(0, 60),
    st.integers(0, 20),
    st.sampled_from(["forward", "backward", None]),
    st.sampled_from(["cuda:0", "cuda:1"]),
    st.integers(0, 1),
)


@given(st.lists(intervals, max_size=25))
@settings(max_examples=300, deadline=None)
def test_the_phases_times_add_up_to_the_time_in_which_the_devices_were_busy(
    rows: list[tuple[int, int, str | None, str, int]],
) -> None:
    table = rows_table(
        "kernels",
        [
            _kernel(start, start + length, phase=phase, device=device, rank=rank)
            for start, length, phase, device, rank in rows
        ],
    )
    busy = {
        (rank, device, tick)
        for start, length, _, device, rank in rows
        for tick in range(start, start + length)
    }
    own = exclusive_times(table)
    phases = np.array(table["phase"].to_pylist(), dtype=object)
    assert own.sum() == len(busy)
    for phase in ("forward", "backward", None):
        longest = {
            (rank, device, tick)
            for start, length, own, device, rank in rows
            if own == phase
            for tick in range(start, start + length)
        }
        assert own[phases == phase].sum() <= len(longest)


def test_where_two_run_at_once_the_time_counts_for_the_one_that_began_first() -> None:
    table = rows_table(
        "kernels",
        [
            _kernel(0, 10, phase="forward"),
            _kernel(4, 16, phase="backward", stream=8),
            _kernel(5, 6, phase="optimizer", stream=9),
        ],
    )
    assert exclusive_times(table).tolist() == [10, 6, 0]


def _steps(slow: int = 300) -> pa.Table:
    lengths = [100, 100, 100, slow, 100, 100]
    ends = np.cumsum(lengths)
    return steps_table(
        [
            Step(0, number, int(end - length), int(end))
            for number, (end, length) in enumerate(zip(ends, lengths, strict=True))
        ]
    )


def test_windows_are_told_with_what_they_cost() -> None:
    kernels = rows_table(
        "kernels",
        [
            _kernel(310, 330, phase="forward", tensor_core=True),
            _kernel(340, 350, phase="backward", category="elementwise", tensor_core=False),
            _kernel(360, 370, category="convolution", tensor_core=False),
            _kernel(700, 900, step=None),
        ],
    )
    samples = rows_table(
        "samples",
        [
            _sample(WINDOW_STEP, 3),
            _sample(WINDOW_BORDER, 40),
            _sample(WINDOW_BORDER, 2),
            _sample(WINDOW_READING, 9),
        ],
    )
    found = kernel_windows(kernels, _steps(), samples, np.array([0, 1, 2, 4, 5]))
    assert found is not None
    assert (found.steps, found.kernels, found.busy_ns) == (1, 3, 40)
    assert found.by_phase == {"forward": 20, "backward": 10, NO_PHASE: 10}
    assert found.by_category == {"gemm": 20, "elementwise": 10, "convolution": 10}
    assert found.tensor_core_share == pytest.approx(2 / 3)
    assert (found.steps_left_out, found.slowdown, found.border_ns, found.reading_ns) == (
        1,
        3.0,
        42,
        9,
    )


def test_without_windows_there_is_nothing_to_tell() -> None:
    assert (
        kernel_windows(
            rows_table("kernels", [_kernel(0, 1)]),
            _steps(),
            rows_table("samples", []),
            np.array([0]),
        )
        is None
    )


def test_a_window_on_one_rank_takes_the_step_out_of_the_figures_of_all() -> None:
    samples = rows_table(
        "samples",
        [
            _sample(WINDOW_STEP, 3, rank=1),
            _sample(WINDOW_STEP, 3),
            _sample(WINDOW_STEP, float("nan")),
        ],
    )
    windows = window_steps(samples)
    assert windows.tolist() == [3]
    selection = select_steps(_steps(), warm_up=1, windows=windows)
    assert selection.left_out == {"warm-up": 1, KERNEL_WINDOW: 1}
    assert selection.steps.tolist() == [1, 2, 4, 5]
    assert without(_steps(), windows)["step"].to_pylist() == [0, 1, 2, 4, 5]


def test_the_times_of_modules_are_those_of_their_kernels() -> None:
    kernels = rows_table(
        "kernels",
        [
            _kernel(0, 30, module="Net.a", line="net.py:1", phase="forward"),
            _kernel(30, 90, module="Net.a", line="net.py:1", phase="backward"),
            _kernel(90, 100, module="Net.b", line=None, phase="forward"),
            _kernel(100, 120, phase="optimizer"),
        ],
    )
    found = module_times(kernels, exclusive_times(kernels), 0.5)
    assert [dataclasses.astuple(each) for each in found] == [
        ("Net.a", "net.py:1", 45.0, 30.0, 0.75),
        ("Net.b", None, 5.0, 0.0, 10 / 120),
    ]
    assert module_times(kernels.slice(3), exclusive_times(kernels.slice(3)), 1.0) == ()


def test_modules_of_two_runs_are_compared_by_their_place() -> None:
    base = [ModuleTime("Net.a", "net.py:1", 10.0, 0.0, 0.5), ModuleTime("Net.b", None, 5.0, 0, 0)]
    target = [ModuleTime("Net.a", "net.py:9", 40.0, 0.0, 0.5)]
    assert [dataclasses.astuple(each) for each in compare_modules(base, target)] == [
        ("Net.a", "net.py:9", 10.0, 40.0),
        ("Net.b", None, 5.0, 0.0),
    ]
    assert compare_modules(base, []) == ()
