"""GPU activity, ten times a second: utilisation, memory, power, clocks, throttling, links."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from profkit.collectors._nvml_door import Door, Gpu, LostGpuError, NoDriverError
from profkit.collectors.base import Reading
from profkit.vocab import LOST_GPU, THROTTLED

SELDOM = 10
"""PCIe is read once in this many rounds: the driver measures for 20 ms per answer."""

SHARE = 0.001
"""A question may take this share of a processor; what takes long is asked less often.

On an H200 of a virtual machine, one answer of ten took 5 ms of processor time.
"""

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


def ask_once(question: str, fields: Mapping[str, str], door: Door, gpu: Gpu) -> Iterator[Reading]:
    """Yield fields of the one answer to a question, each under its metric."""
    answer = door.ask(question, gpu.handle)
    if answer is not None:
        for metric, field in fields.items():
            yield Reading(metric, getattr(answer, field), gpu.device)


def ask_each(
    questions: Sequence[tuple[str, float, str, str]], door: Door, gpu: Gpu
) -> Iterator[Reading]:
    """Yield the answers to several questions.

    Each has a metric, the answer's scale in the metric's unit, and a constant or an empty string.
    """
    for metric, scale, question, constant in questions:
        arguments = [gpu.handle]
        if constant:  # `None` if this version of the library does not have it
            arguments.append(getattr(door.library, constant, None))
        answer = door.ask(question, *arguments)
        if answer is not None:
            yield Reading(metric, answer * scale, gpu.device)


def ask_throttling(door: Door, gpu: Gpu) -> Iterator[Reading]:
    reasons = door.ask("nvmlDeviceGetCurrentClocksEventReasons", gpu.handle)
    if reasons is None:
        reasons = door.ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu.handle)
    for ours, theirs in THROTTLING.items():
        flag = getattr(door.library, f"nvmlClocksThrottleReason{theirs}", None)
        if flag is None:  # the library has renamed some of them
            flag = getattr(door.library, f"nvmlClocksEventReason{theirs}", None)
        if reasons is not None and flag is not None:
            yield Reading(THROTTLED[ours], float(bool(reasons & flag)), gpu.device)


def ask_nvlink(door: Door, gpu: Gpu) -> Iterator[Reading]:
    """Yield the bytes over all links since the driver was loaded."""
    for metric, name in (("nvlink_sent_bytes", "TX"), ("nvlink_received_bytes", "RX")):
        field = getattr(door.library, f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{name}", None)
        if field is None:
            continue
        answers = door.ask("nvmlDeviceGetFieldValues", gpu.handle, [(field, _ALL_LINKS)])
        if answers and answers[0].nvmlReturn == 0:
            yield Reading(metric, answers[0].value.ullVal * _KIB, gpu.device)


_POWER = (("power_watts", 1e-3, "nvmlDeviceGetPowerUsage", ""),)
_ENERGY = (("energy_joules", 1e-3, "nvmlDeviceGetTotalEnergyConsumption", ""),)
_CLOCKS = (
    ("sm_clock_mhz", 1.0, "nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
    ("memory_clock_mhz", 1.0, "nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
)
_TEMPERATURE = (("temperature_celsius", 1.0, "nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),)
_PCIE = (
    ("pcie_sent_bytes_per_s", 1000.0, "nvmlDeviceGetPcieThroughput", "NVML_PCIE_UTIL_TX_BYTES"),
    ("pcie_received_bytes_per_s", 1000.0, "nvmlDeviceGetPcieThroughput", "NVML_PCIE_UTIL_RX_BYTES"),
)
_RATES = {"busy_percent": "gpu", "memory_busy_percent": "memory"}
_MEMORY = {"memory_used_bytes": "used", "memory_total_bytes": "total"}

QUESTIONS: Mapping[str, Callable[[Door, Gpu], Iterator[Reading]]] = {
    "utilisation": functools.partial(ask_once, "nvmlDeviceGetUtilizationRates", _RATES),
    "memory": functools.partial(ask_once, "nvmlDeviceGetMemoryInfo", _MEMORY),
    "power": functools.partial(ask_each, _POWER),
    "energy": functools.partial(ask_each, _ENERGY),
    "clocks": functools.partial(ask_each, _CLOCKS),
    "temperature": functools.partial(ask_each, _TEMPERATURE),
    "throttling": ask_throttling,
    "nvlink": ask_nvlink,
    "pcie": functools.partial(ask_each, _PCIE),
}
"""Functions that yield readings of one kind, by the name that `profkit doctor` shows."""


class NvmlCollector:
    """Reads the devices that this process trains on.

    A question that a device cannot answer is not asked again.
    """

    name = "nvml"
    interval_s = 0.1

    def __init__(
        self,
        door: Door | None = None,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        cpu: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._door = door or Door()
        self._clock, self._cpu = clock, cpu
        self._not_before_ns: dict[tuple[int, str], float] = {}
        self._gpus: list[Gpu] | None = None
        self._unanswered: set[tuple[int, str]] = set()
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
        split = []
        for gpu in self._find_gpus():
            mode = self._door.ask("nvmlDeviceGetMigMode", gpu.handle)
            if mode and mode[0]:  # the values then include other jobs
                split.append(gpu.device)
        if split:
            limits.append(
                f"{', '.join(split)}: split by MIG; figures are the whole device's, "
                "and utilisation of a slice needs DCGM"
            )
        for gpu in self._find_gpus():
            unsupported = []
            for name, question in QUESTIONS.items():
                if not list(question(self._door, gpu)):
                    unsupported.append(name)
            if unsupported:
                names = ", ".join(unsupported)
                limits.append(f"{gpu.device}: {names} not supported by this device")
        return limits

    def read(self) -> Iterator[Reading]:
        without_pcie = next(self._rounds) % SELDOM != 0
        for gpu in list(self._find_gpus()):
            try:
                for name in QUESTIONS:
                    if not (without_pcie and name == "pcie"):
                        yield from self._ask(gpu, name)
            except LostGpuError:
                self._find_gpus().remove(gpu)
                yield Reading(LOST_GPU, 1.0, gpu.device)

    def _ask(self, gpu: Gpu, name: str) -> list[Reading]:
        """Return the answers to a question, unless it is not to be asked (yet)."""
        key = (gpu.number, name)
        if key in self._unanswered or self._clock() < self._not_before_ns.get(key, 0):
            return []
        before_ns = self._cpu()
        found = list(QUESTIONS[name](self._door, gpu))
        self._not_before_ns[key] = self._clock() + (self._cpu() - before_ns) / SHARE
        if not found:
            self._unanswered.add(key)
        return found

    def _find_gpus(self) -> list[Gpu]:
        if self._gpus is None:
            self._gpus = self._door.gpus()
        return self._gpus


COLLECTOR = NvmlCollector()
