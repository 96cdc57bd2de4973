"""profkit does not hang with a stopped rank, loses no row, and reports what happened."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import pyarrow.compute as pc
import pytest

from profkit.analysis.overview import build_overview
from profkit.trace import Trace, verify
from profkit.trace.reader import find_runs
from profkit.vocab import Integrity, RunState
from tests.trust import hanging_job
from tests.trust.hanging_job import LATE, LOST_AT, STOPPED_S


@dataclass(frozen=True)
class Ended:
    code: int
    said: str
    trace: Trace


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Record a job in which rank 1 hangs, recovers, and hangs until the job itself gives up."""
    folder = tmp_path_factory.mktemp("hangs")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PROFKIT_")} | {
        "OMP_NUM_THREADS": "1"
    }
    command = [
        sys.executable,
        "-m",
        "profkit",
        "run",
        "--",
        sys.executable,
        str(hanging_job.__file__),
    ]
    with (folder / "said").open("w") as said:
        done = subprocess.run(
            command, cwd=folder, env=env, stdout=said, stderr=said, check=False, timeout=550
        )
    (run,) = find_runs(folder / "traces")
    return Ended(done.returncode, (folder / "said").read_text(), Trace.open(run))


def test_the_job_ends_as_it_does_alone(ended: Ended) -> None:
    assert ended.code == 1, ended.said
    assert "monitoredBarrier" in ended.said  # the job's own words
    assert (ended.trace.manifest.state, ended.trace.manifest.why) == (
        RunState.ABORTED,
        "the job ended with exit code 1",
    )


def test_no_row_of_either_rank_is_lost(ended: Ended) -> None:
    found = verify(ended.trace.path)
    assert found.state is Integrity.ENDED_EARLY
    assert f"rank {LATE} wrote no end record" in found.reasons
    for rank in (0, LATE):
        steps = ended.trace.steps.filter(pc.equal(ended.trace.steps["rank"], rank))[
            "step"
        ].to_pylist()
        assert steps[:LOST_AT] == list(range(LOST_AT))


def test_the_rank_that_hung_is_named_and_the_end_is_told(ended: Ended) -> None:
    found = build_overview(ended.trace)
    assert found.late_rank is not None
    assert (found.late_rank.rank, found.late_rank.phase) == (LATE, "forward")
    assert (
        found.late_rank.waited_ns * len(found.selection.steps) > 0.5 * STOPPED_S * 1e9
    )  # for the rest of it, the other rank may have been busy itself
    assert "the run was aborted: the job ended with exit code 1" in found.quality
