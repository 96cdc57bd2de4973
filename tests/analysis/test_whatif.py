"""Replayed steps equal those of generated jobs, and the published figures of two real ones."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.analysis.whatif.graph import build_graph
from profkit.analysis.whatif.operations import (
    BACKWARD,
    FORWARD,
    FORWARD_RECEIVE,
    FORWARD_SEND,
    Operations,
    ReplayError,
    arrange,
)
from profkit.analysis.whatif.replay import Replay, prepare
from profkit.analysis.whatif.slowdown import MERGED, Slowdown, find_slowdown
from profkit.importers.straggler.table import read_operations
from tests.importers.conftest import DATA
from tests.pipelines import PipelinePlan, run_pipeline

PUBLISHED = DATA / "straggler"
JOBS = ("ST", "AR")
EXACT = 1e-6
"""The published figures were computed in 32 bits."""
LIMIT_S = 0.5

needs_jobs = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published traces (../shared/data/straggler) are not here"
)

PLANS = {
    "one stage": PipelinePlan(stages=1),
    "two stages, one replica": PipelinePlan(stages=2, data_ranks=1),
    "three stages": PipelinePlan(stages=3, microbatches=5),
    "four stages": PipelinePlan(data_ranks=3),
    "fewer microbatches than stages": PipelinePlan(microbatches=2),
    "exchange under the backward": PipelinePlan(stages=3, overlaps=True),
    "two chunks": PipelinePlan(stages=2, chunks=2, microbatches=4),
    "three chunks": PipelinePlan(stages=2, chunks=3, microbatches=6, overlaps=True),
    "chunks on four stages": PipelinePlan(chunks=2, steps=2),
}


def made(plan: PipelinePlan, folder: Path) -> Replay:
    return prepare(read_operations(run_pipeline(plan).write(folder)))


def changed(operations: Operations, kept: Any) -> Operations:
    columns = {}
    for name, column in vars(operations).items():
        columns[name] = column if name == "kinds" else column[kept]
    return Operations(**columns)


@pytest.mark.parametrize("name", PLANS)
def test_a_replay_gives_the_steps_of_a_generated_job(name: str, tmp_path: Path) -> None:
    plan = dataclasses.replace(PLANS[name], delay_ns=300_000)
    replay = made(plan, tmp_path)
    found = find_slowdown(replay)
    prompt = dataclasses.replace(plan, delay_ns=0)
    assert found.measured_ns.tolist() == run_pipeline(plan).step_ns
    assert replay.delayed_step_times().tolist() == run_pipeline(plan).step_ns
    assert found.replayed_ns.tolist() == run_pipeline(prompt).step_ns
    ideal = run_pipeline(dataclasses.replace(prompt, is_ideal=True)).step_ns
    assert found.ideal_ns.tolist() == pytest.approx(ideal, abs=200)  # whole ns each operation


def test_a_slow_worker_is_found_and_has_all_of_the_slowdown(tmp_path: Path) -> None:
    found = find_slowdown(made(PipelinePlan(data_ranks=4, slow={(2, 1): 2.0}), tmp_path))
    assert found.slowest_workers == ((2, 1),)
    assert found.slowest_workers_share == pytest.approx(1, abs=0.1)
    assert max(found.by_data_rank, key=found.by_data_rank.__getitem__) == 2
    assert max(found.by_stage, key=found.by_stage.__getitem__) == 1
    assert found.whole > 1.5
    assert found.last_stage_share < 0.1


def test_a_slow_last_stage_has_all_of_the_slowdown(tmp_path: Path) -> None:
    slow = {(0, 3): 1.8, (1, 3): 1.8}
    found = find_slowdown(made(PipelinePlan(slow=slow), tmp_path))
    assert found.last_stage_share > 0.9
    assert found.slowest_workers_share < 0.5


def test_equal_steps_have_no_slowdown(tmp_path: Path) -> None:
    found = find_slowdown(made(PipelinePlan(is_ideal=True), tmp_path))
    assert found.whole == pytest.approx(1, rel=1e-6)
    assert all(each == pytest.approx(1, rel=1e-6) for each in found.by_kind.values())


def test_a_step_that_lacks_an_operation_is_excluded(tmp_path: Path) -> None:
    operations = read_operations(run_pipeline(PipelinePlan(steps=4)).write(tmp_path))
    gone = int(np.flatnonzero((operations.step == 2) & (operations.stage == 1))[5])
    less = changed(operations, np.arange(len(operations.kind)) != gone)
    assert arrange(less).excluded == 1
    assert arrange(less).steps.tolist() == [0, 1, 3]
    assert find_slowdown(prepare(less)).steps == (0, 1, 3)


def test_a_message_that_only_one_side_recorded_is_an_error(tmp_path: Path) -> None:
    operations = read_operations(run_pipeline(PipelinePlan()).write(tmp_path))
    kind = operations.kinds.index(FORWARD_SEND)
    last = operations.sequence == operations.sequence[operations.kind == kind].max()
    gone = (operations.kind == kind) & last & (operations.stage == 0)
    with pytest.raises(ReplayError, match="one side only"):
        prepare(changed(operations, ~gone))


def test_a_stage_without_its_receives_is_an_error(tmp_path: Path) -> None:
    operations = read_operations(run_pipeline(PipelinePlan()).write(tmp_path))
    kind = operations.kinds.index(FORWARD_SEND)
    gone = (operations.kind == kind) & (operations.stage == 1) & (operations.sequence > 3)
    with pytest.raises(ReplayError, match="stage 1 has 4 forward-send for 8 forward-compute"):
        prepare(changed(operations, ~gone))


@pytest.mark.parametrize(("kind", "late"), [(FORWARD_RECEIVE, True), (FORWARD_SEND, False)])
def test_messages_that_were_recorded_and_never_sent_change_nothing(
    kind: str, late: bool, tmp_path: Path
) -> None:
    """A receive after the last computation has begun, or a send before the first one has ended."""
    operations = read_operations(run_pipeline(PipelinePlan()).write(tmp_path))
    chosen = (operations.kind == operations.kinds.index(FORWARD)) & (operations.stage == 1)
    moments: dict[tuple[int, int], tuple[int, int]] = {}
    for row in np.flatnonzero(chosen).tolist():
        key = int(operations.step[row]), int(operations.rank[row])
        start, end = int(operations.start[row]), int(operations.end[row])
        known = moments.get(key, (start, end))
        moments[key] = max(known[0], start), min(known[1], end)
    columns = {name: column for name, column in vars(operations).items() if name != "kinds"}
    own = (operations.kind == operations.kinds.index(kind)) & (operations.stage == 1)
    rows = np.flatnonzero(own & (operations.sequence == operations.sequence[own].max()))
    extra = {name: column[rows].copy() for name, column in columns.items()}
    extra["sequence"] += 1
    extra["duration"][:] = 1_000
    for place, row in enumerate(rows.tolist()):
        last_start, first_end = moments[int(operations.step[row]), int(operations.rank[row])]
        extra["start"][place] = last_start + 100_000 if late else first_end - 200_000
    if not late:  # numbers count by start
        extra["sequence"][:] = 0
        columns["sequence"] = columns["sequence"] + own
    joined = {name: np.concatenate([column, extra[name]]) for name, column in columns.items()}
    found = find_slowdown(prepare(Operations(kinds=operations.kinds, **joined)))
    usual = find_slowdown(prepare(operations))
    assert found.replayed_ns.tolist() == usual.replayed_ns.tolist()


@pytest.mark.parametrize("kind", [FORWARD, BACKWARD])
def test_a_job_without_computations_is_an_error(kind: str, tmp_path: Path) -> None:
    operations = read_operations(run_pipeline(PipelinePlan(stages=1)).write(tmp_path))
    code = operations.kinds.index(kind)
    if kind == BACKWARD:
        with pytest.raises(ReplayError, match=BACKWARD):
            prepare(changed(operations, operations.kind != code))
        return
    both = np.isin(operations.kind, [code, operations.kinds.index(BACKWARD)])
    with pytest.raises(ReplayError, match=f"{FORWARD} and {BACKWARD}"):
        prepare(changed(operations, ~both))


def test_no_operation_comes_before_what_it_waits_for(tmp_path: Path) -> None:
    path = run_pipeline(PLANS["chunks on four stages"]).write(tmp_path)
    graph = build_graph(arrange(read_operations(path)))
    place = {node: number for number, node in enumerate(graph.order)}
    assert sorted(place) == list(range(len(graph.before)))
    for node, before in enumerate(graph.before):
        for each in before:
            group = graph.group_of[each]
            members = graph.groups[group] if group >= 0 else [each]
            assert all(place[member] < place[node] for member in members)


def published(job: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PUBLISHED / f"result-{job}.json").read_text())
    for name in ("ms", "mw"):
        found[name] = json.loads((PUBLISHED / f"{name}-{job}.json").read_text())
    return found


def slowdown_of(job: str) -> Slowdown:
    return find_slowdown(prepare(read_operations(PUBLISHED / f"trace-{job}.parquet")))


@needs_jobs
@pytest.mark.parametrize("job", JOBS)
def test_the_published_figures_are_reproduced(job: str) -> None:
    expected, found = published(job), slowdown_of(job)
    steps = [str(step) for step in found.steps]
    assert len(steps) == len(expected["step_t_base"])
    for name, times in (
        ("step_t_base", found.measured_ns),
        ("step_t_nodelay", found.replayed_ns),
        ("step_t_noblk", found.ideal_ns),
    ):
        theirs = [expected[name][step] for step in steps]
        assert (times / 1e9).tolist() == pytest.approx(theirs, rel=EXACT), name
    assert found.whole == pytest.approx(expected["blocking_slowdown"], rel=EXACT)
    parts: dict[str, Mapping[Any, float]] = {
        "optype": found.by_kind,
        "dp_rank": found.by_data_rank,
        "stage": found.by_stage,
    }
    for name, part in parts.items():
        ours = {str(label): ratio for label, ratio in part.items()}
        assert ours == pytest.approx(expected[f"blocking_decompose_by_{name}"], rel=EXACT), name
    assert found.last_stage_share == pytest.approx(expected["ms"]["Ms"], rel=EXACT)
    assert found.slowest_workers_share == pytest.approx(expected["mw"]["Mw"], rel=EXACT)
    errors = {"ST": 0.0189, "AR": 0.0067}
    assert found.replay_error == pytest.approx(errors[job], abs=5e-5)


@needs_jobs
@pytest.mark.parametrize("job", JOBS)
def test_the_published_figures_of_each_step_are_reproduced(job: str) -> None:
    """Each part alone keeps its measured durations, in each step."""
    expected = published(job)
    replay = prepare(read_operations(PUBLISHED / f"trace-{job}.parquet"))
    names = [replay.grid.operations.kinds[each] for each in replay.kind.tolist()]
    merged = np.array([MERGED.get(name, name) for name in names])
    all_nodes, all_ranks = replay.stage >= 0, replay.grid.data_ranks >= 0
    parts: dict[tuple[str, str], Any] = {}
    for kind in set(merged.tolist()):
        parts["optype", kind] = replay.choose(merged == kind, all_ranks)
    for stage in range(4):
        parts["stage", str(stage)] = replay.choose(replay.stage == stage, all_ranks)
    for data_rank in replay.grid.data_ranks.tolist():
        chosen = replay.choose(all_nodes, replay.grid.data_ranks == data_rank)
        parts["dp_rank", str(data_rank)] = chosen
    every = replay.choose(all_nodes, all_ranks)
    ideal, whole, *times = replay.step_times([~every, every, *parts.values()])
    steps = [str(step) for step in replay.steps]
    theirs = [expected["blocking_step_slowdown"][step] for step in steps]
    assert (whole / ideal).tolist() == pytest.approx(theirs, rel=EXACT)
    for (dimension, label), own in zip(parts, times, strict=True):
        found = expected[f"blocking_decompose_by_{dimension}_per_step"]
        theirs = [found[step][label] for step in steps]
        assert (own / ideal).tolist() == pytest.approx(theirs, rel=EXACT), (dimension, label)


@needs_jobs
@pytest.mark.parametrize("job", JOBS)
def test_a_replay_with_the_measured_delays_gives_the_measured_steps(job: str) -> None:
    replay = prepare(read_operations(PUBLISHED / f"trace-{job}.parquet"))
    found = find_slowdown(replay)
    assert replay.delayed_step_times().tolist() == found.measured_ns.tolist()


@needs_jobs
def test_a_job_of_120000_operations_is_replayed_quickly() -> None:
    operations = read_operations(PUBLISHED / "trace-AR.parquet")
    took = []
    for _ in range(3):
        begin = time.perf_counter()
        find_slowdown(prepare(operations))
        took.append(time.perf_counter() - begin)
    assert min(took) < LIMIT_S
