"""Real sharded jobs of two ranks: each collective has one row, and losses are the same."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from profkit.clock import now_ns
from profkit.frame.phases import UNKNOWN
from profkit.frame.run_frame import frame_of
from profkit.instrument.frameworks.base import Seams
from profkit.instrument.guard import Patches
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.rows import SpanRow, StepRow
from profkit.instrument.tracking.tracker import Tracker
from profkit.trace import Trace
from profkit.trace.sharing import say_world
from tests.scripts import BENCHMARKS
from tests.warm import warm_python

pytest.importorskip("torch")

from profkit.instrument.frameworks.pytorch.phases import ModelCalls  # torch
from profkit.instrument.frameworks.pytorch.schedules import Schedules  # torch
from profkit.instrument.frameworks.pytorch.stages import hook_messages  # torch

PATIENCE_S = 200
MICROBATCHES = 4
PROBED_STEPS = 2

at_night = functools.partial(pytest.param, marks=pytest.mark.nightly)
OTHER_KINDS = (at_night("dtensor"), at_night("tp"), at_night("interleaved"))
SCALE = "scale_grads"
"""A method that stages of pipelines have since torch 2.5."""


class Launched(NamedTuple):
    """The results that the ranks wrote, and the run if one was recorded."""

    results: list[dict[str, Any]]
    trace: Trace | None


def launch(folder: Path, kind: str, *, recorded: bool, options: tuple[str, ...] = ()) -> Launched:
    """Run a job of two ranks, which must end as it should."""
    if kind == "fsdp2" and not hasattr(stage_of_pipeline(), SCALE):
        pytest.skip("FSDP2 of torch 2.4 ends with a CUDA error where there is no GPU")
    out, runs = folder / "out", folder / "runs"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job = [str(BENCHMARKS / "sharded_job.py"), kind, "--out", str(out), "--steps", "8", *options]
    command = [warm_python(), *torchrun, *job]
    if recorded:
        command = [sys.executable, "-m", "profkit", "run", "--output", str(runs), "--", *command]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command,
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    results = [json.loads((out / f"{rank}.json").read_text("utf-8")) for rank in range(2)]
    return Launched(results, Trace.open(next(runs.iterdir())) if recorded else None)


def stage_of_pipeline() -> Any:
    return importlib.import_module("torch.distributed.pipelining.stage")._PipelineStageBase


def waits_are_seen() -> bool:
    schedules = importlib.import_module("torch.distributed.pipelining.schedules")
    return hasattr(schedules, "_wait_batch_p2p")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The recorded job of a kind, run once. It leaves its process groups open."""

    @cache
    def run(kind: str) -> Launched:
        options = ("--probe", str(PROBED_STEPS), "--leave-open")
        return launch(tmp_path_factory.mktemp(kind), kind, recorded=True, options=options)

    return run


def rows_by_step(trace: Trace, rank: int) -> dict[int, list[dict[str, Any]]]:
    steps = set(trace.steps["step"].to_pylist())
    found: dict[int, list[dict[str, Any]]] = {step: [] for step in steps}
    for row in trace.collectives.to_pylist():
        if row["rank"] == rank and row["step"] in steps:
            found[row["step"]].append(row)
    return found


@pytest.mark.parametrize("kind", ["fsdp2", "pp", *OTHER_KINDS])
def test_every_collective_has_one_row_with_its_bytes(recorded: Any, kind: str) -> None:
    made: Launched = recorded(kind)
    assert made.trace is not None
    for rank, result in enumerate(made.results):
        rows = rows_by_step(made.trace, rank)
        expected = {op: tuple(numbers) for op, numbers in result["expected"].items()}
        for step in sorted(rows)[2:]:  # a pipeline first sends the shapes of its messages
            counts = Counter(row["op"] for row in rows[step])
            size: Counter[str] = Counter()
            for row in rows[step]:
                size[row["op"]] += row["bytes"]
            assert {op: (counts[op], size[op]) for op in counts} == expected
        last = sorted(rows)[-PROBED_STEPS:]
        seen = Counter(row["op"] for step in last for row in rows[step])
        assert seen == Counter(result["probe"])


