"""PyTorch's profiler, for windows of steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from profkit.instrument.guard import Patches, guarded

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "99"


class PyTorchKernels:
    """`torch.profiler`, unless the job uses it itself: then the job's own capture goes first, and ours is given up."""

    def __init__(self, *, operators: bool) -> None:
        activity = torch.profiler.ProfilerActivity
        on_device = torch.cuda.is_available() and torch.cuda.is_initialized()
        self._activities = (
            [activity.CUDA, *[activity.CPU] * operators] if on_device else [activity.CPU]
        )
        self._profiler: Any = None
        self._starting = False

    def hook(self, patches: Patches) -> None:
        """Give way when the job starts a profiler of its own: there can be only one in a process."""
        watch_profiler(patches, self._give_way)

    def _give_way(self) -> None:
        if not self._starting:
            self.give_up()

    def start(self) -> bool:
        if is_profiling():
            return False
        self._profiler = torch.profiler.profile(activities=self._activities)
        self._starting = True
        given = os.environ.get(_LOG_LEVEL)
        os.environ.setdefault(
            _LOG_LEVEL, _SILENT
        )  # Kineto reads it once, and else writes to the job's own output
        try:
            self._profiler.start()
        finally:
            self._starting = False
            if given is None:
                del os.environ[_LOG_LEVEL]
        return True

    def stop(self) -> Callable[[Path], None] | None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return None
        profiler.stop()
        return lambda path: profiler.export_chrome_trace(str(path))

    def give_up(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()


def watch_profiler(patches: Patches, begins: Callable[[], None]) -> None:
    """Call `begins` when a profiler starts."""
    tell = guarded("giving way to the job's profiler", begins, None)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def prepare(profile: Any) -> Any:
            tell()
            return original(profile)

        return prepare

    if hasattr(torch.autograd.profiler.profile, "_prepare_trace"):
        patches.replace(torch.autograd.profiler.profile, "_prepare_trace", wrap)


def is_profiling() -> bool:
    return bool(torch._C._autograd._profiler_enabled())  # noqa: SLF001  # no public name tells it
