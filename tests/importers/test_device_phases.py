"""Phases of imported traces are where the device was in them, next to the host's launch times."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.analysis.overview import build_overview
from profkit.explain.explained import explain
from profkit.explain.ledger import Verdict
from profkit.frame.device_clock import exposed_spans
from profkit.frame.run_frame import frame_of
from profkit.importers.kineto import IMPORTER
from profkit.importers.kineto.steps import FROM_KERNELS, FROM_LOADER, NOT_MARKED, find_period_starts
from profkit.trace import Trace
from tests.documents import report_text
from tests.importers.conftest import (
    BASE_US,
    Event,
    Import,
    host,
    kernel,
    two_steps,
    us,
    write_trace,
)

BASE_NS = BASE_US * 1000


def spans_of(run: Path, step: int) -> list[tuple[str, str, int, int | None, int | None]]:
    found = []
    for span in Trace.open(run).spans.to_pylist():
        if span["step"] == step:
            times = [span["device_start_ns"], span["device_end_ns"]]
            shown = [None if time is None else time - BASE_NS for time in times]
            found.append((span["phase"], span["name"], span["depth"], *shown))
    return found


def test_phases_have_the_devices_times_and_exposed_communication_is_one(
    tmp_path: Path, import_files: Import
) -> None:
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "job.json", two_steps()))
    assert spans_of(made.run, 4) == [
        ("data", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, None, None),
        ("forward", "forward", 0, 140_125, 240_625),
        ("backward", "backward", 0, 330_125, 480_125),
        ("optimizer", "Optimizer.step#SGD.step", 0, 720_125, 730_125),
        ("allreduce", "exposed", 0, 480_125, 600_125),
    ]


def launched_exchange() -> list[Event]:
    """Two steps whose collective has a launch, which the next phase's kernel overlaps."""
    events = two_steps()
    for step in range(2):
        at, number = step * 1000, step * 10 + 3
        launch = host("cuda_runtime", "cudaLaunchKernelExC", us(f"{at + 395}.125"), "4")
        launch["args"] = {"correlation": number}
        events.append(launch)
    return events


def test_exposed_communication_is_what_no_kernel_overlaps(
    tmp_path: Path, import_files: Import
) -> None:
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "job.json", launched_exchange()))
    trace = Trace.open(made.run)
    exposed = [span for span in spans_of(made.run, 4) if span[0] == "allreduce"]
    assert exposed == [("allreduce", "exposed", 0, 480_125, 600_125)]
    costs = frame_of(trace).costs
    assert costs.parts["allreduce"].tolist() == [120_000, 120_000]
    assert costs.parts["backward"].tolist() == [150_000, 150_000]
    view = build_overview(trace)
    assert view.exchange is not None
    (rank,) = view.exchange.ranks
    assert (rank.exposed_ns, rank.hidden_ns) == (120_000, 80_000)
    text = " ".join(report_text(view).split())
    assert "Communication: 120 us per step exposed, 80.0 us hidden by compute." in text


def random_trace(seed: int) -> list[Event]:
    """Regions in regions that launch kernels and collectives on two streams, late by chance."""
    chance = np.random.default_rng(seed)
    events: list[Event] = []
    free = {7: 0, 9: 0}
    for step in range(3):
        at = step * 1_000
        events.append(host("user_annotation", f"ProfilerStep#{step}", us(str(at)), "1000"))
        for place, name in enumerate(("forward", "backward", "my region", "Optimizer.step#A")):
            begin = at + 10 + place * 240
            events.append(host("user_annotation", name, us(str(begin)), "230"))
            events.append(host("user_annotation", "h2d inside", us(str(begin + 100)), "60"))
            for call in range(12):
                number = len(events)
                launched = begin + 2 + call * 18
                stream = 9 if chance.random() < 0.3 else 7
                start = max(free[stream], launched + int(chance.integers(2, 80)))
                length = int(chance.integers(1, 60 if stream == 9 else 16))
                free[stream] = start + length
                work = "ncclDevKernel_AllReduce_Sum" if stream == 9 else "sgemm"
                more = {"stream": stream}
                events.append(host("cuda_runtime", "cudaLaunchKernel", us(str(launched)), "1"))
                events[-1]["args"] = {"correlation": number}
                events.append(kernel(work, us(str(start)), str(length), number, **more))
    return events


