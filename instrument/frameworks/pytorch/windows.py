"""PyTorch's profiler, for windows of steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from profkit.instrument.captures import CAPTURES, Captures
from profkit.instrument.frameworks.pytorch.device import on_device
from profkit.instrument.frameworks.pytorch.module_calls import ModuleCalls
from profkit.instrument.frameworks.shared import SharedProfiler, call_first
from profkit.instrument.guard import Patches, guarded

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "99"

_TEAR_DOWN = "TEARDOWN_CUPTI"
_SAFE_CUDA = (12, 6)
"""The first CUDA with which CUPTI is torn down without harm to CUDA graphs."""

_AUTOGRAD: Any = torch._C._autograd  # noqa: SLF001  # it has no public name
is_profiling: Callable[[], bool] = _AUTOGRAD._profiler_enabled  # noqa: SLF001  # as above
"""Returns true while torch's profiler runs."""


class Kernels(SharedProfiler):
    """`torch.profiler`, unless the job uses it itself."""

    def __init__(self, *, operators: bool) -> None:
        activity = torch.profiler.ProfilerActivity
        self._activities = [activity.CPU]
        if on_device():
            self._activities = [activity.CUDA, activity.CPU] if operators else [activity.CUDA]
        self._modules = ModuleCalls()

    def leaves_nothing(self) -> bool:
        """Return true if launches are as fast after a window as before, and nobody is disturbed.

        Measured on an H100 with CUDA 13.0, see docs/gpu.md.
        """
        is_torn_down = tears_down_safely(torch.version.cuda, CAPTURES)
        is_torn_down &= os.environ.get(_TEAR_DOWN, "1") == "1"
        return is_torn_down and not self.is_shared and not is_profiling()

    def start(self) -> bool:
        if is_profiling():
            return False
        self._profiler = torch.profiler.profile(activities=self._activities)
        self._starting = True
        given = os.environ.get(_LOG_LEVEL)
        # Kineto reads it once. Without it, Kineto writes to the job's own output.
        os.environ.setdefault(_LOG_LEVEL, _SILENT)
        if on_device() and tears_down_safely(torch.version.cuda, CAPTURES):
            # Else CUPTI stays, and every later launch of the job takes longer. Kineto asks for this
            # at each start and end, and torch's compiler sets it to 0 where it makes graphs.
            os.environ.setdefault(_TEAR_DOWN, "1")
        try:
            self._profiler.start()
        finally:
            self._starting = False
            if given is None:
                del os.environ[_LOG_LEVEL]
        guarded("modules", self._modules.begin, None)()
        return True

    def stop(self) -> Callable[[Path], None] | None:
        self._modules.end()
        self.module_calls = self._modules.calls
        return super().stop()

    def _saver(self, profiler: Any) -> Callable[[Path], None]:
        return lambda path: profiler.export_chrome_trace(str(path))


def tears_down_safely(cuda: str | None, captures: Captures) -> bool:
    """Return true if CUPTI may be torn down after a window; not if the job has CUDA graphs."""
    version = tuple(int(part) for part in (cuda or "0").split(".")[:2] if part.isdecimal())
    return version >= _SAFE_CUDA and not captures.have_been


def watch_profiler(patches: Patches, begins: Callable[[], None]) -> None:
    """Call `begins` when a profiler starts."""
    report = guarded("giving way to the job's profiler", begins, None)
    if hasattr(torch.autograd.profiler.profile, "_prepare_trace"):
        wrap = call_first(lambda profile: report())
        patches.replace(torch.autograd.profiler.profile, "_prepare_trace", wrap)
