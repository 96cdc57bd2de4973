"""Paddle's profiler, for windows of steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from paddle.profiler import Profiler, ProfilerTarget, utils

from profkit.instrument.frameworks.paddlepaddle.device import on_device
from profkit.instrument.frameworks.shared import SharedProfiler, call_first
from profkit.instrument.guard import Patches, guarded


class Kernels(SharedProfiler):
    """`paddle.profiler`, unless the job uses it itself. It always captures operators."""

    def __init__(self, *, operators: bool) -> None:
        self._targets = [ProfilerTarget.CPU]
        if on_device():
            self._targets.append(ProfilerTarget.GPU)

    def start(self) -> bool:
        if is_profiling():
            return False
        self._starting = True
        try:
            profiler = Profiler(targets=self._targets, on_trace_ready=lambda profiler: None)
        finally:
            self._starting = False
        if profiler.profiler is None:  # the job holds one
            return False
        profiler.start()
        self._profiler = profiler
        return True

    def _saver(self, profiler: Any) -> Callable[[Path], None]:
        result = profiler.profiler_result
        return lambda path: result.save(str(path), "json")


def watch_profiler(patches: Patches, begins: Callable[[], None]) -> None:
    """Call `begins` when a profiler is made."""
    report = guarded("giving way to the job's profiler", begins, None)
    patches.replace(Profiler, "__init__", call_first(lambda profiler: report()))


def is_profiling() -> bool:
    return bool(getattr(utils, "_is_profiler_used", False))
