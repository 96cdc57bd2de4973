"""Jobs of Paddle's fleet on two ranks over gloo: collectives, dimensions and samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from profkit.trace import Trace
from profkit.trace.sharing import say_world

paddle = pytest.importorskip("paddle")

JOB = Path(__file__).parent / "jobs" / "fleet_paddle.py"
PATIENCE_S = 120
MICROBATCHES, STEPS, LATE_FROM, LATE_NS = 4, 10, 4, 50_000_000
lacks_send = pytest.mark.skipif(
    paddle.__version__.startswith("2."), reason="Paddle 2.6 sends nothing over gloo"
)
KINDS = ["sharding", pytest.param("pp", marks=lacks_send)]
"""The jobs that Paddle runs on the CPU."""


class Launched(NamedTuple):
    results: list[dict[str, Any]]
    trace: Trace | None


def launch(folder: Path, kind: str, *, recorded: bool) -> Launched:
    """Run a job of two ranks, which must end as it should."""
    out, runs = folder / "out", folder / "runs"
    start = ["-m", "paddle.distributed.launch", "--backend", "gloo", "--nproc_per_node", "2"]
    job = ["--log_dir", str(folder / "log"), str(JOB), kind, str(out)]
    command = [sys.executable, *start, *job]
    if recorded:
        command = [sys.executable, "-m", "profkit", "run", "--output", str(runs), "--", *command]
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    logs = [log.read_text("utf-8", "replace") for log in sorted((folder / "log").glob("worker*"))]
    assert done.returncode == 0, "\n".join(log[-6_000:] for log in [*logs, done.stderr])
    results = [json.loads((out / f"{rank}.json").read_text("utf-8")) for rank in range(2)]
    return Launched(results, Trace.open(next(runs.iterdir())) if recorded else None)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def run(kind: str) -> Launched:
        return launch(tmp_path_factory.mktemp(kind), kind, recorded=True)

    return run


def rows_of(trace: Trace, rank: int, step: int) -> list[dict[str, Any]]:
    rows = trace.collectives.to_pylist()
    return [row for row in rows if (row["rank"], row["step"]) == (rank, step)]


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_equal_to_the_bit(recorded: Any, tmp_path: Path, kind: str) -> None:
    bare = launch(tmp_path, kind, recorded=False)
    losses = [result["losses"] for result in recorded(kind).results]
    assert losses == [result["losses"] for result in bare.results]
    assert len(losses[0]) == STEPS


@pytest.mark.parametrize("kind", KINDS)
def test_collectives_are_matched_and_have_their_dimension(recorded: Any, kind: str) -> None:
    trace = recorded(kind).trace
    found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in trace.collectives.to_pylist():
        if row["step"] is not None and row["step"] >= LATE_FROM:
            found[row["communicator"], row["sequence"]].append(row)
    assert found
    for rows in found.values():
        assert sorted(row["rank"] for row in rows) == [0, 1]
        assert len({row["bytes"] for row in rows}) == 1
    dimensions = {row["dimension"] for rows in found.values() for row in rows}
    assert kind in dimensions


@pytest.mark.parametrize(
    ("kind", "world"),
    [("sharding", "2 ranks (sharding 2)"), pytest.param("pp", "2 ranks (pp 2)", marks=lacks_send)],
)
def test_samples_count_once_per_data_parallel_rank(recorded: Any, kind: str, world: str) -> None:
    made: Launched = recorded(kind)
    trace = made.trace
    assert trace is not None
    assert not trace.sharing.why
    summed = trace.steps.group_by("step").aggregate([("sample_count", "sum")])
    true = made.results[0]["samples_per_step"]
    assert set(summed["sample_count_sum"].to_pylist()) == {true}
    assert say_world(trace.manifest.world_size, trace.manifest.config) == world


@lacks_send
def test_a_pipeline_has_a_message_and_a_forward_for_each_microbatch(recorded: Any) -> None:
    trace = recorded("pp").trace
    for rank in range(2):
        ops = Counter(row["op"] for row in rows_of(trace, rank, 6))
        assert ops["send"] == ops["recv"] == MICROBATCHES
        phases = Counter(
            row["phase"]
            for row in trace.spans.to_pylist()
            if (row["rank"], row["step"], row["depth"]) == (rank, 6, 0)
        )
        assert phases["forward"] == MICROBATCHES
        assert phases["backward"] == MICROBATCHES


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_for_a_late_rank_is_exchange(recorded: Any, kind: str) -> None:
    spent = 0
    for row in recorded(kind).trace.spans.to_pylist():
        if row["rank"] == 0 and row["phase"] == "allreduce" and (row["step"] or 0) > LATE_FROM:
            spent += row["end_ns"] - row["start_ns"]
    assert spent >= 0.8 * LATE_NS * (STEPS - LATE_FROM - 1)
