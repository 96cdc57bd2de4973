"""GPU activity, ten times a second: utilisation, memory, power, clocks, throttling, links."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from profkit.collectors._nvml_door import Door, Gpu, LostGpuError, NoDriverError
from profkit.collectors.base import Reading
from profkit.vocab import LOST_GPU

SELDOM = 10
"""PCIe is read once in this many rounds: the driver measures for 20 ms per answer."""

_KIB = 1024
_ALL_LINKS = 0xFFFFFFFF

THROTTLING = {
    "power_cap": "SwPowerCap",
    "hardware_slowdown": "HwSlowdown",
    "hardware_thermal": "HwThermalSlowdown",
    "software_thermal": "SwThermalSlowdown",
    "power_brake": "HwPowerBrakeSlowdown",
}
"""The library's names of the reasons that cost speed; an idle device has reasons, too."""

Question = Callable[[Door, Gpu], Iterator[Reading]]
"""Yields readings of one kind; its name is the one that `profkit doctor` shows."""


def utilisation(door: Door, gpu: Gpu) -> Iterator[Reading]:
    rates = door.ask("nvmlDeviceGetUtilizationRates", gpu.handle)
    if rates is not None:
        yield Reading("busy_percent", rates.gpu, gpu.device)
        yield Reading("memory_busy_percent", rates.memory, gpu.device)


def memory(door: Door, gpu: Gpu) -> Iterator[Reading]:
    found = door.ask("nvmlDeviceGetMemoryInfo", gpu.handle)
    if found is not None:
        yield Reading("memory_used_bytes", found.used, gpu.device)
        yield Reading("memory_total_bytes", found.total, gpu.device)


def power(door: Door, gpu: Gpu) -> Iterator[Reading]:
    yield from _ask_one(door, gpu, "power_watts", 1e-3, "nvmlDeviceGetPowerUsage")
    yield from _ask_one(door, gpu, "energy_joules", 1e-3, "nvmlDeviceGetTotalEnergyConsumption")


def clocks(door: Door, gpu: Gpu) -> Iterator[Reading]:
    for metric, name in (("sm_clock_mhz", "SM"), ("memory_clock_mhz", "MEM")):
        clock = door.constant(f"NVML_CLOCK_{name}")
        yield from _ask_one(door, gpu, metric, 1.0, "nvmlDeviceGetClockInfo", clock)


def temperature(door: Door, gpu: Gpu) -> Iterator[Reading]:
    sensor = door.constant("NVML_TEMPERATURE_GPU")
    yield from _ask_one(door, gpu, "temperature_celsius", 1.0, "nvmlDeviceGetTemperature", sensor)


def throttling(door: Door, gpu: Gpu) -> Iterator[Reading]:
    reasons = door.ask("nvmlDeviceGetCurrentClocksEventReasons", gpu.handle)
    if reasons is None:
        reasons = door.ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu.handle)
    for ours, theirs in THROTTLING.items():
        flag = door.constant(f"nvmlClocksThrottleReason{theirs}")
        if flag is None:  # the library has renamed some of them
            flag = door.constant(f"nvmlClocksEventReason{theirs}")
        if reasons is not None and flag is not None:
            yield Reading(f"throttled_by_{ours}_ratio", float(bool(reasons & flag)), gpu.device)


def pcie(door: Door, gpu: Gpu) -> Iterator[Reading]:
    for metric, name in (("pcie_sent_bytes_per_s", "TX"), ("pcie_received_bytes_per_s", "RX")):
        counter = door.constant(f"NVML_PCIE_UTIL_{name}_BYTES")
        yield from _ask_one(door, gpu, metric, 1000.0, "nvmlDeviceGetPcieThroughput", counter)


def nvlink(door: Door, gpu: Gpu) -> Iterator[Reading]:
    """Yield the bytes over all links since the driver was loaded."""
    for metric, name in (("nvlink_sent_bytes", "TX"), ("nvlink_received_bytes", "RX")):
        field = door.constant(f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{name}")
        if field is None:
            continue
        answers = door.ask("nvmlDeviceGetFieldValues", gpu.handle, [(field, _ALL_LINKS)])
        if answers and answers[0].nvmlReturn == 0:
            yield Reading(metric, answers[0].value.ullVal * _KIB, gpu.device)


def _ask_one(
    door: Door, gpu: Gpu, metric: str, scale: float, question: str, *arguments: Any
) -> Iterator[Reading]:
    answer = door.ask(question, gpu.handle, *arguments)
    if answer is not None:
        yield Reading(metric, answer * scale, gpu.device)


QUESTIONS: tuple[Question, ...] = (
    utilisation,
    memory,
    power,
    clocks,
    temperature,
    throttling,
    nvlink,
)


class NvmlCollector:
    """Reads the devices that this process trains on.

    A question that a device cannot answer is not asked again.
    """

    name = "nvml"
    interval_s = 0.1

    def __init__(self, door: Door | None = None) -> None:
        self._door = door or Door()
        self._gpus: list[Gpu] | None = None
        self._unanswered: set[tuple[int, Question]] = set()
        self._rounds = itertools.count()

    def why_not(self) -> str:
        try:
            if self._find_gpus():
                return ""
        except NoDriverError as error:
            return str(error)
        return "the driver is here, and shows this process no GPU; look at CUDA_VISIBLE_DEVICES"

    def limits(self) -> list[str]:
        """Return what cannot be measured although the library is there."""
        limits = []
        split = ", ".join(gpu.device for gpu in self._find_gpus() if self._door.is_split(gpu))
        if split:
            limits.append(
                f"{split}: split by MIG; figures are the whole device's, "
                "and utilisation of a slice needs DCGM"
            )
        for gpu in self._find_gpus():
            unsupported = []
            for question in (*QUESTIONS, pcie):
                if not list(question(self._door, gpu)):
                    unsupported.append(question.__name__)
            if unsupported:
                names = ", ".join(unsupported)
                limits.append(f"{gpu.device}: {names} not supported by this device")
        return limits

    def read(self) -> Iterator[Reading]:
        questions = QUESTIONS
        if next(self._rounds) % SELDOM == 0:
            questions = (*QUESTIONS, pcie)
        for gpu in list(self._find_gpus()):
            try:
                for question in questions:
                    if (gpu.number, question) in self._unanswered:
                        continue
                    found = list(question(self._door, gpu))
                    if not found:
                        self._unanswered.add((gpu.number, question))
                    yield from found
            except LostGpuError:
                self._find_gpus().remove(gpu)
                yield Reading(LOST_GPU, 1.0, gpu.device)

    def _find_gpus(self) -> list[Gpu]:
        if self._gpus is None:
            self._gpus = self._door.gpus()
        return self._gpus


COLLECTOR = NvmlCollector()
