"""Windows through CUPTI give the same rows as the framework's profiler, and clean up."""

from __future__ import annotations

import functools
import operator
import re
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from profkit.errors import UsageError
from profkit.importers.window_rows import read_rows
from profkit.instrument.frameworks.base import load_framework
from profkit.instrument.guard import FAILURES, Patches
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.windows.cupti import (
    NO_DRIVER,
    CuptiKernels,
    NoCuptiError,
    find_demangler,
    load_cupti,
)
from profkit.instrument.windows.windows import WindowCapture, WindowPlan
from profkit.machine import doctor
from profkit.run import choosing, collecting
from profkit.schema import SCHEMAS
from profkit.testing import OpenStep
from tests.instrument.fake_cupti import (
    CALLS,
    FIELDS,
    ActivityKind,
    ActivityMemcpyKind,
    ActivityMemoryKind,
    FakeCupti,
)

MARGIN_S = 0.002
"""Launches are this far from their step's boundaries: the clocks are read one after the other."""


class Job:
    """A loop whose forward does what it is told to, with windows through CUPTI."""

    def __init__(self, cupti: FakeCupti, plan: str = "2:4") -> None:
        self.sink = MemorySink()
        self.recorder = Recorder(self.sink)
        self.profiled = False
        self.begins: Callable[[], None] = lambda: None
        self.waited = 0
        self.fail_to_wait = False
        self.cupti = cupti
        profiler = CuptiKernels(self._watch, load=lambda: cupti, wait=self._wait)
        kernels, samples = self.sink.appender("kernels"), self.sink.appender("samples")
        read = functools.partial(read_rows, device="cuda:0")
        self.capture = WindowCapture(
            self.recorder, WindowPlan.parse(plan), profiler, kernels, samples, read_rows=read
        )

    def _watch(self, begins: Callable[[], None]) -> Callable[[], bool]:
        self.begins = begins
        return lambda: self.profiled

    def give_way(self) -> None:
        self.begins()

    def _wait(self) -> None:
        if self.fail_to_wait:
            raise RuntimeError("no context")
        self.waited += 1

    def train(self, forward: Callable[[], object], steps: int = 6) -> list[dict[str, Any]]:
        for _ in range(steps):
            with OpenStep(self.recorder, 4), self.recorder.phase("forward"):
                if self.cupti.enabled:
                    time.sleep(MARGIN_S)
                    forward()
                    time.sleep(MARGIN_S)
        self.capture.finish()
        names = SCHEMAS["kernels"].names[1:]
        return [dict(zip(names, row, strict=True)) for row in self.sink.rows["kernels"]]


def test_kernels_have_their_step_phase_launch_and_shape() -> None:
    cupti = FakeCupti()
    job = Job(cupti)

    def forward() -> None:
        cupti.idle_call()
        cupti.launch()

    rows = job.train(forward)
    assert [row["step"] for row in rows] == [2, 3]
    for row in rows:
        assert (
            row["device"],
            row["stream"],
            row["phase"],
            row["category"],
            row["tensor_core"],
        ) == ("cuda:0", 7, "forward", "gemm", True)
        assert (row["registers"], row["shared_bytes"], row["op"]) == (96, 3_072, None)
        assert (list(row["grid"]), list(row["block"])) == ([8, 4, 1], [128, 1, 1])
        assert row["end_ns"] - row["start_ns"] == 20_000
        assert row["start_ns"] - row["launch_ns"] == 5_000, "the outer of two calls is the launch"
        assert "cutlass::Kernel" in row["name"]
    steps = {row[0]: row for row in job.sink.rows["steps"]}
    assert all(steps[row["step"]][1] <= row["launch_ns"] < steps[row["step"]][2] for row in rows)


def test_copies_fills_and_driver_launches_are_kernels_too() -> None:
    cupti = FakeCupti()

    def forward() -> None:
        cupti.copy(4_096)
        cupti.copy(512, kind=ActivityKind.MEMCPY2, copy_kind=ActivityMemcpyKind.DTOD)
        cupti.fill(64)
        cupti.launch("triton_poi_fused_add_0", through=ActivityKind.DRIVER)

    rows = Job(cupti, "2:3").train(forward)
    found = {row["category"]: row for row in rows}
    assert set(found) == {"copy to device", "copy between devices", "memset", "elementwise"}
    assert [
        found[name]["bytes"] for name in ("copy to device", "copy between devices", "memset")
    ] == [4_096, 512, 64]
    assert all(row["launch_ns"] is not None for row in rows)


