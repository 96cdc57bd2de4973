"""GPUs through a fake library: unsupported values, lost devices, missing drivers."""

from __future__ import annotations

import pytest

from profkit.collectors._nvml_door import Door, own_gpus, visible_gpus
from profkit.collectors.base import Reading
from profkit.collectors.nvml import SELDOM, NvmlCollector
from profkit.vocab import LOST_GPU
from tests.collectors.fake_nvml import WORKING, FakeGpu, FakeNvml


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "CUDA_VISIBLE_DEVICES",
        "LOCAL_RANK",
        "PADDLE_RANK_IN_NODE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "SLURM_LOCALID",
    ):
        monkeypatch.delenv(name, raising=False)


def _collector(*gpus: FakeGpu, init: str = "") -> NvmlCollector:
    return NvmlCollector(Door(lambda: FakeNvml(*gpus, init=init)), cpu=lambda: 0)


def _values(readings: list[Reading]) -> dict[str, float]:
    return {reading.metric: reading.value for reading in readings}


def test_a_whole_device_is_told_in_proper_units() -> None:
    collector = _collector(FakeGpu())
    assert collector.why_not() == ""
    assert _values(list(collector.read())) == {
        "busy_percent": 97,
        "memory_busy_percent": 40,
        "memory_used_bytes": 11_000,
        "memory_total_bytes": 80_000,
        "power_watts": pytest.approx(312.5),
        "energy_joules": pytest.approx(5.0),
        "sm_clock_mhz": 1_980,
        "memory_clock_mhz": 1_980,
        "temperature_celsius": 61,
        "throttled_by_power_cap_ratio": 1.0,
        "throttled_by_hardware_slowdown_ratio": 0.0,
        "throttled_by_hardware_thermal_ratio": 0.0,
        "throttled_by_software_thermal_ratio": 0.0,
        "throttled_by_power_brake_ratio": 0.0,
        "nvlink_sent_bytes": 77 * 1024,
        "nvlink_received_bytes": 77 * 1024,
        "pcie_sent_bytes_per_s": 12_000_000,
        "pcie_received_bytes_per_s": 12_000_000,
    }
    assert collector.limits() == []


def test_what_a_device_does_not_support_is_absent_not_zero_and_asked_once() -> None:
    gpu = FakeGpu(
        answers={
            name: answer
            for name, answer in WORKING.items()
            if "Power" not in name and "Energy" not in name
        }
    )
    collector = _collector(gpu)
    for _ in range(3):
        metrics = _values(list(collector.read()))
        assert "temperature_celsius" in metrics
        assert not {"power_watts", "energy_joules"} & metrics.keys()
    assert gpu.asked.count("nvmlDeviceGetPowerUsage") == 1
    assert gpu.asked.count("nvmlDeviceGetTemperature") == 3
    assert collector.limits() == ["cuda:0: power, energy not supported by this device"]


def test_a_function_that_the_library_has_not_is_not_supported() -> None:
    assert Door(lambda: FakeNvml(FakeGpu())).ask("ofNextYear") is None


@pytest.mark.parametrize("why", ["GPU_IS_LOST", "RESET_REQUIRED"])
def test_a_lost_device_is_an_event_and_the_others_are_read_on(why: str) -> None:
    lost = FakeGpu("GPU-a")
    collector = _collector(lost, FakeGpu("GPU-b"))
    assert {reading.device for reading in collector.read()} == {"cuda:0", "cuda:1"}
    lost.answers["nvmlDeviceGetUtilizationRates"] = why
    readings = list(collector.read())
    assert [reading for reading in readings if reading.device == "cuda:0"] == [
        Reading(LOST_GPU, 1.0, "cuda:0")
    ]
    assert {reading.device for reading in collector.read()} == {"cuda:1"}


def test_an_error_of_another_kind_is_not_hidden() -> None:
    with pytest.raises(Exception, match="Unknown Error"):
        list(_collector(FakeGpu(answers={"nvmlDeviceGetUtilizationRates": "UNKNOWN"})).read())


