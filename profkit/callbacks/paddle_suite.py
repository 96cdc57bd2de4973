"""The profiler seam of PaddleClas, PaddleSeg and PaddleVideo, which their training loops call once a step.

    from profkit.callbacks import paddle_suite
    paddle_suite.install()

before the suite trains, or this module in the place of theirs:

    sys.modules["ppcls.utils.profiler"] = paddle_suite

Theirs does nothing without options; this records each step, whatever the options. Where it is
installed beside theirs, theirs is still called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from profkit.attached import disabled
from profkit.instrument.guard import Patches, guarded
from profkit.run.attach.arming import watch
from profkit.run.loop import _job

SEAM = "add_profiler_step"
MODULES = ("ppcls.utils.profiler", "paddleseg.utils.train_profiler", "paddlevideo.utils.profiler")
"""Where PaddleClas, PaddleSeg and PaddleVideo have it."""


def add_profiler_step(options_str: str | None = None) -> None:
    """One training step, told by its loop once: before it trains, as in PaddleClas and PaddleVideo, or after it, as in PaddleSeg."""
    _mark_step()


def install() -> Patches:
    """Have the suites tell of their steps, those that are imported and those that will be; theirs is called as before."""
    patches = Patches()
    if disabled():
        return patches
    _job()  # its hooks are to see the first batch, which comes before the first call
    hook = guarded(SEAM, lambda name: _hook(patches, name), None)
    watcher = watch(dict(zip(MODULES, MODULES, strict=True)), hook)
    patches.on_undo(lambda: sys.meta_path.remove(watcher))
    return patches


class _Step:
    """A suite's own function, told of before it is called."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _mark_step()
        return self._original(*args, **kwargs)


def _hook(patches: Patches, name: str) -> None:
    """Replace the function wherever a module has it, unless it is told of already."""
    original = getattr(sys.modules[name], SEAM)
    if original is add_profiler_step or isinstance(original, _Step):
        return
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(SEAM) is original:
            patches.replace(module, SEAM, _Step)


def _mark_step_unguarded() -> None:
    job = _job()
    if job is not None:
        job.tracker.mark_step()


_mark_step = guarded(SEAM, _mark_step_unguarded, None)
