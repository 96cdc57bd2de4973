"""Device memory that the framework's allocator holds, at each reading."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from profkit.collectors.base import Inside, Reading

_TORCH = {
    "allocated_bytes.all.current": "allocated_bytes",
    "allocated_bytes.all.peak": "allocated_peak_bytes",
    "reserved_bytes.all.current": "reserved_bytes",
    "num_alloc_retries": "allocation_retries_count",
}
_PADDLE = {
    "memory_allocated": "allocated_bytes",
    "max_memory_allocated": "allocated_peak_bytes",
    "memory_reserved": "reserved_bytes",
}


class AllocatorCollector:
    """Asks the frameworks that the job has imported, and imports none.

    Peaks are those of the whole job: nothing is reset.
    """

    name = "allocator"
    interval_s = 0.5  # an answer takes 0.4 ms, in which the job's own thread may wait

    def __init__(self, modules: Mapping[str, ModuleType] = sys.modules) -> None:
        self._modules = modules
        self._device = ""

    def watch(self, inside: Inside) -> None:
        """Ask for the device of the training thread: this thread's own is always the first one."""
        self._device = inside.device

    def why_not(self) -> str:
        if self._find_frameworks():
            return ""
        return (
            "no framework of this process uses a GPU (yet); on the CPU, memory is the process's own"
        )

    def read(self) -> Iterator[Reading]:
        frameworks = self._find_frameworks()
        if "torch" in frameworks:
            cuda = self._modules["torch"].cuda
            number = self._device.removeprefix("cuda:")
            device = int(number) if number.isdecimal() else cuda.current_device()
            known = cuda.memory_stats(device)
            for theirs, ours in _TORCH.items():
                if theirs in known:
                    yield Reading(ours, known[theirs], f"cuda:{device}")
        if "paddle" in frameworks:
            paddle = self._modules["paddle"].device
            place = paddle.get_device().replace("gpu", "cuda")
            for theirs, ours in _PADDLE.items():
                yield Reading(ours, getattr(paddle.cuda, theirs)(), place)

    def _find_frameworks(self) -> set[str]:
        """Return the frameworks that have a context on a GPU; asking must not create one."""
        found = set()
        torch: Any = self._modules.get("torch")
        paddle: Any = self._modules.get("paddle")
        if torch is not None and torch.cuda.is_initialized():
            found.add("torch")
        has_cuda = paddle is not None and paddle.device.is_compiled_with_cuda()
        if has_cuda and paddle.device.get_device().startswith("gpu"):
            found.add("paddle")
        return found


COLLECTOR = AllocatorCollector()