@pytest.mark.parametrize("kind", ["fsdp2", "pp", *OTHER_KINDS])
def test_rows_of_all_ranks_match(recorded: Any, kind: str) -> None:
    made: Launched = recorded(kind)
    assert made.trace is not None
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in made.trace.collectives.to_pylist():
        assert row["start_ns"] <= row["end_ns"]
        found.setdefault((row["communicator"], row["sequence"]), []).append(row)
    for rows in found.values():
        assert sorted(row["rank"] for row in rows) == [0, 1]
        assert {row["group_size"] for row in rows} == {2}
        assert len({row["bytes"] for row in rows}) == 1
        assert {row["op"] for row in rows} in ({rows[0]["op"]}, {"send", "recv"})


@pytest.mark.parametrize("kind", ["fsdp2", OTHER_KINDS[-1]])
def test_losses_are_equal_to_the_bit(recorded: Any, tmp_path: Path, kind: str) -> None:
    bare = launch(tmp_path, kind, recorded=False)
    losses = [result["losses"] for result in recorded(kind).results]
    assert losses == [result["losses"] for result in bare.results]
    assert len(losses[0]) == 8


def test_waiting_for_a_late_rank_is_exchange_and_not_forward(tmp_path: Path) -> None:
    made = launch(tmp_path, "fsdp2", recorded=True, options=("--late-ms", "30"))
    assert made.trace is not None
    spans = [row for row in made.trace.spans.to_pylist() if row["rank"] == 0 and row["step"]]
    spent: Counter[str] = Counter()
    for row in spans:
        spent[row["phase"]] += row["end_ns"] - row["start_ns"]
    steps = len({row["step"] for row in spans})
    assert spent["allreduce"] >= 0.8 * steps * 30e6


@pytest.mark.parametrize(
    ("kind", "world"), [("fsdp2", "fsdp 2"), at_night("tp", "tp 2"), ("pp", "pp 2")]
)
def test_samples_count_once_per_data_parallel_rank(recorded: Any, kind: str, world: str) -> None:
    made: Launched = recorded(kind)
    trace = made.trace
    assert trace is not None
    assert not trace.sharing.why
    summed = trace.steps.group_by("step").aggregate([("sample_count", "sum")])
    true = made.results[0]["samples_per_step"]
    assert set(summed["sample_count_sum"].to_pylist()) == {true}
    assert say_world(trace.manifest.world_size, trace.manifest.config) == f"2 ranks ({world})"


@pytest.mark.parametrize("kind", ["pp", "ddp"])
def test_the_layout_of_a_short_job_is_known(tmp_path: Path, kind: str) -> None:
    """It is described when the job ends, and by then has destroyed its groups."""
    made = launch(tmp_path, kind, recorded=True, options=("--steps", "2"))
    assert made.trace is not None
    assert not made.trace.sharing.why
    for rank in made.trace.ranks:
        assert rank.manifest is not None
        assert "parallel" in rank.manifest.config


@pytest.mark.parametrize("kind", ["pp", OTHER_KINDS[-1]])
def test_microbatches_of_the_same_batches_again_are_no_batches(tmp_path: Path, kind: str) -> None:
    made = launch(tmp_path, kind, recorded=True, options=("--again", "2"))
    assert made.trace is not None
    summed = made.trace.steps.group_by("step").aggregate([("sample_count", "sum")])
    counts = summed.sort_by("step")["sample_count_sum"].to_pylist()
    assert len(counts) == 8
    assert set(counts) == {made.results[0]["samples_per_step"]}


