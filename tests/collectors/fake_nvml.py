"""NVIDIA's library on a machine with GPUs: its real numbers and errors, with fake devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

WORKING = {
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=40),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=11_000, total=80_000),
    "nvmlDeviceGetPowerUsage": 312_500,
    "nvmlDeviceGetTotalEnergyConsumption": 5_000,
    "nvmlDeviceGetClockInfo": 1_980,
    "nvmlDeviceGetTemperature": 61,
    "nvmlDeviceGetCurrentClocksEventReasons": int(pynvml.nvmlClocksThrottleReasonSwPowerCap),
    "nvmlDeviceGetPcieThroughput": 12_000,
    "nvmlDeviceGetFieldValues": [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=77))],
    "nvmlDeviceGetMigMode": (0, 0),
}


@dataclass
class FakeGpu:
    """A device's answers; the name of an error raises it, a missing name is not supported."""

    uuid: str = "GPU-0"
    answers: dict[str, Any] = field(default_factory=lambda: dict(WORKING))
    asked: list[str] = field(default_factory=list)


class FakeNvml:
    """Stands for the module `pynvml`; what is not a question comes from the real one."""

    def __init__(self, *gpus: FakeGpu, init: str = "") -> None:
        self.gpus = gpus
        self._init = init

    def nvmlInit(self) -> None:  # noqa: N802  # the library's own name
        if self._init:
            raise error(self._init)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> FakeGpu:  # noqa: N802
        return self.gpus[number]

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:  # noqa: N802
        return gpu.uuid

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDeviceGet"):
            return getattr(pynvml, name)

        def ask(gpu: FakeGpu, *arguments: Any) -> Any:
            gpu.asked.append(name)
            answer = gpu.answers.get(name, "NOT_SUPPORTED")
            if isinstance(answer, str):
                raise error(answer)
            return answer

        return ask


def error(name: str) -> Exception:
    made: Exception = pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))
    return made
