"""Jobs whose rows another process writes end as they do alone, whatever happens to either."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from profkit.scribe.sending import ENDED
from profkit.trace import Trace
from tests.harmless.commands import Ended, run

TRAIN = """
import ctypes, os, signal, sys, time
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def train(steps):
    for _ in range(steps):
        loss = model(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
    print(loss.item(), flush=True)

def scribes():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")
        except OSError:
            continue
        if b"profkit.scribe.scribe" in words and os.environ["PROFKIT_RUN"].encode() in words:
            yield int(pid)

train(150)
"""

FAULTS = {
    "nothing": "",
    "the scribe is killed": """
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
for pid in scribes():
    os.kill(pid, signal.SIGKILL)
train(150)
""",
    "the scribe stands still": """
for pid in scribes():
    os.kill(pid, signal.SIGSTOP)
train(50)
""",
    "the job closes all files and opens its own": """
os.closerange(3, 256)
files = [open(f"file{number}", "w") for number in range(40)]
train(150)
for file in files:
    file.write("mine")
    file.close()
""",
    "the job is killed while a child holds its files": """
time.sleep(1.0)
if ctypes.CDLL(None).fork() == 0:
    time.sleep(20)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
""",
    "the job leaves at once": "time.sleep(1.0); os._exit(3)",
}


LEAST_STEPS = {"nothing": 150, "the job leaves at once": 149}
"""Of a job that ends by itself all; the last step of one that leaves at once has no end."""


def _both(tmp_path: Path, fault: str) -> tuple[Ended, Ended]:
    script = tmp_path / "job.py"
    script.write_text(TRAIN + FAULTS[fault])
    environment = {"PROFKIT_RUN": "none"}
    bare = run([sys.executable, script], tmp_path, recorded=False, env=environment)
    return bare, run([sys.executable, script], tmp_path, recorded=True)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_job_ends_as_without_profkit_and_keeps_its_rows(tmp_path: Path, fault: str) -> None:
    began = time.monotonic()
    bare, recorded = _both(tmp_path, fault)
    assert time.monotonic() - began < 60
    assert (recorded.code, recorded.out) == (bare.code, bare.out)
    assert not recorded.own_errors
    written = [path for path in recorded.left if path.startswith("file")]
    for name in written:
        assert (tmp_path / "recorded" / "cwd" / name).read_text() == "mine"
    assert recorded.steps() >= LEAST_STEPS.get(fault, 1), recorded.err
    trace = Trace.open(recorded.runs[0])
    if fault == "the scribe is killed":
        assert ENDED in recorded.err
        end = trace.ranks[0].end
        assert end is not None
        assert end.reason == ENDED
    elif fault == "nothing":
        assert trace.ranks[0].end is not None
        assert trace.ranks[0].end.dropped == 0


def test_a_job_needs_no_arrow_to_be_recorded(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    without = tmp_path / "without" / "pyarrow"
    without.mkdir(parents=True)
    (without / "__init__.py").write_text("raise ImportError('there is no Arrow here')\n")
    script.write_text(f"import sys; sys.path.insert(0, {str(without.parent)!r})\n" + TRAIN)
    ended = run([sys.executable, script], tmp_path, recorded=True)
    assert ended.steps() == 150, ended.err