@pytest.mark.parametrize(
    ("kind", "dimension"),
    [at_night("dtensor", "tp"), ("fsdp2", "fsdp"), at_night("tp", "tp"), ("pp", "pp")],
)
def test_collectives_have_the_dimension_of_their_mesh(
    recorded: Any, kind: str, dimension: str
) -> None:
    made: Launched = recorded(kind)
    assert made.trace is not None
    rows = rows_by_step(made.trace, 0)
    assert {row["dimension"] for step in sorted(rows)[2:] for row in rows[step]} == {dimension}


def test_collectives_of_fsdp_have_their_module(recorded: Any) -> None:
    made: Launched = recorded("fsdp2")
    assert made.trace is not None
    rows = rows_by_step(made.trace, 1)[5]
    gathered = Counter(row["module"] for row in rows if row["op"] == "all_gather")
    reduced = Counter(row["module"] for row in rows if row["op"] == "reduce_scatter")
    assert gathered == {"(root)": 1, "blocks.0": 2, "blocks.1": 2, "blocks.2": 2}
    assert reduced == {"(root)": 1, "blocks.0": 1, "blocks.1": 1, "blocks.2": 1}


def test_messages_of_a_pipeline_have_their_microbatch(recorded: Any) -> None:
    made: Launched = recorded("pp")
    assert made.trace is not None
    for rank in range(2):
        rows = rows_by_step(made.trace, rank)[5]
        for op in ("send", "recv"):
            assert sorted(row["microbatch"] for row in rows if row["op"] == op) == [0, 1, 2, 3]


@pytest.mark.parametrize(("kind", "stages"), [("pp", 1), at_night("interleaved", 2)])
def test_each_microbatch_has_a_forward_and_a_backward(
    recorded: Any, kind: str, stages: int
) -> None:
    trace = recorded(kind).trace
    for rank in range(2):
        counts = Counter(
            row["phase"]
            for row in trace.spans.to_pylist()
            if row["rank"] == rank and row["step"] == 5 and row["depth"] == 0
        )
        losses = MICROBATCHES if rank else 0  # the last stage's
        assert counts["forward"] == stages * MICROBATCHES + losses
        scales = hasattr(stage_of_pipeline(), SCALE)
        assert counts["backward"] == stages * (MICROBATCHES + scales)


@pytest.mark.parametrize("kind", ["pp", OTHER_KINDS[-1]])
def test_dividing_a_batch_into_microbatches_is_other(recorded: Any, kind: str) -> None:
    rows = [row for row in recorded(kind).trace.spans.to_pylist() if row["step"] == 5]
    for rank in range(2):
        own = [row for row in rows if row["rank"] == rank and row["phase"] == "other"]
        names = {"microbatches", "pipeline schedule"} if waits_are_seen() else {"microbatches"}
        assert {(row["name"], row["depth"]) for row in own} == {(name, 0) for name in names}


@pytest.mark.parametrize("kind", ["pp", OTHER_KINDS[-1]])
def test_what_passes_between_the_parts_of_a_schedule_is_its_own_time(
    recorded: Any, kind: str
) -> None:
    if not waits_are_seen():
        pytest.skip("this torch has no name for waiting for messages")
    rows = [row for row in recorded(kind).trace.spans.to_pylist() if row["step"] == 5]
    for rank in range(2):
        own = [row for row in rows if row["rank"] == rank and row["depth"] == 0]
        own.sort(key=lambda row: row["start_ns"])
        names = [row["name"] for row in own]
        first = names.index("pipeline schedule")
        inside = own[first : len(names) - names[::-1].index("pipeline schedule")]
        assert {"forward", "backward"} <= {row["phase"] for row in inside}
        pairs = list(itertools.pairwise(inside))
        gaps = [after["start_ns"] - before["end_ns"] for before, after in pairs]
        assert median(gaps) < 50_000
        is_own = [row["name"] == "pipeline schedule" for row in inside]
        assert sum(is_own) >= 2 * MICROBATCHES
        # Two of them are only around the exchange of shapes, which later steps do without.
        assert sum(both == (True, True) for both in itertools.pairwise(is_own)) <= 1