@pytest.mark.parametrize(
    ("init", "words"),
    [
        ("LIBRARY_NOT_FOUND", "--gpus all"),
        ("DRIVER_NOT_LOADED", "modprobe nvidia"),
        ("NO_PERMISSION", "/dev/nvidia"),
        ("LIB_RM_VERSION_MISMATCH", "restart the machine"),
        ("UNKNOWN", "NVML does not start"),
    ],
)
def test_without_a_driver_there_is_a_message_that_helps(init: str, words: str) -> None:
    assert words in _collector(init=init).why_not()


def test_without_the_package_there_is_a_message_too() -> None:
    def load() -> None:
        raise ImportError("No module named 'pynvml'")

    assert "pip install nvidia-ml-py" in NvmlCollector(Door(load)).why_not()


def test_a_driver_without_a_visible_device_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES" in _collector(FakeGpu()).why_not()


def test_a_device_that_is_split_is_said_to_be() -> None:
    split = dict(WORKING, nvmlDeviceGetMigMode=(1, 1))
    del split["nvmlDeviceGetUtilizationRates"]  # as with MIG
    collector = _collector(FakeGpu(answers=split))
    assert collector.why_not() == ""
    assert "busy_percent" not in _values(list(collector.read()))
    assert collector.limits()[0].startswith("cuda:0: split by MIG")


class Clocks:
    """A processor's and a wall clock; a question of `slow` takes 6 ms of both."""

    def __init__(self, slow: str) -> None:
        self.now_ns, self.cpu_ns = 0, 0
        self._slow = slow

    def door(self, gpu: FakeGpu) -> Door:
        door = Door(lambda: FakeNvml(gpu))
        ask = door.ask

        def slowly(question: str, *arguments: object) -> object:
            took_ns = 6_000_000 if question == self._slow else 10_000
            self.now_ns += took_ns
            self.cpu_ns += took_ns
            return ask(question, *arguments)

        door.ask = slowly  # type: ignore[method-assign]
        return door


@pytest.mark.parametrize("slow", ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates"])
def test_what_takes_processor_time_is_asked_for_less_often(slow: str) -> None:
    gpu, clocks = FakeGpu(), Clocks(slow)
    collector = NvmlCollector(
        clocks.door(gpu), clock=lambda: clocks.now_ns, cpu=lambda: clocks.cpu_ns
    )
    collector.why_not()
    clocks.cpu_ns = 0
    for place in range(600):
        clocks.now_ns = place * 100_000_000
        list(collector.read())
    assert 8 <= gpu.asked.count(slow) <= 11, "6 ms every 6 s"
    assert gpu.asked.count("nvmlDeviceGetTemperature") == 600
    assert clocks.cpu_ns / 60e9 < 0.004


def test_pcie_which_takes_the_driver_long_is_asked_for_seldom() -> None:
    gpu = FakeGpu()
    collector = _collector(gpu)
    for _ in range(2 * SELDOM):
        list(collector.read())
    assert gpu.asked.count("nvmlDeviceGetPcieThroughput") == 4
    assert gpu.asked.count("nvmlDeviceGetTemperature") == 2 * SELDOM


NAMES = {"GPU-aa": 0, "GPU-bb": 1, "GPU-cc": 2}


@pytest.mark.parametrize(
    ("said", "visible"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("GPU-bb", [1]),
        ("GPU-b", [1]),
        ("1,9,0", [1]),
        ("", []),
        ("-1", []),
    ],
)
def test_devices_are_those_that_cuda_shows(said: str | None, visible: list[int]) -> None:
    assert (
        visible_gpus([0, 1, 2], NAMES, {} if said is None else {"CUDA_VISIBLE_DEVICES": said})
        == visible
    )


def test_a_rank_reads_its_own_device_alone() -> None:
    assert own_gpus([4, 5, 6], {"LOCAL_RANK": "1"}) == [(5, 1)]
    assert own_gpus([4, 5, 6], {"PADDLE_RANK_IN_NODE": "2"}) == [(6, 2)]
    assert own_gpus([4, 5], {}) == [(4, 0), (5, 1)]
    assert own_gpus([4], {"LOCAL_RANK": "3"}) == [(4, 0)]
