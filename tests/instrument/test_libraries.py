"""Real jobs of Megatron Core and DeepSpeed on two ranks over gloo: `.ci/libraries` runs this."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from profkit.trace import Trace
from profkit.trace.sharing import say_world

PATIENCE_S = 300
STEPS = 12
LIBRARIES = {"megatron": "megatron.core", "zero": "deepspeed"}


def launch(folder: Path, kind: str, *, recorded: bool) -> list[list[str]]:
    """Run a job, which must end as it should, and return the losses of its ranks."""
    out = folder / ("recorded" if recorded else "bare")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [
        sys.executable,
        *launcher,
        str(Path(__file__).with_name("jobs") / "libraries_job.py"),
    ]
    command += [kind, "--out", str(out)]
    if recorded:
        options = ["--output", str(folder / "runs"), "--collect", "none"]
        command = [sys.executable, "-m", "profkit", "run", *options, "--", *command]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command,
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "failed and is skipped" not in done.stderr, done.stderr[-4000:]
    return [json.loads((out / f"{rank}.json").read_text("utf-8")) for rank in range(2)]


@pytest.mark.parametrize(
    ("kind", "world", "samples"),
    [
        ("megatron-dp", "2 ranks (dp 2)", 16),
        ("megatron-tp", "2 ranks (tp 2)", 8),
        ("zero-1", "2 ranks (dp 2)", 16),
        ("zero-2", "2 ranks (dp 2)", 16),
        ("zero-3", "2 ranks (dp 2)", 16),
    ],
)
def test_a_job_of_a_library_is_recorded_as_it_is(
    tmp_path: Path, kind: str, world: str, samples: int
) -> None:
    library = LIBRARIES[kind.split("-", maxsplit=1)[0]]
    if importlib.util.find_spec(library.split(".")[0]) is None:
        pytest.skip(f"{library} is not installed; .ci/libraries makes an environment with it")
    bare, recorded = (launch(tmp_path, kind, recorded=each) for each in (False, True))
    assert recorded == bare
    assert len(bare[0]) == STEPS
    trace = Trace.open(next((tmp_path / "runs").iterdir()))
    assert say_world(trace.manifest.world_size, trace.manifest.config) == world
    summed = trace.steps.group_by("step").aggregate([("sample_count", "sum")])
    assert summed["sample_count_sum"].to_pylist() == [samples] * STEPS
    dimension = "tp" if kind == "megatron-tp" else "dp"
    rows = [row for row in trace.collectives.to_pylist() if row["step"] == STEPS - 2]
    assert rows
    assert {row["dimension"] for row in rows if row["bucket"] is None} <= {dimension}
    by_rank = [Counter(row["op"] for row in rows if row["rank"] == rank) for rank in range(2)]
    assert by_rank[0] == by_rank[1]
    phases = set(trace.spans["phase"].to_pylist())
    assert {"data", "forward", "backward", "optimizer"} <= phases
