"""The one door to NVIDIA's management library: what a device does not support is `None`, a device that is gone is an error of its own."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

Library = Any
"""The module `pynvml`, or what stands for it in a test."""

_NO_LIBRARY = "no NVIDIA driver library here (libnvidia-ml.so.1); install the driver, or start the container with --gpus all"
_NO_DRIVER = "NVIDIA's library is here, but its driver is not loaded; load it (modprobe nvidia), or start the container with --gpus all"
_NO_PERMISSION = "the NVIDIA devices may not be opened; give this user /dev/nvidia*, or start the container with --gpus all"
_OTHER_VERSION = "the driver and its library are of different versions; restart the machine after the driver's update"


class LostGpuError(Exception):
    """The device does not answer any more: it fell off the bus, or waits for a reset."""


class NoDriverError(Exception):
    """There is nothing to ask; the message says what would help."""


@dataclass(frozen=True)
class Gpu:
    """One device: `number` is the driver's, `device` is what frameworks of this process call it."""

    number: int
    device: str
    handle: Any


class Door:
    """NVML, opened at the first question and never closed: other users of it in the process are not disturbed."""

    def __init__(
        self, load: Callable[[], Library] = lambda: importlib.import_module("pynvml")
    ) -> None:
        self._load = load
        self._library: Library | None = None

    @property
    def library(self) -> Library:
        """The library, initialised; a `NoDriverError` where that fails."""
        if self._library is None:
            try:
                library = self._load()
            except ImportError as error:
                raise NoDriverError(
                    f"the package nvidia-ml-py is not installed ({error}); pip install nvidia-ml-py"
                ) from error
            try:
                library.nvmlInit()
            except library.NVMLError as error:
                raise NoDriverError(_why_no_driver(library, error)) from error
            self._library = library
        return self._library

    def ask(self, question: str, *arguments: Any) -> Any:
        """What the library's function of this name answers; `None` where this device or driver cannot."""
        library = self.library
        function = getattr(library, question, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except library.NVMLError as error:
            if _code(error) in _codes(
                library,
                "NOT_SUPPORTED",
                "NO_PERMISSION",
                "FUNCTION_NOT_FOUND",
                "INVALID_ARGUMENT",
                "NO_DATA",
            ):
                return None
            if _code(error) in _codes(library, "GPU_IS_LOST", "RESET_REQUIRED"):
                raise LostGpuError(str(error)) from error
            raise

    def constant(self, name: str) -> Any:
        """A number of the library's, `None` where its version has none of the name."""
        return getattr(self.library, name, None)

    def gpus(self, environ: Mapping[str, str] = os.environ) -> list[Gpu]:
        """The devices that this process trains on, as far as its environment tells."""
        count = int(self.ask("nvmlDeviceGetCount") or 0)
        handles = {
            number: self.ask("nvmlDeviceGetHandleByIndex", number) for number in range(count)
        }
        names = {
            str(self.ask("nvmlDeviceGetUUID", handle)): number
            for number, handle in handles.items()
            if handle is not None
        }
        numbers = [
            number
            for number in own_gpus(visible_gpus(list(handles), names, environ), environ)
            if handles[number[0]] is not None
        ]
        return [Gpu(number, f"cuda:{place}", handles[number]) for number, place in numbers]

    def is_split(self, gpu: Gpu) -> bool:
        """Whether MIG has split the device into slices: what is read of it is then not this job's alone."""
        mode = self.ask("nvmlDeviceGetMigMode", gpu.handle)
        return bool(mode and mode[0])


def visible_gpus(
    numbers: Sequence[int], names: Mapping[str, int], environ: Mapping[str, str]
) -> list[int]:
    """The driver's numbers in the order in which CUDA shows them.

    CUDA counts the fastest first where the devices differ, the driver by their place on the bus;
    the two agree with CUDA_DEVICE_ORDER=PCI_BUS_ID, and on machines whose devices are alike.
    """
    said = environ.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        return list(numbers)
    found: list[int] = []
    for word in (part.strip() for part in said.split(",")):
        number = (
            int(word)
            if word.isdigit()
            else next(
                (known for name, known in names.items() if word and name.startswith(word)), -1
            )
        )
        if number not in numbers:
            break  # CUDA too stops at the first that is none
        found.append(number)
    return found


def own_gpus(visible: Sequence[int], environ: Mapping[str, str]) -> list[tuple[int, int]]:
    """Number and place of each device that is this process's: one of several ranks on a machine reads its own alone."""
    places = list(enumerate(visible))
    local = (
        environ.get("LOCAL_RANK")
        or environ.get("PADDLE_RANK_IN_NODE")
        or environ.get("OMPI_COMM_WORLD_LOCAL_RANK")
        or ""
    )
    if local.isdigit() and int(local) < len(places) > 1:
        places = [places[int(local)]]
    return [(number, place) for place, number in places]


def _code(error: Any) -> Any:
    return getattr(error, "value", None)


def _codes(library: Library, *names: str) -> set[Any]:
    return {
        getattr(library, f"NVML_ERROR_{name}")
        for name in names
        if hasattr(library, f"NVML_ERROR_{name}")
    }


def _why_no_driver(library: Library, error: Exception) -> str:
    words = {
        "LIBRARY_NOT_FOUND": _NO_LIBRARY,
        "DRIVER_NOT_LOADED": _NO_DRIVER,
        "NO_PERMISSION": _NO_PERMISSION,
        "LIB_RM_VERSION_MISMATCH": _OTHER_VERSION,
    }
    return next(
        (text for name, text in words.items() if _code(error) in _codes(library, name)),
        f"NVML does not start: {error}",
    )
