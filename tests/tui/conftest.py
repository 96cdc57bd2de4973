"""Synthetic runs, and a cache folder for each test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from profkit.testing import synthetic_trace

CONFIG: Mapping[str, Any] = {"precision": "fp32", "device": "cuda"}
KERNELS = 30


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs with kernels: on one rank, on two, and on two with a slow backward pass.

    The last one has stacks, too.
    """
    runs = tmp_path_factory.mktemp("tui") / "runs"
    synthetic_trace(
        runs / "one", steps=80, kernels_per_step=KERNELS, device="cuda", config=CONFIG, others=None
    )
    synthetic_trace(
        runs / "two",
        ranks=2,
        steps=80,
        kernels_per_step=KERNELS,
        device="cuda",
        config=CONFIG,
        others=None,
    )
    synthetic_trace(
        runs / "slow",
        ranks=2,
        steps=80,
        kernels_per_step=KERNELS,
        device="cuda",
        config=CONFIG,
        others=None,
        phase_ns={"backward": 36_000_000},
        stacks=True,
    )
    return runs


@pytest.fixture(scope="session")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One job on one rank, on two, on two again, and on four with a third rank that is late."""
    runs = tmp_path_factory.mktemp("series") / "runs"
    synthetic_trace(
        runs / "one", steps=60, kernels_per_step=KERNELS, device="cuda", config=CONFIG, others=None
    )
    for seed, name in enumerate(("two", "again")):
        synthetic_trace(
            runs / name,
            ranks=2,
            steps=60,
            seed=seed,
            kernels_per_step=KERNELS,
            device="cuda",
            config=CONFIG,
            others=None,
        )
    synthetic_trace(
        runs / "four",
        ranks=4,
        steps=60,
        kernels_per_step=KERNELS,
        device="cuda",
        config=CONFIG,
        others=None,
        rank_phase_ns={2: {"data": 11_000_000}},
    )
    return runs


@pytest.fixture(autouse=True)
def quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the exports, copies and cached figures of a test to its own folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PROFKIT_CACHE", str(tmp_path / "cache"))
    for name in ("NO_COLOR", "SSH_CONNECTION", "TEXTUAL_THEME"):
        monkeypatch.delenv(name, raising=False)