@pytest.mark.parametrize("seed", range(8))
def test_phases_and_exposed_communication_never_overlap(
    seed: int, tmp_path: Path, import_files: Import
) -> None:
    """Each moment of the device is in one phase at most, and exposed communication adds up."""
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "job.json", random_trace(seed)))
    trace = Trace.open(made.run)
    rows = exposed_spans(trace.spans).to_pylist()
    outer = sorted((row["start_ns"], row["end_ns"]) for row in rows if row["depth"] == 0)
    assert all(end <= start for (_, end), (start, _) in pairwise(outer))
    kernels = trace.kernels.to_pylist()
    computing: set[int] = set()
    exchanging: set[int] = set()
    for row in kernels:
        own = exchanging if row["category"] == "communication" else computing
        own |= set(range(row["start_ns"] // 1000, row["end_ns"] // 1000))
    costs = frame_of(trace).costs
    exposed = 1000 * len(exchanging - computing)
    assert exposed > 0
    assert int(costs.parts["allreduce"].sum()) == exposed
    for step in trace.steps["step"].to_pylist():
        assert sum(int(part[step]) for part in costs.parts.values()) == 1_000_000


# ---- steps that nothing marks ----


def unmarked(steps: int, layers: int = 4) -> list[Event]:
    """The kernels of a model of some layers, called again and again."""
    events: list[Event] = []
    names = ["embed", *["norm", "attn", "mm"] * layers, "head", "loss", "update"]
    time = 0
    for _ in range(steps):
        time += 500
        for name in names:
            number = len(events)
            events.append(host("cuda_runtime", "cudaLaunchKernel", us(str(time)), "2"))
            events[-1]["args"] = {"correlation": number}
            events.append(kernel(name, us(str(time + 5)), "8", number))
            time += 10
    return events


def test_steps_are_found_by_the_kernels_that_repeat(tmp_path: Path, import_files: Import) -> None:
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "job.json", unmarked(6)))
    assert FROM_KERNELS in made.flags
    steps = Trace.open(made.run).steps.to_pylist()
    lengths = {row["end_ns"] - row["start_ns"] for row in steps}
    assert (len(steps), lengths) == (5, {660_000}), "the last period has no end"
    assert steps[0]["start_ns"] - BASE_NS == 500_000


def test_layers_are_no_steps(tmp_path: Path, import_files: Import) -> None:
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "job.json", unmarked(1, layers=40)))
    assert NOT_MARKED in made.flags
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "two.json", unmarked(2, layers=40)))
    assert NOT_MARKED in made.flags


def test_a_sequence_that_does_not_repeat_has_no_periods() -> None:
    chance = np.random.default_rng(1)
    for length in (0, 1, 7, 500):
        names = chance.integers(0, 30, length)
        assert not len(find_period_starts(names, np.arange(length)))


def test_loader_calls_that_are_operators_make_steps(tmp_path: Path, import_files: Import) -> None:
    """Files of torch 1.8 have them so."""
    events = []
    for event in two_steps():
        if event["name"].startswith("ProfilerStep"):
            continue
        if event["cat"] == "user_annotation":
            event["cat"] = "cpu_op"
        events.append(event)
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "job.json", events))
    assert FROM_LOADER in made.flags
    assert made.rows["steps"] == 2


def test_inference_calls_are_steps_by_their_annotation(
    tmp_path: Path, import_files: Import
) -> None:
    events = []
    for call in range(5):
        events.append(host("user_annotation", "generate", us(str(call * 100)), "90"))
        events.append(host("user_annotation", "nccl:all_reduce", us(str(call * 100 + 5)), "2"))
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "job.json", events))
    assert made.rows["steps"] == 5
    assert any("the annotation generate" in flag for flag in made.flags)


# ---- two traces of one job ----


def job(steps: int, extra: int = 0, seed: int = 0) -> list[Event]:
    """Steps of a kernel each; every one takes `extra` nanoseconds longer."""
    chance = np.random.default_rng(seed)
    events: list[Event] = []
    time = 0
    for step in range(steps):
        compute = 20_000_000 + int(chance.integers(0, 100_000)) + extra
        whole = compute + 1_000_000
        begin, length = f"{time // 1000}.{time % 1000:03}", f"{whole // 1000}.{whole % 1000:03}"
        duration = f"{compute // 1000}.{compute % 1000:03}"
        events.append(host("user_annotation", f"ProfilerStep#{step}", us(begin), length))
        events.append(host("user_annotation", "forward", us(begin), "900"))
        events.append(host("cuda_runtime", "cudaLaunchKernel", us(begin), "5", correlation=step))
        events.append(kernel("sgemm", us(begin), duration, step))
        time += whole
    return events


@pytest.mark.parametrize("steps", [3, 5, 7, 32])
def test_traces_of_other_names_are_compared(
    steps: int, tmp_path: Path, import_files: Import
) -> None:
    def load(name: str, **more: Any) -> Trace:
        path = write_trace(tmp_path / f"{name}.json", job(steps, **more))
        return Trace.open(import_files(IMPORTER, path, name=f"run-{name}")[0].run)

    before = load("before")
    assert before.name == "run-before"
    assert explain(before, load("after")).ledger.verdict is Verdict.NEUTRAL
    assert explain(before, load("again", seed=1)).ledger.verdict is Verdict.NEUTRAL
    slower = explain(before, load("slower", extra=3_000_000)).ledger
    assert slower.verdict is Verdict.REGRESSION
    assert slower.total.delta.value == pytest.approx(3_000_000)
    forward = slower.find("forward")
    assert forward is not None
    assert forward.delta.value == pytest.approx(3_000_000)


def test_one_step_is_a_plain_before_and_after(tmp_path: Path, import_files: Import) -> None:
    runs = []
    for name, extra in (("before", 0), ("after", 3_000_000)):
        path = write_trace(tmp_path / f"{name}.json", job(1, extra))
        runs.append(Trace.open(import_files(IMPORTER, path)[0].run))
    ledger = explain(runs[0], runs[1]).ledger
    assert ledger.verdict is Verdict.CANNOT_JUDGE
    assert ledger.total.delta.value == pytest.approx(3_000_000)
