"""Bins of readings lose no extreme, counters become rates, and missing readings stay null."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.analysis.views import series
from profkit.analysis.views.devices import DevicesView, build_devices_view
from profkit.analysis.views.series import Cell, bin_readings, rates, spread_bins
from profkit.testing.synthetic import BEGIN_NS, synthetic_trace
from profkit.trace import Trace
from tests.analysis.tables import rows_table

SECOND = 1_000_000_000


@given(
    st.lists(
        st.tuples(st.integers(0, 1_000), st.floats(-1e6, 1e6) | st.just(float("nan"))), max_size=40
    ),
    st.integers(1, 12),
)
@settings(max_examples=150)
def test_bins_lose_no_extreme(readings: list[tuple[int, float]], most: int) -> None:
    told = [
        (time, value) for time, value in readings if 100 <= time <= 900 and not math.isnan(value)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "MOST_BINS", most)
        found = bin_readings(
            np.array([row[0] for row in readings], dtype=np.int64),
            np.array([row[1] for row in readings], dtype=np.float64),
            100,
            900,
        )
    if found is None:
        assert not told
        return
    values = [value for _, value in told]
    assert (found.readings, found.least, found.most) == (len(told), min(values), max(values))
    assert found.average == pytest.approx(sum(values) / len(values), abs=1e-6)
    assert (
        len(found.low) == len(found.mean) == len(found.high) == min(most, (2 * len(told) + 2) // 3)
    )
    assert (
        min(low for low in found.low if low is not None),
        max(high for high in found.high if high is not None),
    ) == (found.least, found.most)
    for low, mean, high in zip(found.low, found.mean, found.high, strict=True):
        assert (low is None) == (mean is None) == (high is None)
        assert low is None or mean is None or high is None or low - 1e-6 <= mean <= high + 1e-6


def test_a_bin_without_a_reading_is_a_gap() -> None:
    found = bin_readings(np.array([0, 1, 2, 98, 99]), np.array([5.0, 6.0, 7.0, 1.0, 2.0]), 0, 99)
    assert found is not None
    assert found.mean == (6.0, None, None, 1.5)


def test_bins_are_spread_over_few_columns_and_over_many() -> None:
    found = bin_readings(np.array([0, 1, 2, 98, 99]), np.array([5.0, 6.0, 7.0, 1.0, 2.0]), 0, 99)
    assert found is not None
    assert spread_bins(found, 1) == (Cell(1.0, 3.75, 7.0),)
    assert spread_bins(found, 2) == (Cell(5.0, 6.0, 7.0), Cell(1.0, 1.5, 2.0))
    assert spread_bins(found, 8) == (
        *[Cell(5.0, 6.0, 7.0)] * 2,
        *[None] * 4,
        *[Cell(1.0, 1.5, 2.0)] * 2,
    )


def test_a_counter_becomes_a_rate_and_one_that_begins_anew_is_left_out() -> None:
    time, rate = rates(
        np.array([3, 1, 2, 4, 5, 5]) * SECOND, np.array([30.0, 10.0, 15.0, 2.0, 4.0, 9.0])
    )
    assert (time // SECOND).tolist() == [2, 3, 5]
    assert rate.tolist() == [5.0, 15.0, 2.0]


def _view(folder: Path, *rows: tuple[int, str, str | None, str, float, float]) -> DevicesView:
    """Return the view of a synthetic run with these samples, timed in seconds."""
    trace = Trace.open(synthetic_trace(folder, ranks=2, steps=100, jitter=0.0))
    names = ("rank", "source", "device", "metric", "time_ns", "value")
    told = [
        {**dict(zip(names, row, strict=True)), "time_ns": BEGIN_NS + int(row[4] * SECOND)}
        for row in rows
    ]
    vars(trace)["samples"] = rows_table("samples", told)
    return build_devices_view(trace)


def test_devices_stand_before_hosts_and_what_nobody_knows_behind_them(tmp_path: Path) -> None:
    view = _view(
        tmp_path / "run",
        (0, "mine", None, "odd_count", 1, 4),
        (0, "host", None, "run_queue_count", 1, 3),
        (1, "nvml", "cuda:1", "busy_percent", 1, 50),
        (0, "nvml", "cuda:0", "busy_percent", 1, 90),
        (0, "nvml", "cuda:0", "busy_percent", 2, 80),
    )
    assert [(curve.rank, curve.source, curve.device, curve.metric) for curve in view.curves] == [
        (0, "nvml", "cuda:0", "busy_percent"),
        (1, "nvml", "cuda:1", "busy_percent"),
        (0, "host", None, "run_queue_count"),
        (0, "mine", None, "odd_count"),
    ]
    assert (
        view.curves[0].series.least,
        view.curves[0].series.average,
        view.curves[0].series.most,
    ) == (80, 85, 90)
    assert view.sources == ("nvml", "host", "mine")


def test_counters_of_the_host_are_shown_as_rates(tmp_path: Path) -> None:
    rows = [(0, "host", None, "cpu_busy_seconds", at, 100 + 1.5 * at) for at in (-1.0, 0.5, 1.5)]
    (curve,) = _view(tmp_path / "run", *rows).curves
    assert curve.metric == "cpu_busy_cores"
    assert (curve.series.least, curve.series.most) == pytest.approx((1.5, 1.5))
    assert curve.series.readings == 2


def test_readings_before_the_first_step_and_after_the_last_are_not_of_the_run(
    tmp_path: Path,
) -> None:
    view = _view(
        tmp_path / "run",
        *((0, "nvml", "cuda:0", "power_watts", at, 100 + at) for at in (-1.0, 1.0, 2.0, 1e6)),
    )
    assert (view.curves[0].series.least, view.curves[0].series.most) == (101, 102)
    assert view.length_ns > 3 * SECOND


def test_what_profkit_says_of_itself_is_no_reading_of_a_device(tmp_path: Path) -> None:
    told = [
        ("profkit", "writer_cpu_ns"),
        ("kernels", "window_step_index"),
        ("loader", "queue_depth_batches"),
        ("host", "collectors_cpu_ns"),
    ]
    told += [
        ("nvml", "lost_count"),
        ("clock", "realtime_drift_ns"),
    ]
    view = _view(tmp_path / "run", *((1, source, None, metric, 1, 1) for source, metric in told))
    assert view.curves == ()
    assert [rank for rank, _ in view.lost] == [1]


def test_a_run_without_collectors_has_no_curves(tmp_path: Path) -> None:
    view = build_devices_view(Trace.open(synthetic_trace(tmp_path / "run", others=None)))
    assert (view.curves, view.lost) == ((), ())
