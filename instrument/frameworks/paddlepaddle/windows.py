"""Paddle's profiler, for windows of steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle
from paddle.profiler import Profiler, ProfilerTarget, utils

from profkit.instrument.guard import Patches, guarded


class PaddleKernels:
    """`paddle.profiler`. It always captures operators; there can be one in a process, and the job's own goes first."""

    def __init__(self) -> None:
        on_device = paddle.device.is_compiled_with_cuda() and paddle.device.get_device().startswith(
            "gpu"
        )
        self._targets = [ProfilerTarget.CPU, *[ProfilerTarget.GPU] * on_device]
        self._profiler: Any = None
        self._starting = False

    def hook(self, patches: Patches) -> None:
        """Give way when the job makes a profiler of its own."""
        watch_profiler(patches, self._give_way)

    def _give_way(self) -> None:
        if not self._starting:
            self.give_up()

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

    def stop(self) -> Callable[[Path], None] | None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return None
        profiler.stop()
        result = profiler.profiler_result
        return lambda path: result.save(str(path), "json")

    def give_up(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()


def watch_profiler(patches: Patches, begins: Callable[[], None]) -> None:
    """Call `begins` when a profiler is made."""
    tell = guarded("giving way to the job's profiler", begins, None)

    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        def make(profiler: Any, *args: Any, **kwargs: Any) -> None:
            tell()
            original(profiler, *args, **kwargs)

        return make

    patches.replace(Profiler, "__init__", wrap)


def is_profiling() -> bool:
    return bool(getattr(utils, "_is_profiler_used", False))
