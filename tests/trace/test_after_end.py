"""What a rank does after its last step is no part of that step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.overview import build_overview
from profkit.clock import Anchor
from profkit.trace import Trace
from profkit.trace.files import RankFiles
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.vocab import RunState, rank_folder

MS = 1_000_000
STEPS = 20


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def write_run(folder: Path, device: str) -> Trace:
    """Write steps of 10 ms, the last of which ends before a barrier of a second."""
    folder.mkdir(mode=0o700)
    steps, spans, calls = [], [], []
    for step in range(STEPS):
        begin, end = step * 10 * MS, (step + 1) * 10 * MS
        times = {"start_ns": begin, "end_ns": end}
        more = {"sample_count": 1, "instrumented": True, "epoch": 0}
        steps.append({"step": step, **times, **more})
        named = {"phase": "forward", "name": "forward", "depth": 0, "thread": "MainThread"}
        spans.append({"step": step, **named, **times})
    late = {"start_ns": STEPS * 10 * MS + 5, "end_ns": STEPS * 10 * MS + 1_000 * MS}
    spans.append(spans[-1] | {"phase": "allreduce", "name": "barrier"} | late)
    calls.append(
        {"communicator": "0", "sequence": 0, "op": "barrier", "bytes": 0, "dtype": "",
         "group_size": 1, "backend": "gloo", "step": STEPS - 1, **late}
    )  # fmt: skip
    files = RankFiles(folder / rank_folder(0), 0)
    RankManifest(0, "host", 1, device, Anchor(0, 1, 100)).write(files.folder)
    for table, rows in (("steps", steps), ("spans", spans), ("collectives", calls)):
        files.write(table, columns(rows))
    files.close()
    RunManifest("job", state=RunState.COMPLETE, created_ns=1, ended_ns=2).write(folder)
    return Trace.open(folder)


def test_a_barrier_after_the_last_step_is_in_no_step(tmp_path: Path) -> None:
    trace = write_run(tmp_path / "run", "cpu")
    assert trace.spans["step"].to_pylist() == [*range(STEPS), None]
    assert trace.collectives["step"].to_pylist() == [None]
    phases = {each.name: each.step_ns.value for each in build_overview(trace).phases}
    assert phases == {"forward": pytest.approx(10 * MS), "unknown": pytest.approx(0)}


def test_a_device_may_work_for_a_step_after_the_host_has_ended_it(tmp_path: Path) -> None:
    assert write_run(tmp_path / "run", "cuda").collectives["step"].to_pylist() == [STEPS - 1]
