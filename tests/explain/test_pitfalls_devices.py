"""Pitfalls of reading traces of devices, by their number in an outside checklist.

Each test asks a report of a trace in which a naive reading errs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.overview import build_overview
from profkit.explain.explained import explain
from profkit.frame.run_frame import frame_of
from profkit.importers.base import Importer, ImportOptions, Target
from profkit.importers.kineto import IMPORTER
from profkit.importers.nsys import IMPORTER as NSYS_IMPORTER
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from tests.documents import report_json, report_text
from tests.importers.conftest import Event, host, kernel, us, write_trace
from tests.importers.test_nsys import export

TRACES = Path(__file__).parents[2] / "traces"
STEPS = 12
ALL_REDUCE = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 2,
    "dtype": "Float",
    "Process Group Name": "0",
}

Imported: TypeAlias = Callable[[Sequence[Event]], Trace]


def steps_of_job(
    *,
    length: int = 1000,
    every: int = 1000,
    backward: str = "sgemm_nt",
    at: int = 330,
    is_launched: bool = True,
    waits: tuple[int, int] | None = None,
) -> list[Event]:
    """Return steps in us: forward 130-330, backward 300 from `at` on, all-reduce 600-700.

    Steps of `length` begin `every` so many us. `waits` is a synchronisation by the host.
    """
    events: list[Event] = []
    for step in range(STEPS):
        number, begin = step * 10, step * every

        def when(offset: int, begin: int = begin) -> str:
            return us(f"{begin + offset}.0")

        def call(offset: int, correlation: int, tid: int = 11) -> Event:
            return host("cuda_runtime", "cudaLaunchKernel", when(offset), "5", tid,
                        correlation=correlation)  # fmt: skip

        loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        grad = "autograd::engine::evaluate_function: MmBackward0"
        exchange = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        events += [
            host("user_annotation", f"ProfilerStep#{step}", when(0), str(length)),
            host("user_annotation", loader, when(0), "100"),
            host("cpu_op", "aten::mm", when(110), "60"),
            call(120, number + 1),
            kernel("sgemm_nt", when(130), "200", number + 1),
            host("cpu_op", grad, when(200), "200", tid=12),
            call(220, number + 2, tid=12),
            kernel(backward, when(at), "300", number + 2, stream=8),
            kernel(exchange, when(600), "100", number + 3, stream=9, **ALL_REDUCE),
            host("user_annotation", "Optimizer.step#SGD.step", when(700), "100"),
            call(710, number + 4),
            kernel("multi_tensor_apply_kernel", when(720), "50", number + 4),
        ]
        if is_launched:
            events.append(call(230, number + 3, tid=12))
        if waits:
            length_of_wait = str(waits[1] - waits[0])
            wait = host("cuda_runtime", "cudaStreamSynchronize", when(waits[0]), length_of_wait)
            events.append(wait)
    return events


def import_one(importer: Importer, path: Path) -> Trace:
    (made,) = importer.read([path], Target(path.with_suffix(".runs"), ImportOptions()))
    return Trace.open(made.run)


@pytest.fixture
def imported(tmp_path: Path) -> Imported:
    """Return a function that imports the events of one rank."""
    return lambda events: import_one(IMPORTER, write_trace(tmp_path / "job.json", list(events)))


def device_of(trace: Trace) -> dict[str, Any]:
    """Return what a report says of the only device, per step and in us."""
    (device,) = report_json(build_overview(trace))["device_time"]["devices"]
    times = {name: value for name, value in device.items() if name.endswith("_ns")}
    used = len(frame_of(trace).selection.steps)
    return {name: (value or 0) / used / 1000 for name, value in times.items()}


def parts_of(trace: Trace) -> dict[str, float]:
    """Return a step's phases in us, by their names."""
    phases = report_json(build_overview(trace))["phases"]
    return {each["phase"]: round(each["step_ms"]["value"] * 1000, 3) for each in phases}


def words_of(trace: Trace) -> str:
    return " ".join(report_text(build_overview(trace)).split())


def test_kernels_of_two_streams_are_counted_once(imported: Imported) -> None:
    """1: 500 us of kernels take 400 us, and the phases add up to the step."""
    trace = imported(steps_of_job(at=230))
    assert device_of(trace)["compute_ns"] == pytest.approx(400 + 50)
    assert sum(parts_of(trace).values()) == pytest.approx(1000)


def test_the_length_of_a_collective_that_one_rank_shows_may_be_waiting(imported: Imported) -> None:
    """5: the other rank of the group is in no file."""
    words = words_of(imported(steps_of_job()))
    assert "It is not known who waits" in words
    assert "1 rank of 2 recorded them: transfer may include waiting for the others." in words


def test_calls_with_one_id_are_counted(imported: Imported) -> None:
    """8: a reused id may join work with the call of other work, which is said."""
    again = host("cuda_runtime", "cudaLaunchKernel", us("900"), "5", correlation=1)
    words = words_of(imported([*steps_of_job(), again]))
    assert "id with another: launches of their kernels may be wrong" in words


def test_a_timestamp_of_zero_is_no_time(imported: Imported) -> None:
    """9: a kernel in 1970 makes no window of 50 years."""
    trace = imported([*steps_of_job(), kernel("sgemm_nt", "0", "10", 999)])
    assert device_of(trace)["window_ns"] == pytest.approx(1000)
    assert "dropped 1 events with a timestamp of zero" in words_of(trace)


