"""Access to NVIDIA's management library (NVML).

A value that a device does not support is `None`. A device that is gone raises `LostGpuError`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profkit.rank import local_rank_of

Library = Any
"""The module `pynvml`, or a test's replacement for it."""

_UNSUPPORTED = (
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "FUNCTION_NOT_FOUND",
    "INVALID_ARGUMENT",
    "NO_DATA",
)
"""The errors that mean that a device or driver cannot answer this question."""

_LOST = ("GPU_IS_LOST", "RESET_REQUIRED")

_REMEDIES = {
    "LIBRARY_NOT_FOUND": "no NVIDIA driver library here (libnvidia-ml.so.1); "
    "install the driver, or start the container with --gpus all",
    "DRIVER_NOT_LOADED": "NVIDIA's library is here, but its driver is not loaded; "
    "load it (modprobe nvidia), or start the container with --gpus all",
    "NO_PERMISSION": "the NVIDIA devices may not be opened; "
    "give this user /dev/nvidia*, or start the container with --gpus all",
    "LIB_RM_VERSION_MISMATCH": "the driver and its library are of different versions; "
    "restart the machine after the driver's update",
}
"""Why the library does not start, and what helps, by the name of its error."""


class LostGpuError(Exception):
    """The device does not answer any more: it fell off the bus, or waits for a reset."""


class NoDriverError(Exception):
    """There is no library or driver to ask; the message says what would help."""


@dataclass(frozen=True)
class Gpu:
    """One device: `number` is the driver's, `device` is the framework's name for it."""

    number: int
    device: str
    handle: Any


class Door:
    """NVML, opened at the first question and never closed, for the sake of its other users."""

    def __init__(
        self, load: Callable[[], Library] = lambda: importlib.import_module("pynvml")
    ) -> None:
        self._load = load
        self._library: Library | None = None

    @property
    def library(self) -> Library:
        """Return the initialised library; raise a `NoDriverError` if that fails."""
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
                why = f"NVML does not start: {error}"
                for name, remedy in _REMEDIES.items():
                    if _is_one_of(library, error, (name,)):
                        why = remedy
                raise NoDriverError(why) from error
            self._library = library
        return self._library

    def ask(self, question: str, *arguments: Any) -> Any:
        """Call a function of the library; `None` if the device or driver cannot answer."""
        library = self.library
        function = getattr(library, question, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except library.NVMLError as error:
            if _is_one_of(library, error, _UNSUPPORTED):
                return None
            if _is_one_of(library, error, _LOST):
                raise LostGpuError(str(error)) from error
            raise

    def gpus(self, environ: Mapping[str, str] = os.environ) -> list[Gpu]:
        """Return the devices that this process trains on, as far as its environment says."""
        handles = {}
        numbers_by_id = {}
        for number in range(int(self.ask("nvmlDeviceGetCount") or 0)):
            handle = self.ask("nvmlDeviceGetHandleByIndex", number)
            handles[number] = handle
            if handle is not None:
                numbers_by_id[str(self.ask("nvmlDeviceGetUUID", handle))] = number
        gpus = []
        visible = visible_gpus(list(handles), numbers_by_id, environ)
        for number, place in own_gpus(visible, environ):
            if handles[number] is not None:
                gpus.append(Gpu(number, f"cuda:{place}", handles[number]))
        return gpus


def visible_gpus(
    numbers: Sequence[int], names: Mapping[str, int], environ: Mapping[str, str]
) -> list[int]:
    """Return the driver's numbers in the order in which CUDA shows the devices.

    If the devices differ, CUDA counts the fastest first and the driver counts by their place on
    the bus. The two agree with CUDA_DEVICE_ORDER=PCI_BUS_ID, and on machines with equal devices.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return list(numbers)
    found: list[int] = []
    for word in listed.split(","):
        number = _find_number(word.strip(), names)
        if number not in numbers:
            break  # CUDA stops at the first entry that is no device, too
        found.append(number)
    return found


def _find_number(word: str, names: Mapping[str, int]) -> int:
    """Return the number of a device, given by number or by its id's beginning; else -1."""
    if word.isdigit():
        return int(word)
    for name, number in names.items():
        if word and name.startswith(word):
            return number
    return -1


def own_gpus(visible: Sequence[int], environ: Mapping[str, str]) -> list[tuple[int, int]]:
    """Return the number and place of each device of this process.

    If several ranks run on the machine, each one reads its own device only.
    """
    local = local_rank_of(environ)
    if local is not None and local < len(visible) > 1:
        return [(visible[local], local)]
    return [(number, place) for place, number in enumerate(visible)]


def _is_one_of(library: Library, error: Any, names: Sequence[str]) -> bool:
    """Return true if the library knows the error by one of these names."""
    code = getattr(error, "value", None)
    codes = []
    for name in names:
        codes.append(getattr(library, f"NVML_ERROR_{name}", _NO_CODE))
    return code in codes


_NO_CODE = object()
"""Stands for an error that this version of the library does not have."""
