"""Findings of the doctor: what does not work has a reason, and most have a remedy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from profkit.collectors._nvml_door import Door
from profkit.collectors.nvml import NvmlCollector
from profkit.eye.memory import ForbiddenError, Memory
from profkit.machine import doctor, probes
from profkit.plugins import COLLECTORS
from profkit.report.machine_sections import examination
from profkit.show.text import sections
from profkit.text import WIDTH
from tests.cli.conftest import Command
from tests.collectors.fake_nvml import WORKING, FakeGpu, FakeNvml

NO_GPU = {
    "version": "2.15",
    "cuda": "13.2",
    "built": ["sm_75", "sm_90"],
    "devices": [],
    "nccl": True,
}
V100 = {**NO_GPU, "devices": [["70", "Tesla V100"]]}
H100 = {**NO_GPU, "devices": [["90", "H100"]]}


def test_a_build_without_kernels_for_this_gpu_is_told_with_what_helps() -> None:
    found = doctor.not_built_for(V100)
    assert found is not None
    why, helps = found
    assert "Tesla V100 has sm_70" in why
    assert "profkit[volta]" in helps


@pytest.mark.parametrize(
    "found",
    [
        NO_GPU,
        H100,
        {**H100, "built": []},
        {**NO_GPU, "devices": [["89", "L4"]], "built": ["sm_80", "sm_86"]},
    ],
)
def test_a_build_with_kernels_for_this_gpu_is_not(found: dict[str, object]) -> None:
    assert doctor.not_built_for(found) is None


def test_kernels_say_what_stands_in_for_them_and_who_holds_them() -> None:
    missing = {"error": "No module named 'torch'"}
    assert doctor.kernels({"torch": missing}, []).state == doctor.CANNOT
    assert "operators of torch replace kernels" in doctor.kernels({"torch": NO_GPU}, []).why
    assert doctor.kernels({"torch": H100}, []).state == doctor.WORKS
    held = doctor.kernels({"torch": H100}, ["dcgm-exporter"])
    assert (held.state, "dcgmi profile --pause" in held.help) == (doctor.PARTLY, True)


@pytest.mark.parametrize(
    ("restricted", "holders", "is_root", "state", "words"),
    [
        (None, [], False, doctor.CANNOT, "no NVIDIA driver"),
        (True, [], False, doctor.CANNOT, "administrators"),
        (True, [], True, doctor.WORKS, ""),
        (False, [], False, doctor.WORKS, ""),
        (False, ["nv-hostengine"], True, doctor.CANNOT, "nv-hostengine holds"),
    ],
)
def test_hardware_counters(
    restricted: bool | None, holders: list[str], is_root: bool, state: str, words: str
) -> None:
    found = doctor.counters(restricted, holders, is_root=is_root)
    assert found.state == state
    assert words in found.why


def test_the_drivers_restriction_is_read(tmp_path: Path) -> None:
    params = tmp_path / "params"
    assert doctor.read_restriction(params) is None
    params.write_text("ResmanDebugLevel: 1\nRmProfilingAdminOnly: 1\n")
    assert doctor.read_restriction(params) is True
    params.write_text("RmProfilingAdminOnly: 0\n")
    assert doctor.read_restriction(params) is False


def test_programs_are_found_by_their_names(tmp_path: Path) -> None:
    for number, name in enumerate(("bash", "nv-hostengine")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")
    assert doctor.find_programs(["dcgm-exporter", "nv-hostengine"], tmp_path) == ["nv-hostengine"]


def test_a_split_gpu_is_measured_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    door = Door(lambda: FakeNvml(FakeGpu(answers=dict(WORKING, nvmlDeviceGetMigMode=(1, 1)))))
    found = doctor.collector_finding("nvml", NvmlCollector(door))
    assert found.state == doctor.PARTLY
    assert "split by MIG" in found.why


def test_a_collector_that_fails_is_a_finding() -> None:
    class Broken:
        """Reads nothing."""

        def why_not(self) -> str:
            raise RuntimeError("gone")

    assert doctor.collector_finding("broken", Broken()).why == "RuntimeError: gone"


def test_a_crowded_machine_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / "cpu"
    assert doctor.pressure(path).state == doctor.PARTLY
    path.write_text("some avg10=1.00 avg60=42.00 avg300=3.00 total=5\n")
    assert "42 %" in doctor.pressure(path).why
    path.write_text("some avg10=1.00 avg60=0.50 avg300=3.00 total=5\n")
    assert doctor.pressure(path).state == doctor.WORKS


def test_small_shared_memory_is_reported() -> None:
    states = [doctor.shared_memory(size).state for size in (0, 64 << 20, 8 << 30)]
    assert states == [doctor.CANNOT, doctor.PARTLY, doctor.WORKS]
    assert "67.1 MB in /dev/shm" in doctor.shared_memory(64 << 20).why


def test_a_framework_on_a_gpu_names_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {**H100, "libraries": {"cuDNN": 91002, "NCCL": None}}
    monkeypatch.setattr(probes, "probe", lambda name: found)
    torch = next(each for each in doctor.examine({}) if each.name.startswith("PyTorch"))
    assert torch.why == "on H100; CUDA 13.2, cuDNN 91002"


@pytest.mark.parametrize(
    ("known", "state"),
    [({}, doctor.WORKS), ({"group_hooks": True}, doctor.WORKS), ({"group_hooks": False}, "partly")],
)
def test_an_older_torch_shows_not_all_collectives(known: dict[str, bool], state: str) -> None:
    finding = doctor.collectives({"torch": {**H100, **known}})
    assert finding.state == state
    assert bool(finding.help) == (state == doctor.PARTLY)


def test_the_text_fits_the_screen_and_steers_no_terminal() -> None:
    findings = [
        doctor.Finding(
            "nvml",
            "what each GPU does " * 9,
            doctor.CANNOT,
            "no \x1b[2J driver " * 12,
            "install it " * 15,
        )
    ]
    text = sections(examination(findings))
    assert all(len(line) <= WIDTH for line in text.splitlines())
    assert "\x1b" not in text


@pytest.fixture
def _no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "probe", lambda name: {"error": f"No module named '{name}'"})


@pytest.mark.usefixtures("_no_probes")
def test_every_collector_is_examined_and_what_does_not_work_has_a_reason() -> None:
    findings = doctor.examine({})
    assert set(COLLECTORS.names()) <= {finding.name for finding in findings}
    assert all(finding.why for finding in findings if finding.state != doctor.WORKS)
    torch = next(finding for finding in findings if finding.name == "PyTorch")
    assert (torch.state, torch.help) == (doctor.CANNOT, "pip install 'profkit[torch]'")


def test_the_verb_prints_json(profkit: Command) -> None:
    done = profkit("doctor", "--json")
    assert done.returncode == 0, done.stderr
    assert {"name", "measures", "state", "why", "help"} == set(json.loads(done.stdout)[0])


def test_lines_are_tried_on_a_program_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.lines().state == doctor.WORKS

    def forbidden(self: Memory) -> None:
        raise ForbiddenError("Operation not permitted")

    monkeypatch.setattr(Memory, "open", forbidden)
    found = doctor.lines()
    assert found.state == doctor.PARTLY
    assert "the system forbids it (Operation not permitted)" in found.why
    assert "ptrace_scope" in found.help
    monkeypatch.undo()
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    assert "3.99 is not known" in doctor.lines().why
