"""A job whose steps are slowed by an experiment computes what the bare job does."""

from __future__ import annotations

from pathlib import Path

from profkit.analysis.selection import EXPERIMENT, steady_steps
from profkit.analysis.slowed import slowed_steps, unlike_steps
from profkit.instrument.experiments import LENGTH
from profkit.trace import Trace
from profkit.vocab import EXPERIMENT_SETTLES
from tests.harmless.commands import PYTHON, run

JOB = Path(__file__).parent / "jobs" / "sliced.py"


def test_losses_are_equal_to_the_bit_and_slowed_steps_are_in_no_figure(tmp_path: Path) -> None:
    bare = run([PYTHON, JOB], tmp_path, recorded=False)
    asked = {"PROFKIT_EXPERIMENT": "forward"}
    slowed = run([PYTHON, JOB], tmp_path, recorded=True, env=asked)
    assert bare.code == slowed.code == 0, slowed.err
    assert bare.out == slowed.out
    trace = Trace.open(slowed.runs[0])
    assert len(slowed_steps(trace.samples)["forward"]) >= LENGTH  # a second block may begin
    found = steady_steps(trace)
    unlike = set(unlike_steps(trace.samples))
    assert len(unlike) >= LENGTH + EXPERIMENT_SETTLES
    assert not unlike & set(found.steps)
    # Steps of a block are also captured, or run without profkit, which are reasons of their own.
    assert found.which[EXPERIMENT].size
    assert set(found.which[EXPERIMENT]) <= unlike
