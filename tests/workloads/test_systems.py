"""Each reference system in each framework, as a user starts it, on a small scale.

Models and data are real. By default each system runs once, so that each framework trains one
alone and one on two ranks. With PROFKIT_ALL_SYSTEMS=1 (`make systems`) each runs in each
framework and each mode, and ResNet50 learns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from profkit.plugins import WORKLOADS
from profkit.trace import Trace, verify
from profkit.trace.reader import find_runs
from profkit.vocab import PHASES, Integrity
from profkit.workloads.base import Workload
from profkit.workloads.resnet50 import WORKLOAD as RESNET50
from tests.cli.conftest import Command, profkit

__all__ = ["profkit"]

SIZES = {"resnet50": 32, "mask_rcnn": 96, "psenet": 64, "hrnet_w18": 64, "tsm": 32}
PAIRS = [(name, framework) for name in SIZES for framework in WORKLOADS.load(name).frameworks]
MODES = {
    "two ranks": ("--ranks", "2"),
    "alone": (),
    "mixed": ("--amp",),
    "two ranks, mixed": ("--ranks", "2", "--amp"),
}
STEPS = 3
ALL = [
    (*pair, mode) for pair in PAIRS for mode in MODES if "mixed" not in mode or pair[1] == "torch"
]  # Paddle has no mixed precision on a CPU
FEW = [
    ("mask_rcnn", "torch", "two ranks"),
    ("psenet", "paddle", "two ranks"),
    ("hrnet_w18", "torch", "alone"),
    ("tsm", "torch", "alone"),
    ("resnet50", "paddle", "alone"),
]
BY_DAY = ("resnet50",)
IS_ALL = os.environ.get("PROFKIT_ALL_SYSTEMS") == "1"
PATIENCE_S = 300


def _trace(
    folder: Path, name: str, framework: str, *options: str
) -> tuple[subprocess.CompletedProcess[str], Path]:
    size = (
        "--image-size",
        str(SIZES[name]),
        "--batch-size",
        "2",
        "--steps",
        str(STEPS),
        "--workers",
        "1",
    )
    command = [
        sys.executable,
        "-m",
        "profkit",
        "trace",
        name,
        "--framework",
        framework,
        *size,
        *options,
        "--json",
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    return done, find_runs(folder / "traces")[-1]


def test_a_few_are_of_all_and_of_every_system() -> None:
    assert set(FEW) <= set(ALL)
    assert {name for name, _, _ in FEW} == set(SIZES)
    assert {(framework, "ranks" in mode) for _, framework, mode in FEW} == {
        ("torch", True),
        ("torch", False),
        ("paddle", True),
        ("paddle", False),
    }


def _cases() -> list[Any]:
    if IS_ALL:
        return ALL
    alone = [case for case in FEW if case[0] in BY_DAY]
    return [
        *alone,
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in FEW if case[0] not in BY_DAY),
    ]


@pytest.mark.parametrize(("name", "framework", "mode"), _cases())
def test_a_system_trains_and_leaves_a_whole_trace(
    name: str, framework: str, mode: str, tmp_path: Path
) -> None:
    done, run = _trace(tmp_path, name, framework, *MODES[mode])
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout)
    assert verify(run).state is Integrity.COMPLETE
    trace = Trace.open(run)
    ranks = 2 if "ranks" in mode else 1
    assert (figures["config"]["world_size"], len(trace.ranks), trace.steps.num_rows) == (
        ranks,
        ranks,
        ranks * STEPS,
    )
    absent = {"compile"} if ranks > 1 else {"compile", "allreduce"}  # the systems run eagerly
    if framework == "paddle":
        absent.add("h2d")  # its loader copies the batches itself
    assert set(trace.spans["phase"].to_pylist()) == set(PHASES) - absent
    assert (trace.collectives.num_rows > 0) == (ranks > 1)
    assert figures["config"]["precision"] == ("bf16" if "mixed" in mode else "fp32")
    assert figures["config"]["reduced"].startswith("images of")
    assert all(loss is not None and loss > 0 for loss in trace.steps["loss"].to_pylist())


def test_the_list_names_frameworks_data_and_settings(profkit: Command) -> None:
    listed = json.loads(profkit("workloads", "--json").stdout)
    assert {each["name"]: each["frameworks"] for each in listed} == {
        "hrnet_w18": ["torch", "paddle"],
        "mask_rcnn": ["torch"],
        "psenet": ["torch", "paddle"],
        "resnet50": ["torch", "paddle"],
        "tsm": ["torch", "paddle"],
    }
    assert all(each["data"] and each["published"]["batch_size"] for each in listed)


def test_a_sixth_system_is_one_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = metadata.EntryPoint("sixth", "profkit.workloads.resnet50:WORKLOAD", "profkit.workloads")
    monkeypatch.setattr(
        metadata, "entry_points", lambda group: (entry,) if group == "profkit.workloads" else ()
    )
    assert set(WORKLOADS.names()) == {"sixth", *SIZES}
    assert WORKLOADS.load("sixth") is RESNET50


@pytest.mark.parametrize("name", SIZES)
def test_listing_imports_no_framework(name: str) -> None:
    code = (
        f"import sys; from profkit.plugins import WORKLOADS; WORKLOADS.load({name!r}); "
        "print({'torch', 'paddle', 'numpy'} & set(sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "set()\n"
    )


def test_every_workload_says_how_its_learning_is_shown() -> None:
    for name in SIZES:
        workload = WORKLOADS.load(name)
        assert isinstance(workload, Workload)
        converge = sys.modules[f"profkit.workloads.{name}"].CONVERGE
        assert {"steps", "batch_size", "image_size", "lr", "factor"} == set(converge)
        assert 0 < converge["factor"] < 1


@pytest.mark.skipif(not IS_ALL, reason="takes a minute; 'make systems' runs it")
def test_resnet50_learns(tmp_path: Path) -> None:
    """The quickest one; `make converge` runs them all."""
    options = (
        "--steps",
        "80",
        "--image-size",
        "32",
        "--batch-size",
        "16",
        "--lr",
        "0.003",
        "--workers",
        "1",
    )
    command = [sys.executable, "-m", "profkit", "trace", "resnet50", *options]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE_S)
    losses = Trace.open(find_runs(tmp_path / "traces")[-1]).steps["loss"].to_pylist()
    assert sum(losses[-10:]) / 10 < 0.8 * losses[0]
