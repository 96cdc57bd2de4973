"""What the framework's memory allocator holds on the device, read whenever the poller comes by."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from profkit.collectors.base import Reading

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
    """Asks a framework that the job has imported, and imports none. Peaks are the job's own: nothing is reset."""

    name = "allocator"
    interval_s = 0.1

    def __init__(self, modules: Mapping[str, ModuleType] = sys.modules) -> None:
        self._modules = modules

    def why_not(self) -> str:
        if any(True for _ in self._sources()):
            return ""
        return (
            "no framework of this process uses a GPU (yet); on the CPU, memory is the process's own"
        )

    def read(self) -> Iterator[Reading]:
        for source in self._sources():
            yield from source()

    def _sources(self) -> Iterator[Callable[[], Iterator[Reading]]]:
        torch, paddle = self._modules.get("torch"), self._modules.get("paddle")
        if torch is not None and torch.cuda.is_initialized():
            yield lambda: _read_torch(torch.cuda)
        if (
            paddle is not None
            and paddle.device.is_compiled_with_cuda()
            and paddle.device.get_device().startswith("gpu")
        ):
            yield lambda: _read_paddle(paddle.device.cuda, paddle.device.get_device())


def _read_torch(cuda: Any) -> Iterator[Reading]:
    device = cuda.current_device()
    known = cuda.memory_stats(device)
    for theirs, ours in _TORCH.items():
        if theirs in known:
            yield Reading(ours, known[theirs], f"cuda:{device}")


def _read_paddle(cuda: Any, device: str) -> Iterator[Reading]:
    for theirs, ours in _PADDLE.items():
        yield Reading(ours, getattr(cuda, theirs)(), device.replace("gpu", "cuda"))


COLLECTOR = AllocatorCollector()