@pytest.mark.parametrize("kind", ["pp", OTHER_KINDS[-1]])
def test_spans_of_a_pipeline_do_not_overlap(recorded: Any, kind: str) -> None:
    trace = recorded(kind).trace
    for rank in range(2):
        own = [
            row
            for row in trace.spans.to_pylist()
            if row["rank"] == rank and row["depth"] == 0 and row["thread"] == "MainThread"
        ]
        own.sort(key=lambda row: row["start_ns"])
        for before, after in itertools.pairwise(own):
            assert before["end_ns"] <= after["start_ns"], (before, after)


@pytest.mark.parametrize("kind", ["pp", OTHER_KINDS[-1]])
def test_phases_cover_a_pipeline_with_work(tmp_path: Path, kind: str) -> None:
    made = launch(tmp_path, kind, recorded=True, options=("--slow-ms", "5"))
    assert made.trace is not None
    costs = frame_of(made.trace).costs
    assert costs.parts[UNKNOWN].sum() <= 0.1 * costs.wall_ns.sum()
    computed = costs.parts["forward"].sum() / costs.steps
    chunks = 2 * MICROBATCHES * (2 if kind == "interleaved" else 1)
    assert computed >= 0.95 * chunks * 5e6


def test_a_schedule_that_evaluates_trains_on_no_batch() -> None:
    """`eval` of a schedule leaves gradients enabled, and computes none."""
    torch = importlib.import_module("torch")
    called: list[bool | None] = []
    notes = SimpleNamespace(begin_forward=lambda *, with_gradients: called.append(with_gradients))
    tracker = SimpleNamespace(models=[], notes=notes)
    calls = ModelCalls(cast("Any", SimpleNamespace(tracker=tracker, autocast=False)))
    model = torch.nn.Linear(1, 1)
    calls.begin(model)
    calls.begin(model, has_backward=False)
    calls.begin(model.eval(), has_backward=False)
    assert called == [True, False, None]


@pytest.mark.parametrize("trains", [True, False])
def test_messages_of_a_schedule_that_evaluates_are_no_exchange_of_training(trains: bool) -> None:
    """A schedule trains on a batch; then it trains on it again, or evaluates it."""
    sink = MemorySink()
    recorder = Recorder(sink)
    tracker = Tracker(recorder)
    seams = Seams(tracker, sink.appender("collectives"))

    def step(schedule: Any) -> None:
        recorder.keep_inner("allreduce", "recv", now_ns(), now_ns())
        seams.end(seams.begin_forward(with_gradients=schedule._has_backward))

    run = Schedules(seams).evaluate(step)
    seams.end_data(seams.begin_data(), 8)
    for has_backward in (True, trains):
        run(SimpleNamespace(_has_backward=has_backward))
        if has_backward:
            seams.end(seams.begin_backward("torch", None))
            seams.end(seams.begin_optimizer(1))
    tracker.finish()
    phases = [SpanRow(*row).phase for row in sink.rows["spans"]]
    trained = ["data", "allreduce", "forward", "backward", "optimizer"]
    assert phases == trained + (trained[1:] if trains else ["other", "other"])
    assert [StepRow(*row).sample_count for row in sink.rows["steps"]] == [8]


def test_torch_without_the_names_of_pipelines_is_left_alone(monkeypatch: Any) -> None:
    patches, log = Patches(), SimpleNamespace(recorder=None, clock=lambda: 0)
    look = hook_messages(patches, cast("Any", SimpleNamespace(log=log, microbatches={})))
    stage = type("_PipelineStageBase", (), {"forward_one_chunk": None})
    named = {"stage": SimpleNamespace(_PipelineStageBase=stage)}
    named["schedules"] = SimpleNamespace(_PipelineSchedule=object)
    for name, module in named.items():
        monkeypatch.setitem(sys.modules, f"torch.distributed.pipelining.{name}", module)
    before = vars(stage).copy()
    look()
    assert vars(stage) == before
    assert not hasattr(named["schedules"], "_batch_p2p")
    patches.undo()
