"""Evaluation on real ranks: they share the validation set, and agree on the figure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from profkit.trace import Trace
from profkit.trace.reader import find_runs
from profkit.workloads.datasets.generated import generate
from profkit.workloads.datasets.imagenet import GeneratedSet

PATIENCE_S = 300


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_ranks_agree_on_a_figure_and_on_the_missed_target(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    small = GeneratedSet(classes=2, train_per_class=8, val_per_class=3, long_side=64)
    root = generate(small, root=tmp_path / "cache")
    words = ["trace", "resnet50", "--framework", framework, "--ranks", "2", "--data", str(root)]
    words += ["--image-size", "32", "--batch-size", "2", "--workers", "0", "--steps", "4"]
    words += ["--until", "top1>0.999", "--evaluate-every", "2", "--output", str(tmp_path / "runs")]
    done = subprocess.run(
        [sys.executable, "-m", "profkit", *words, "--json"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "top1>0.999 not reached in 4 steps; the best was top1" in done.stderr
    assert json.loads(done.stdout)["config"]["evaluate_every"] == 2
    rows = Trace.open(find_runs(tmp_path / "runs")[-1]).samples.to_pylist()
    found = [row["value"] for row in rows if row["metric"] == "evaluation:top1"]
    assert len(found) == 4  # two evaluations on each of two ranks
    assert sorted(found) == sorted([found[0], found[0], found[-1], found[-1]])
    assert all((6 * value) % 1 == pytest.approx(0, abs=1e-6) for value in found)
