"""A planted late rank is found, with how often it is late and in which phase."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from profkit.explain.explained import scale_runs
from profkit.explain.meeting import Meeting, find_meeting
from profkit.frame.costs import DATA
from profkit.frame.run_frame import frame_of
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from tests.documents import scaling_json, scaling_text

MS = 1_000_000
STEPS = 60


def meeting_of(run: Path) -> Meeting | None:
    trace = Trace.open(run)
    used = frame_of(trace).costs.selection.steps
    return find_meeting(trace.collectives, frame_of(trace).by_rank, used)


@pytest.mark.parametrize("phase", ["data", "forward", "backward"])
def test_the_late_rank_is_named_with_its_phase(tmp_path: Path, phase: str) -> None:
    mean = {"data": 2 * MS, "forward": 12 * MS, "backward": 24 * MS}[phase]
    found = meeting_of(
        synthetic_trace(
            tmp_path / "run",
            ranks=4,
            steps=STEPS,
            jitter=0.01,
            rank_phase_ns={2: {phase: mean + 9 * MS}},
        )
    )
    assert found is not None
    late = found.waited_for[0]
    assert (late.rank, late.phase) == (2, phase)
    assert late.share > 0.95
    assert late.last_in == found.collectives
    assert late.excess_ns == pytest.approx(9 * MS, rel=0.05)
    assert sum(each.share for each in found.waited_for) == pytest.approx(1.0)


def test_each_collective_has_one_rank_that_is_last(tmp_path: Path) -> None:
    found = meeting_of(synthetic_trace(tmp_path / "run", ranks=4, steps=STEPS, jitter=0.2))
    assert found is not None
    assert sum(each.last_in for each in found.waited_for) == found.collectives == found.matched


def test_a_single_rank_meets_nobody(tmp_path: Path) -> None:
    assert meeting_of(synthetic_trace(tmp_path / "run", steps=STEPS)) is None


def test_nobody_is_named_where_a_rank_left_no_files(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", ranks=3, steps=STEPS)
    shutil.rmtree(run / "r00001")
    found = meeting_of(run)
    assert found is not None
    assert found.matched == 0
    assert found.waited_for == ()
    assert found.waiting_ns is None


def test_the_scaling_table_tells_where_ranks_wait_and_its_factors_multiply_out(
    tmp_path: Path,
) -> None:
    runs = [
        synthetic_trace(tmp_path / "one", steps=STEPS),
        synthetic_trace(
            tmp_path / "four", ranks=4, steps=STEPS, rank_phase_ns={2: {"data": 11 * MS}}
        ),
        synthetic_trace(tmp_path / "eight", ranks=8, steps=STEPS, phase_ns={"allreduce": 20 * MS}),
    ]
    rows = scale_runs([Trace.open(run) for run in runs])
    for row in rows:
        assert math.prod(factor.value for factor in row.factors.values()) == pytest.approx(
            row.efficiency.value, rel=1e-12
        )
    assert rows[0].meeting is None
    assert rows[2].largest_loss == "exposed communication"
    shown = " ".join(scaling_text(rows).split())
    assert "rank 2 is last in" in shown
    assert "late in data by 9." in shown
    assert "ranks take turns at being last" in shown
    twin = scaling_json(rows)["runs"][1]["meeting"]
    assert twin["waited_for"][0]["rank"] == 2
    assert twin["waited_for"][0]["phase"] == DATA
    assert rows[1].meeting is not None
    assert rows[1].meeting.collectives == twin["collectives"]
