"""Ray Train's own example, bare and recorded. Its validation deep-copies the DDP model."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.harmless.commands import run

JOB = Path(__file__).parent / "jobs" / "ray_linear.py"


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_the_linear_example_of_ray_train_is_as_bare(tmp_path: Path) -> None:
    command = [sys.executable, str(JOB)]
    env = {"RAY_TRAIN_ENABLE_STATE_TRACKING": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    bare = run(command, tmp_path, recorded=False, env=env)
    recorded = run(command, tmp_path, recorded=True, env=env)
    assert (recorded.code, recorded.out) == (bare.code, bare.out), recorded.err
    assert bare.code == 0, bare.err
    assert "loss" in bare.out
    assert recorded.ranks == ["r00000", "r00001"]