@pytest.mark.parametrize(("until", "idle"), [(690, 0), (715, 20)])
def test_the_host_may_wait_while_the_device_computes(
    until: int, idle: int, imported: Imported
) -> None:
    """10: a wait of half a step costs the time for which nothing runs because of it."""
    found = device_of(imported(steps_of_job(waits=(250, until))))
    assert found["idle_after_synchronisation_ns"] == idle
    assert found["busy_ns"] == 620


@pytest.mark.parametrize(("name", "category"), [("zorg_42", "other"), ("fused_gemm_relu", "gemm")])
def test_a_kernel_keeps_its_name_and_counts_once(
    name: str, category: str, imported: Imported
) -> None:
    """19: a name without a category says so, and fused work is one kernel of one category."""
    trace = imported(steps_of_job(backward=name))
    groups = report_json(build_overview(trace))["kernels_by_name"]["groups"]
    assert [(each["name"], each["category"]) for each in groups][:1] == [(name, category)]
    assert sum(each["ns_per_step"] for each in groups) == pytest.approx(650_000)
    said = "The names of 46.2 % of the time say no category." in words_of(trace)
    assert said is (category == "other")


@pytest.mark.parametrize("is_launched", [True, False])
def test_kernels_without_a_launch_count(is_launched: bool, imported: Imported) -> None:
    """20: what a graph launched is work as any other: its communication is exposed."""
    trace = imported(steps_of_job(is_launched=is_launched))
    assert parts_of(trace)["allreduce"] == pytest.approx(70)
    (rank,) = report_json(build_overview(trace))["exchange"]["rows"]
    assert (rank["exposed_ms"], rank["hidden_ms"]) == pytest.approx((0.07, 0.03))


def test_clocks_of_hosts_need_not_agree(tmp_path: Path) -> None:
    """21: who is late follows from durations, with clocks that are 50 ms apart."""
    path = synthetic_trace(tmp_path / "run", ranks=16, steps=60, rank_phase_ns={3: LATE})
    before = report_json(build_overview(Trace.open(path)))["exchange"]
    for rank in Trace.open(path).ranks[8:]:
        manifest = rank.folder / "rank.json"
        anchor = rank.manifest.anchor.realtime_ns
        manifest.write_text(manifest.read_text().replace(str(anchor), str(anchor + 50_000_000)))
    after = report_json(build_overview(Trace.open(path)))["exchange"]
    assert after == before
    assert after["late_rank"]["rank"] == 3


LATE = {"forward": 20_000_000}


def test_captured_steps_are_slower_and_in_no_figure_of_others() -> None:
    """22: kernels cost; the report leaves their steps out, and says by how much they differ."""
    trace = Trace.open(TRACES / "recorded-h200-images-kernels")
    assert report_json(build_overview(trace))["steps_left_out"]["kernel window"] == 4
    words = words_of(trace)
    assert "the steps whose kernels were captured, which are slower than others" in words
    assert "4 steps excluded from the figures, which took 3.41 times as long" in words


def test_time_between_steps_is_in_no_figure(tmp_path: Path) -> None:
    """23: whoever marks steps without the wait for data has shorter steps, and a slower job."""
    runs = []
    for name, length in (("whole", 1400), ("part", 1000)):
        path = write_trace(tmp_path / f"{name}.json", steps_of_job(length=length, every=1400))
        runs.append(import_one(IMPORTER, path))
    words = "28.6 % of the time is between steps, and in no figure of a step"
    assert [words in words_of(run) for run in runs] == [False, True]
    assert f"part: {words}" in explain(runs[0], runs[1]).caveats


def test_a_share_of_the_peak_is_of_the_kernels_own_precision(tmp_path: Path) -> None:
    """24: work of Tensor Cores is compared with the ceiling of the run's precision."""
    ceilings = Ceilings(matrix_flops_per_s={"fp32": 1e13, "tf32": 2e13, "bf16": 8e13})
    shares = []
    for precision in ("fp32", "bf16"):
        config = {"precision": precision}
        path = tmp_path / precision
        synthetic_trace(path, steps=20, kernels_per_step=20, device="cuda", config=config)
        view = build_overview(Trace.open(path), ceilings)
        groups = report_json(view)["kernels_by_name"]["groups"]
        shares.append({each["name"]: each["ceiling_share"] for each in groups})
    (tensor,) = [name for name in shares[0] if "f16f16" in name]
    (plain,) = [name for name in shares[0] if "sgemm" in name]
    assert shares[0][tensor] == pytest.approx(4 * shares[1][tensor])
    assert shares[0][plain] == pytest.approx(shares[1][plain])


def test_ids_of_names_are_those_of_one_file(tmp_path: Path) -> None:
    """16: another export numbers its names otherwise, and has the same kernels."""
    found = []
    for shift in (0, 100):
        path = export(tmp_path / f"{shift}.sqlite")
        base = sqlite3.connect(path)
        for table, columns in NAMES.items():
            for column in columns:
                base.execute(f"UPDATE {table} SET {column} = {column} + {shift}")
        base.commit()
        base.close()
        rows = import_one(NSYS_IMPORTER, path).kernels
        found.append(rows.select(["name", "category", "step", "op"]).to_pylist())
    assert found[0] == found[1]
    assert {row["category"] for row in found[0]} == {"gemm", "communication", "copy to device"}


NAMES = {
    "StringIds": ("id",),
    "CUPTI_ACTIVITY_KIND_KERNEL": ("demangledName", "shortName"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("nameId",),
    "NVTX_EVENTS": ("textId",),
}
