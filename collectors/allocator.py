"""Device memory that the framework's allocator holds, at each reading."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import ModuleType

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
    """Asks the frameworks that the job has imported, and imports none.

    Peaks are those of the whole job: nothing is reset.
    """

    name = "allocator"
    interval_s = 0.1

    def __init__(self, modules: Mapping[str, ModuleType] = sys.modules) -> None:
        self._modules = modules

    def why_not(self) -> str:
        if self._torch_trains() or self._paddle_trains():
            return ""
        return (
            "no framework of this process uses a GPU (yet); on the CPU, memory is the process's own"
        )

    def read(self) -> Iterator[Reading]:
        if self._torch_trains():
            cuda = self._modules["torch"].cuda
            device = cuda.current_device()
            known = cuda.memory_stats(device)
            for theirs, ours in _TORCH.items():
                if theirs in known:
                    yield Reading(ours, known[theirs], f"cuda:{device}")
        if self._paddle_trains():
            paddle = self._modules["paddle"].device
            place = paddle.get_device().replace("gpu", "cuda")
            for theirs, ours in _PADDLE.items():
                yield Reading(ours, getattr(paddle.cuda, theirs)(), place)

    def _torch_trains(self) -> bool:
        """Return true if torch has a context on a GPU; asking must not create one."""
        torch = self._modules.get("torch")
        return torch is not None and torch.cuda.is_initialized()

    def _paddle_trains(self) -> bool:
        paddle = self._modules.get("paddle")
        if paddle is None or not paddle.device.is_compiled_with_cuda():
            return False
        return bool(paddle.device.get_device().startswith("gpu"))


COLLECTOR = AllocatorCollector()