def test_copies_say_from_which_memory_as_torchs_profiler_does() -> None:
    cupti = FakeCupti()

    def forward() -> None:
        cupti.copy(4_096)
        cupti.copy(4_096, source=ActivityMemoryKind.PAGEABLE)
        cupti.fill(64)

    names = {row["name"] for row in Job(cupti, "2:3").train(forward)}
    assert names == {
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy HtoD (Pageable -> Device)",
        "Memset (Device)",
    }


def test_after_a_window_nothing_is_traced_and_each_window_has_its_own() -> None:
    cupti = FakeCupti()
    job = Job(cupti, "every:2")
    rows = job.train(cupti.launch, steps=9)
    assert cupti.enabled == set()
    assert (job.waited, cupti.flushes, cupti.finalized) == (4, 4, 0)
    assert [row["step"] for row in rows] == [2, 4, 6, 8]


def test_where_the_job_profiles_itself_cupti_is_not_asked() -> None:
    cupti = FakeCupti()
    job = Job(cupti)
    job.profiled = True
    assert job.train(cupti.launch) == []
    assert cupti.flushes == 0


def test_a_profiler_that_the_job_starts_has_cupti_to_itself() -> None:
    cupti = FakeCupti()
    job = Job(cupti)
    assert job.train(job.give_way) == []
    assert (cupti.enabled, cupti.finalized) == (set(), 1)


