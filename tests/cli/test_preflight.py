"""What stops work on a machine is said before the work starts, with stand-ins for the machine."""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profkit.analysis import kept_ceilings
from profkit.analysis.ceilings import Ceilings
from profkit.cli import main
from profkit.collectors._nvml_door import Door
from profkit.commands import _preflight
from profkit.errors import UsageError
from profkit.machine import ceilings, ceilings_cupy, ceilings_torch, doctor, preflight
from profkit.machine.preflight import Build, Driver
from tests.collectors.fake_nvml import FakeGpu, FakeNvml

V100 = Driver((12, 4), ((70, "Tesla V100"),))
H100 = Driver((13, 0), ((90, "NVIDIA H100"),))
OLD_DRIVER = Driver((12, 4), ((90, "NVIDIA H100"),))
TORCH = Build("torch", "2.15.0+cu132", "13.2")
TORCH_CPU = Build("torch", "2.15.0+cpu", "")
TORCH_128 = Build("torch", "2.10.0+cu128", "12.8")
TORCH_129 = Build("torch", "2.11.0+cu129", "12.9")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the machine and its packages, which a test may change."""
    found: dict[str, Any] = {"driver": None, "build": TORCH, "dali": "", "lacks_bf16": False}
    monkeypatch.setattr(preflight, "read_driver", lambda: found["driver"])
    monkeypatch.setattr(preflight, "read_build", lambda framework: found["build"])
    monkeypatch.setattr(preflight, "find_dali", lambda: found["dali"])
    monkeypatch.setattr(preflight, "lacks_bf16", lambda: found["lacks_bf16"])
    return found


@pytest.mark.parametrize(
    ("build", "driver", "words"),
    [
        (TORCH_129, V100, "torch 2.11.0+cu129 for CUDA 12.9 has no kernels for Tesla V100 (sm_70)"),
        (TORCH, V100._replace(cuda=(13, 0)), "profkit[volta]"),
        (TORCH, OLD_DRIVER, "it knows CUDA 12.4, and this build is for CUDA 13.2"),
        (TORCH_CPU, H100, "was built without CUDA and cannot use NVIDIA H100"),
        (Build("paddle", "3.3.1", "13.0"), V100._replace(cuda=(13, 0)), "a build for CUDA 12"),
    ],
)
def test_what_a_build_cannot_use_has_a_reason(build: Build, driver: Driver, words: str) -> None:
    problem = preflight.find_problem(build, driver)
    assert problem is not None
    assert words in str(problem)


@pytest.mark.parametrize(
    ("build", "driver"),
    [
        (TORCH, H100),
        (TORCH_128, V100),
        (TORCH_128, OLD_DRIVER),  # a driver of the same major version is new enough
        (TORCH, Driver((13, 0), ())),
        (TORCH, None),
        (None, H100),
    ],
)
def test_what_a_build_can_use_has_none(build: Build | None, driver: Driver | None) -> None:
    assert preflight.find_problem(build, driver) is None


def test_the_driver_is_read() -> None:
    gpu = FakeGpu()
    gpu.answers |= {"nvmlDeviceGetCudaComputeCapability": (7, 0), "nvmlDeviceGetName": 100}
    library = FakeNvml(gpu)
    library.nvmlSystemGetCudaDriverVersion = lambda: 12040  # type: ignore[attr-defined]
    driver = preflight.read_driver(Door(lambda: library))
    assert driver == Driver((12, 4), ((70, "100"),))
    assert preflight.read_driver(Door(lambda: FakeNvml(init="LIBRARY_NOT_FOUND"))) is None


def test_the_installed_build_is_read_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError")
    version = "__version__ = '2.10.0+cu128'\ncuda: str | None = '12.8'\nhip: str | None = None\n"
    (package / "version.py").write_text(version)
    place = SimpleNamespace(submodule_search_locations=[str(package)])
    monkeypatch.setattr(util, "find_spec", lambda name: place)
    assert preflight.read_build("torch") == TORCH_128
    (package / "version.py").write_text("__version__ = '2.10.0+cpu'\ncuda: str | None = None\n")
    assert preflight.read_build("torch") == Build("torch", "2.10.0+cpu", "")


@pytest.mark.parametrize("verb", ["trace", "bench"])
def test_work_on_a_gpu_that_would_fail_does_not_start(
    verb: str,
    machine: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine["driver"] = V100._replace(cuda=(13, 0))
    monkeypatch.setattr("profkit.commands._places.visible_gpus", lambda: (1, ""))
    assert main([verb, "resnet50", "--gpus", "1"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "has no kernels for Tesla V100 (sm_70)" in said


def _check(**options: Any) -> None:
    usual: dict[str, Any] = {"gpus": None, "on_cpu": False, "amp": False, "dali": False}
    _preflight.check_machine(["torch"], **(usual | options))


def test_a_gpu_that_is_not_seen_is_one_line(
    machine: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    machine["driver"] = OLD_DRIVER
    _check()
    assert capsys.readouterr().err.endswith("; this trains on the CPU\n")
    _check(on_cpu=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("rates", "words"), [({}, "ceilings"), ({"fp32": 4e11, "bf16": 5e10}, "8.0 times")]
)
def test_bf16_that_a_processor_emulates_is_one_line(
    rates: dict[str, float],
    words: str,
    machine: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine["lacks_bf16"] = True
    known = Ceilings("cpu", "torch", rates, 1.0)
    monkeypatch.setattr(kept_ceilings, "load_ceilings", lambda environment: known)
    _check(amp=True)
    said = capsys.readouterr().err
    assert said.startswith("profkit: this processor has no instructions for bf16")
    assert words in said
    machine["driver"] = H100
    _check(amp=True)
    assert capsys.readouterr().err == ""


def test_the_instructions_of_a_processor_are_read(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    for line, lacks in (
        ("flags\t\t: fpu avx2 avx512f", True),
        ("flags\t\t: fpu avx512_bf16", False),
        ("Features\t: fp asimd bf16", False),
        ("model", False),
    ):
        cpuinfo.write_text(line + "\n")
        assert preflight.lacks_bf16(cpuinfo) is lacks
    assert not preflight.lacks_bf16(tmp_path / "missing")


@pytest.mark.parametrize(
    ("driver", "words"),
    [(V100._replace(cuda=(13, 0)), "nothing for Tesla V100"), (OLD_DRIVER, "driver is too old")],
)
def test_dali_without_this_device_does_not_start(
    driver: Driver, words: str, machine: dict[str, Any]
) -> None:
    machine |= {"driver": driver, "build": TORCH_128, "dali": "nvidia-dali-cuda130"}
    with pytest.raises(UsageError, match=words):
        _check(dali=True)
    machine["dali"] = "nvidia-dali-cuda120"
    _check(dali=True)


def test_the_ceilings_of_a_gpu_are_measured_without_cupys_libraries(
    machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Ceilings("cpu", "torch", {}, 1.0)

    def fail(*_: object) -> None:
        raise ImportError("libcublas.so.12: cannot open shared object file")

    monkeypatch.setattr(util, "find_spec", lambda name: True)
    monkeypatch.setattr(ceilings_cupy, "measure", fail)
    monkeypatch.setattr(ceilings_torch, "measure", lambda *_: measured)
    machine["driver"] = H100
    said: list[str] = []
    assert ceilings.measure_device(said.append) is measured
    assert said == ["CuPy cannot measure this GPU: libcublas.so.12: cannot open shared object file"]


def test_the_ceilings_of_a_gpu_without_kernels_are_the_processors(
    machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings_cupy, "measure", lambda *_: None)
    machine["driver"] = V100._replace(cuda=(13, 0))
    measured = Ceilings("cpu", "numpy", {}, 1.0)
    monkeypatch.setattr(ceilings, "measure_numpy", lambda: measured)
    said: list[str] = []
    assert ceilings.measure_device(said.append) is measured
    assert len(said) == 1
    assert said[0].endswith("this measures the processor")


def test_a_job_of_this_environment_starts_with_the_line(
    machine: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    machine["driver"] = OLD_DRIVER
    _preflight.look_at_job(sys.executable)
    assert "the driver is too old for torch" in capsys.readouterr().err
    _preflight.look_at_job("sh")
    assert capsys.readouterr().err == ""


def test_tasks_that_record_a_run_each_are_told_how_to_record_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks that Slurm starts as tasks left a run for each rank, and nobody said so."""
    monkeypatch.setenv("SLURM_NTASKS", "8")
    for task, said in (("0", "8 tasks of a launcher record a run each"), ("3", "")):
        monkeypatch.setenv("SLURM_PROCID", task)
        _preflight.look_at_job("sh")
        assert (said in (words := capsys.readouterr().err), bool(words)) == (True, bool(said))


def test_the_doctor_says_the_same() -> None:
    sees_none = {"version": "2.15.0+cu132", "cuda": "13.2", "built": [], "devices": []}
    torch = doctor._framework("torch", sees_none, OLD_DRIVER)
    assert (torch.state, "it knows CUDA 12.4" in torch.why) == (doctor.PARTLY, True)
    assert doctor.bf16(lacks_it=True).state == doctor.PARTLY
    cupy = doctor.cupy({"error": "ImportError: libcublas.so.12: cannot open shared object file"})
    assert (cupy.state, "libcublas" in cupy.why) == (doctor.CANNOT, True)
    missing = doctor.modules_in_c(["profkit.instrument._calls"])
    assert (missing.state, "_calls are missing" in missing.why) == (doctor.PARTLY, True)
