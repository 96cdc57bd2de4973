"""Traces that the installed PyTorch records, of FSDP2 on two ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from profkit.analysis.overview import build_overview
from profkit.importers.kineto import IMPORTER
from profkit.trace import Trace
from tests.importers.conftest import Import

pytest.importorskip("torch")
JOB = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile, record_function, schedule

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
path = f"{sys.argv[1]}/rank{dist.get_rank()}.json.gz"
plan = schedule(wait=1, warmup=1, active=6)
ready = lambda made: made.export_chrome_trace(path)
with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=ready) as profiler:
    for _ in range(9):
        with record_function("Forward"):
            loss = model(torch.randn(8, 64)).square().mean()
        with record_function("Backward"):
            loss.backward()
        with record_function("Optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        profiler.step()
dist.destroy_process_group()
"""


def test_a_trace_of_fsdp2_has_its_phases_and_its_exchange(
    tmp_path: Path, import_files: Import
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*launch, str(tmp_path / "job.py"), str(tmp_path)], check=True, timeout=300)
    (made,) = import_files(IMPORTER, *sorted(tmp_path.glob("rank*.json.gz")))
    view = build_overview(Trace.open(made.run))
    assert (view.world_size, view.ranks_seen) == (2, 2)
    assert view.steps_seen >= 5
    shares = {part.name: part.share.value for part in view.phases}
    assert {"forward", "backward", "allreduce", "optimizer"} <= set(shares)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["unknown"] < 0.5