def test_work_that_had_not_ended_is_told_of() -> None:
    cupti = FakeCupti()
    before = FAILURES["a kernel window"]
    rows = Job(cupti, "2:3").train(lambda: (cupti.launch(), cupti.launch(ended=False)))
    assert len(rows) == 1
    assert FAILURES["a kernel window"] == before + 1


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)", "something else holds CUPTI"),
        ("ERROR_NOT_INITIALIZED (15)", "the driver is older than this CUPTI"),
        ("ERROR_INSUFFICIENT_PRIVILEGES (35)", "administrators"),
        ("CUDA driver is not found (libcuda.so.1)", NO_DRIVER),
        ("ERROR_UNKNOWN (999)", "CUPTI does not start: ERROR_UNKNOWN"),
    ],
)
def test_a_refusal_says_why_and_costs_the_windows_alone(
    refusal: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = FAILURES.pop("kernel windows", 0)
    job = Job(FakeCupti(refusal), "every:2")
    assert job.train(lambda: None) == []
    assert len(job.sink.rows["steps"]) == 6
    assert FAILURES["kernel windows"] == 1, "it is asked once"
    assert words in caplog.text
    FAILURES["kernel windows"] += before


def test_what_was_switched_on_before_a_refusal_is_switched_off() -> None:
    cupti = FakeCupti("ERROR_INVALID_KIND (21)", admits=3)
    before = FAILURES["kernel windows"]
    assert Job(cupti, "every:2").train(lambda: None) == []
    assert cupti.enabled == set()
    assert FAILURES["kernel windows"] == before + 1


def test_a_device_that_cannot_be_waited_for_is_traced_no_longer() -> None:
    cupti = FakeCupti()
    job = Job(cupti, "every:2")
    job.fail_to_wait = True
    before = FAILURES["kernel windows"]
    assert job.train(cupti.launch) == []
    assert cupti.enabled == set()
    assert FAILURES["kernel windows"] == before + 1


def test_a_record_that_cannot_be_read_raises_nothing_into_cupti() -> None:
    cupti = FakeCupti()
    before = FAILURES["the reading of CUPTI's records"]

    def forward() -> None:
        cupti.launch()
        del cupti._records[-1].grid_x

    Job(cupti, "2:3").train(forward)
    assert FAILURES["the reading of CUPTI's records"] == before + 1


def test_names_of_cpp_are_readable_and_others_stay() -> None:
    plain = find_demangler()
    assert plain("_ZN2at6native4fillEv") == "at::native::fill()"
    assert plain("triton_poi_fused_0") == "triton_poi_fused_0"
    assert plain("_Z") == "_Z"


def test_the_real_package_has_what_is_read_of_it() -> None:
    bindings = pytest.importorskip(
        "cupti.cupti", reason="cupti-python is not installed; pip install 'profkit[cupti]'"
    )
    for name, fields in FIELDS.items():
        generations = [
            getattr(bindings, each) for each in dir(bindings) if re.fullmatch(rf"{name}\d*", each)
        ]
        assert generations, name
        assert all(set(fields.split()) <= set(dir(each)) for each in generations), name
    assert set(CALLS.split()) <= set(dir(bindings))
    for fake in (ActivityKind, ActivityMemcpyKind, ActivityMemoryKind):
        assert {each.name: int(each) for each in fake} == {
            each.name: int(getattr(bindings, fake.__name__)[each.name]) for each in fake
        }


def test_without_the_package_the_message_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cupti", None)
    monkeypatch.delitem(sys.modules, "cupti.cupti", raising=False)
    with pytest.raises(NoCuptiError, match="pip install"):
        load_cupti()


@pytest.mark.parametrize(
    ("framework", "seam"),
    [
        ("torch", "autograd.profiler.profile._prepare_trace"),
        ("paddle", "profiler.Profiler.__init__"),
    ],
)
def test_a_framework_tells_when_the_job_profiles_itself(
    framework: str, seam: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, _, name = seam.rpartition(".")
    owner = operator.attrgetter(where)(pytest.importorskip(framework))
    told: list[str] = []
    monkeypatch.setattr(owner, name, lambda profiler: told.append("the profiler begins"))
    patches = Patches()
    is_profiling = load_framework(framework).watch_profiler(
        patches, lambda: told.append("we have ended")
    )
    assert not is_profiling()
    getattr(owner, name)(object())
    patches.undo()
    getattr(owner, name)(object())
    assert told == ["we have ended", "the profiler begins", "the profiler begins"]


def test_a_job_that_chose_cupti_watches_its_framework() -> None:
    sink = MemorySink()
    choice = choosing.Choice.parse("none", "3:5", operators=False, source="cupti")
    watched: list[object] = []

    def watch(patches: Patches, begins: Callable[[], None]) -> Callable[[], bool]:
        watched.append(begins)
        return lambda: False

    framework: Any = SimpleNamespace(watch_profiler=watch)
    collecting.Collecting(
        choice, Recorder(sink), framework, sink.appender("kernels"), sink.appender("samples")
    ).stop()
    assert len(watched) == 1


def test_the_source_is_chosen_and_handed_on() -> None:
    assert (
        choosing.Choice.read({"PROFKIT_KERNELS": "3:5", "PROFKIT_KERNELS_FROM": "cupti"}).source
        == choosing.CUPTI
    )
    assert choosing.Choice.read({"PROFKIT_KERNELS": "3:5"}).source == choosing.PROFILER
    with pytest.raises(UsageError, match="--ops"):
        choosing.Choice.parse("", "3:5", operators=True, source="cupti")
    with pytest.raises(UsageError, match="--kernels-from: unknown choice"):
        choosing.Choice.parse("", "3:5", operators=False, source="nsys")


@pytest.mark.parametrize(
    ("found", "state", "why", "helps"),
    [
        ({"version": "13.2.0"}, doctor.WORKS, "", ""),
        (
            {"error": "ModuleNotFoundError: No module named 'cupti'"},
            doctor.CANNOT,
            "not installed",
            "profkit[cupti]",
        ),
        (
            {"error": "ModuleNotFoundError: No module named 'cuda'"},
            doctor.CANNOT,
            "does not start: ModuleNotFoundError: No module named 'cuda'",
            "",
        ),
        (
            {"error": "cupti._internal.utils.NotSupportedError: CUDA driver is not found"},
            doctor.CANNOT,
            "no NVIDIA driver",
            "--gpus all",
        ),
        (
            {"error": "cupti.cupti.cuptiError: ERROR_NOT_INITIALIZED (15)"},
            doctor.CANNOT,
            "older",
            "update the driver",
        ),
        (
            {"error": "cupti.cupti.cuptiError: ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"},
            doctor.CANNOT,
            "nsys",
            "--kernels-from profiler",
        ),
    ],
)
def test_the_doctor_says_whether_it_can_be_used(
    found: dict[str, str], state: str, why: str, helps: str
) -> None:
    finding = doctor.cupti(found)
    assert (finding.state, why in finding.why, helps in finding.help) == (state, True, True)


def test_a_window_without_work_is_told_of_and_costs_nothing() -> None:
    before = FAILURES["the reading of a kernel window"]
    job = Job(FakeCupti(), "2:3")
    assert job.train(lambda: None) == []
    assert FAILURES["the reading of a kernel window"] == before + 1
