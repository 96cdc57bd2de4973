"""A process that forks during a step: the child continues, and the parent keeps the trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc

from profkit.trace import RunManifest, Trace, verify
from profkit.vocab import Integrity, RunState

STEPS, FORKS_AT = 40, 11

JOB = f"""
import os, platform, sys, warnings
from pathlib import Path
from profkit.clock import read_anchor
from profkit.instrument.recorder import Recorder
from profkit.trace import RankManifest, RankWriter
from profkit.testing import OpenStep

# Python 3.12 warns of forks in processes with threads, which is intended here.
warnings.simplefilter("ignore", DeprecationWarning)
manifest = RankManifest(0, platform.node(), os.getpid(), "cpu", read_anchor())
writer = RankWriter(Path(sys.argv[1]), manifest, interval_s=60)
recorder = Recorder(writer)
child = None
recorder.begin()
for step in range({STEPS}):
    with OpenStep(recorder, 4):
        with recorder.phase("data"):
            pass
        with recorder.phase("forward"):
            child = os.fork() if step == {FORKS_AT} else child
recorder.stop()
writer.close(timeout_s=60)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_fork_in_the_middle_of_a_step_writes_nothing_and_ends_nothing(tmp_path: Path) -> None:
    """Both processes train to the end and exit normally.

    The child inherits all rows of the parent that are not written yet.
    """
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    RunManifest(workload="forks", state=RunState.COMPLETE).write(tmp_path)
    assert verify(tmp_path).state is Integrity.COMPLETE
    trace = Trace.open(tmp_path)
    assert trace.steps["step"].to_pylist() == list(range(STEPS))
    for phase in ("data", "forward"):
        assert trace.spans.filter(pc.equal(trace.spans["phase"], phase))[
            "step"
        ].to_pylist() == list(range(STEPS))
