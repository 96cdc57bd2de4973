"""Recording loads no modules that cost a job time and that the job does not import."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.harmless.commands import run

JOB = """
import gc, sys, threading, time
started = []
gc.callbacks.append(
    lambda phase, info: phase == "start" and started.append(threading.current_thread().name)
)
import torch
net = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.zeros(320, 8), torch.zeros(320, 2))
for inputs, labels in torch.utils.data.DataLoader(data, batch_size=8):
    torch.nn.functional.mse_loss(net(inputs), labels).backward()
    optimizer.step()
    time.sleep(0.05)
loaded = {"pandas", "pyarrow", "textual"}.intersection(sys.modules)
ours = [name for name in started if name.startswith("profkit")]
print(sorted(loaded), len(ours))
"""

MOST_COLLECTIONS = 4
"""The job's own objects may start one while a thread of ours happens to run."""


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_a_job_does_not_load_pandas_or_collect_garbage_for_us(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    ended = run([sys.executable, script], tmp_path, recorded=True)
    assert ended.is_recorded, ended.err
    loaded, _, collections = ended.out.strip().rpartition(" ")
    assert loaded == "[]"
    assert int(collections) <= MOST_COLLECTIONS
