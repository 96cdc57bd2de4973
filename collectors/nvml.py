"""What each GPU does, ten times a second: utilisation, memory, power, clocks, why it throttles, temperature, PCIe and NVLink."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from profkit.collectors._nvml_door import Door, Gpu, LostGpuError, NoDriverError
from profkit.collectors.base import Reading
from profkit.vocab import LOST_GPU

SELDOM = 10
"""PCIe throughput is asked for at one reading in so many: the driver measures 20 ms for each answer."""

_KIB = 1024
_ALL_LINKS = 0xFFFFFFFF

THROTTLING = {
    "power_cap": "SwPowerCap",
    "hardware_slowdown": "HwSlowdown",
    "hardware_thermal": "HwThermalSlowdown",
    "software_thermal": "SwThermalSlowdown",
    "power_brake": "HwPowerBrakeSlowdown",
}
"""The reasons that cost speed, by the library's names for them; an idle device gives reasons too."""

Question = Callable[[Door, Gpu], Iterator[Reading]]


def _utilisation(door: Door, gpu: Gpu) -> Iterator[Reading]:
    rates = door.ask("nvmlDeviceGetUtilizationRates", gpu.handle)
    if rates is not None:
        yield Reading("busy_percent", rates.gpu, gpu.device)
        yield Reading("memory_busy_percent", rates.memory, gpu.device)


def _memory(door: Door, gpu: Gpu) -> Iterator[Reading]:
    memory = door.ask("nvmlDeviceGetMemoryInfo", gpu.handle)
    if memory is not None:
        yield Reading("memory_used_bytes", memory.used, gpu.device)
        yield Reading("memory_total_bytes", memory.total, gpu.device)


def _power(door: Door, gpu: Gpu) -> Iterator[Reading]:
    yield from _one(door, gpu, "power_watts", 1e-3, "nvmlDeviceGetPowerUsage")
    yield from _one(door, gpu, "energy_joules", 1e-3, "nvmlDeviceGetTotalEnergyConsumption")


def _clocks(door: Door, gpu: Gpu) -> Iterator[Reading]:
    yield from _one(
        door, gpu, "sm_clock_mhz", 1.0, "nvmlDeviceGetClockInfo", door.constant("NVML_CLOCK_SM")
    )
    yield from _one(
        door,
        gpu,
        "memory_clock_mhz",
        1.0,
        "nvmlDeviceGetClockInfo",
        door.constant("NVML_CLOCK_MEM"),
    )


def _temperature(door: Door, gpu: Gpu) -> Iterator[Reading]:
    yield from _one(
        door,
        gpu,
        "temperature_celsius",
        1.0,
        "nvmlDeviceGetTemperature",
        door.constant("NVML_TEMPERATURE_GPU"),
    )


def _throttling(door: Door, gpu: Gpu) -> Iterator[Reading]:
    reasons = door.ask("nvmlDeviceGetCurrentClocksEventReasons", gpu.handle)
    if reasons is None:
        reasons = door.ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu.handle)
    for ours, theirs in THROTTLING.items():
        flag = _flag(door, theirs)
        if reasons is not None and flag is not None:
            yield Reading(f"throttled_by_{ours}_ratio", float(bool(reasons & flag)), gpu.device)


def _flag(door: Door, reason: str) -> Any:
    """The reason's bit: the library has renamed some of them."""
    names = (f"nvmlClocksThrottleReason{reason}", f"nvmlClocksEventReason{reason}")
    return next((flag for name in names if (flag := door.constant(name)) is not None), None)


def _pcie(door: Door, gpu: Gpu) -> Iterator[Reading]:
    for ours, theirs in (("pcie_sent_bytes_per_s", "TX"), ("pcie_received_bytes_per_s", "RX")):
        yield from _one(
            door,
            gpu,
            ours,
            1000.0,
            "nvmlDeviceGetPcieThroughput",
            door.constant(f"NVML_PCIE_UTIL_{theirs}_BYTES"),
        )


def _nvlink(door: Door, gpu: Gpu) -> Iterator[Reading]:
    """Bytes over all links since the driver was loaded."""
    for ours, theirs in (("nvlink_sent_bytes", "TX"), ("nvlink_received_bytes", "RX")):
        field = door.constant(f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{theirs}")
        answers = (
            door.ask("nvmlDeviceGetFieldValues", gpu.handle, [(field, _ALL_LINKS)])
            if field is not None
            else None
        )
        if answers and answers[0].nvmlReturn == 0:
            yield Reading(ours, answers[0].value.ullVal * _KIB, gpu.device)


def _one(
    door: Door, gpu: Gpu, metric: str, scale: float, question: str, *arguments: Any
) -> Iterator[Reading]:
    answer = door.ask(question, gpu.handle, *arguments)
    if answer is not None:
        yield Reading(metric, answer * scale, gpu.device)


QUESTIONS: tuple[Question, ...] = (
    _utilisation,
    _memory,
    _power,
    _clocks,
    _temperature,
    _throttling,
    _nvlink,
)


class NvmlCollector:
    """Reads the devices that this process trains on. A question that a device has no answer to is not asked again."""

    name = "nvml"
    interval_s = 0.1

    def __init__(self, door: Door | None = None) -> None:
        self._door = door or Door()
        self._gpus: list[Gpu] | None = None
        self._pointless: set[tuple[int, Question]] = set()
        self._rounds = itertools.count()

    def why_not(self) -> str:
        try:
            return (
                ""
                if self._find_gpus()
                else "the driver is here, and shows this process no GPU; look at CUDA_VISIBLE_DEVICES"
            )
        except NoDriverError as error:
            return str(error)

    def limits(self) -> list[str]:
        """What cannot be told though the library is there."""
        split = [gpu.device for gpu in self._find_gpus() if self._door.is_split(gpu)]
        silent = [
            f"{gpu.device}: {', '.join(names)} not supported by this device"
            for gpu in self._find_gpus()
            if (names := self._silent(gpu))
        ]
        return [
            f"{', '.join(split)}: split by MIG; figures are the whole device's, and utilisation of a slice needs DCGM"
        ] * bool(split) + silent

    def read(self) -> Iterator[Reading]:
        questions = (*QUESTIONS, _pcie) if next(self._rounds) % SELDOM == 0 else QUESTIONS
        for gpu in list(self._find_gpus()):
            try:
                for question in questions:
                    yield from self._answers(question, gpu)
            except LostGpuError:
                self._find_gpus().remove(gpu)
                yield Reading(LOST_GPU, 1.0, gpu.device)

    def _answers(self, question: Question, gpu: Gpu) -> list[Reading]:
        if (gpu.number, question) in self._pointless:
            return []
        found = list(question(self._door, gpu))
        if not found:
            self._pointless.add((gpu.number, question))
        return found

    def _silent(self, gpu: Gpu) -> list[str]:
        return [
            question.__name__.strip("_")
            for question in (*QUESTIONS, _pcie)
            if not list(question(self._door, gpu))
        ]

    def _find_gpus(self) -> list[Gpu]:
        if self._gpus is None:
            self._gpus = self._door.gpus()
        return self._gpus


COLLECTOR = NvmlCollector()
