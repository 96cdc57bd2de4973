"""The factors of MFU multiply to it, and what each takes adds up to the step."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.kernels.windows import KernelWindows
from profkit.analysis.peaks import find_peaks
from profkit.analysis.utilisation import factorise, find_utilisation
from profkit.errors import UsageError
from profkit.instrument.windows.windows import WindowPlan
from profkit.report.utilisation_section import utilisation_section
from profkit.run.choosing import Choice
from profkit.show.text import sections
from profkit.vocab import ALL_FLOPS, OPERATIONS, UNCOUNTED, USEFUL_FLOPS
from tests.analysis.tables import rows_table

times = st.floats(1, 1e12)


@given(times, times, times, st.none() | times, st.none() | times, st.none() | st.floats(0.1, 1.5))
def test_factors_multiply_to_mfu_and_their_times_add_up(
    step: float,
    useful: float,
    every: float,
    busy: float | None,
    matrix: float | None,
    clock: float | None,
) -> None:
    factors = factorise(step, useful, every, busy, matrix, clock)
    shares = [each.share for each in factors if each.share is not None]
    lost = [each.lost_ns for each in factors if each.lost_ns is not None]
    assert math.prod(shares) == pytest.approx(useful / step)
    largest = max(step, useful, every, busy or 0, matrix or 0, every / (clock or 1))
    assert math.fsum([*lost, useful]) == pytest.approx(step, abs=1e-9 * largest)


@pytest.mark.parametrize(
    ("model", "bf16", "clock"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4, 1830),
        ("NVIDIA H200", 989.4, 1830),
        ("NVIDIA H200 NVL", 835, None),
        ("NVIDIA A100-SXM4-80GB", 312, 1410),
        ("NVIDIA L4", 121, 2040),
        ("NVIDIA GeForce RTX 4090", 165.2, 2520),
        ("Tesla T4", None, 1590),
        ("NVIDIA GeForce RTX 3090 Ti", 0, 0),
        ("NVIDIA L40", 0, 0),
        ("NVIDIA A10G", 0, 0),
        ("NVIDIA GB200", 0, 0),
    ],
)
def test_peaks_are_those_of_the_same_device(
    model: str, bf16: float | None, clock: float | None
) -> None:
    found = find_peaks([model, model])
    assert find_peaks([model, "NVIDIA A30"]) is None
    if clock == 0:
        assert found is None
        return
    assert found is not None
    assert (found.rates.get("bf16"), found.clock_mhz) == (bf16 and bf16 * 1e12, clock)


UNITS = {
    "V100-SXM2": (80, 1024),
    "V100-PCIE": (80, 1024),
    "T4": (40, 1024),
    "A100": (108, 2048),
    "A30": (56, 2048),
    "A40": (84, 1024),
    "A10": (72, 1024),
    "RTX A6000": (84, 1024),
    "GeForce RTX 3090": (82, 512),
    "L4": (58, 1024),
    "GeForce RTX 4090": (128, 512),
    "H100 80GB HBM3": (132, 4096),
    "H100 PCIe": (114, 4096),
    "H200": (132, 4096),
}
"""Multiprocessors, and the operations in fp16 of each per clock."""


@pytest.mark.parametrize("model", UNITS)
def test_peaks_follow_from_the_units_and_the_clock(model: str) -> None:
    found = find_peaks([model])
    assert found is not None
    assert found.clock_mhz
    count, operations = UNITS[model]
    expected = count * operations * found.clock_mhz * 1e6
    assert found.rates["fp16"] == pytest.approx(expected, rel=0.003)
    for precision, factor in (("bf16", 1.0), ("tf32", 0.5), ("fp8", 2.0)):
        assert found.rates.get(precision, factor * expected) == pytest.approx(
            factor * expected, rel=0.011
        )


def _sample(metric: str, value: float, rank: int = 0, source: str = OPERATIONS) -> dict[str, Any]:
    return {"rank": rank, "source": source, "metric": metric, "time_ns": 0, "value": value}


def _find(
    *more: dict[str, Any],
    device: str = "cuda:0",
    model: str = "NVIDIA H100 80GB HBM3",
    kernels: bool = True,
    uncounted: float = 0.0,
    ceilings: Ceilings | None = None,
) -> Any:
    rows = [_sample(UNCOUNTED, uncounted), _sample(UNCOUNTED, 0.0, 1)]
    for rank in (0, 1):
        rows.append(_sample(f"{USEFUL_FLOPS}bf16", 49.47e12, rank))
        rows.append(_sample(f"{ALL_FLOPS}bf16", 59.364e12, rank))
    ranks = [SimpleNamespace(manifest=SimpleNamespace(device=device))] * (1 + (device != "cpu"))
    manifest = SimpleNamespace(environment={"gpu_models": [model]})
    trace: Any = SimpleNamespace(
        samples=rows_table("samples", [*rows, *more]), ranks=ranks, manifest=manifest
    )
    categories = {"gemm": 60e6, "attention": 20e6, "elementwise": 10e6}
    captured = KernelWindows(3, 9, 90e6, {}, categories, None, (device,), 3, None, 0.0, 0.0)
    return find_utilisation(trace, 200e6, captured if kernels else None, ceilings)


def test_steps_are_counted_apart_from_captured_kernels() -> None:
    choice = Choice.read({"PROFKIT_OPERATIONS": "5:6", "PROFKIT_KERNELS": "9:11"})
    assert choice.counted == WindowPlan(5, 1)
    with pytest.raises(UsageError, match="--operations: kernels are captured in step 10"):
        Choice.parse("", "9:11", operators=False, counted="10:12")
    with pytest.raises(UsageError, match=r"--operations 'x': write FIRST:END .*:LENGTH\]$"):
        Choice.parse("", "", operators=False, counted="x")
    with pytest.raises(UsageError, match=r"--kernels 'offf': .*:LENGTH\], or off$"):
        Choice.parse("", "offf", operators=False)


def _show(found: Any) -> str:
    return " ".join(sections(utilisation_section(found)).split())


def test_a_run_with_kernels_has_all_factors() -> None:
    found = _find(_sample("sm_clock_mhz", 1464.0, source="nvml"))
    assert found.mfu == pytest.approx(0.25)
    assert [(each.name, each.share) for each in found.factors] == [
        ("busy", pytest.approx(0.45)),
        ("matrix kernels", pytest.approx(8 / 9)),
        ("clock", pytest.approx(0.8)),
        ("rate", pytest.approx(75 / 80)),
        ("useful", pytest.approx(5 / 6)),
    ]
    assert "MFU is 25.0 %. A step has 49.5 TFLOP that train, and 9.89 TFLOP more" in _show(found)


def test_what_is_not_known_is_asked_for() -> None:
    assert "record with --kernels" in _show(_find(kernels=False))
    assert "busy, matrix kernels and rate 30.0 % 140 ms" in _show(_find(kernels=False))
    unknown = _find(model="NVIDIA X1")
    assert unknown.mfu is None
    assert "MFU is not known: the peak of this device is not known: run 'profkit" in _show(unknown)
    measured = Ceilings(device="NVIDIA X1", matrix_flops_per_s={"bf16": 1e15})
    assert _find(model="NVIDIA X1", ceilings=measured).mfu == pytest.approx(0.24735)
    assert "no peak is known for bf16 on T4 (published)" in _show(_find(model="Tesla T4"))
    assert _find(device="cpu", ceilings=measured).mfu is None
    assert "MFU is at least 25.0 %" in _show(_find(uncounted=4.0))
