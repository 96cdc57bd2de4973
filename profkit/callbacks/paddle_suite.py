"""Record PaddleClas, PaddleSeg and PaddleVideo, whose loops call a profiler once per step.

    from profkit.callbacks import paddle_suite
    paddle_suite.install()

before the suite trains, or this module in place of theirs:

    sys.modules["ppcls.utils.profiler"] = paddle_suite

Their profiler does nothing without options; this one records each step, whatever the options. After
`install()`, theirs is still called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from profkit.attached import disabled
from profkit.instrument.guard import Patches, guarded, report_failure
from profkit.run.attach.watcher import watch
from profkit.run.loop import _job

HOOK_POINT = "add_profiler_step"
"""The function that the suites' training loops call."""

MODULES = ("ppcls.utils.profiler", "paddleseg.utils.train_profiler", "paddlevideo.utils.profiler")
"""The modules of PaddleClas, PaddleSeg and PaddleVideo that define it."""


def add_profiler_step(options_str: str | None = None) -> None:
    """Mark a training step, before it (PaddleClas, PaddleVideo) or after it (PaddleSeg)."""
    try:
        job = _job()
        if job is not None:
            job.tracker.mark_step()
    except Exception as failure:  # noqa: BLE001  # our errors must not stop the job
        report_failure(HOOK_POINT, failure)


def install() -> Patches:
    """Record the steps of all suites, whether imported already or later."""
    patches = Patches()
    if disabled():
        return patches
    _job()  # its hooks must see the first batch, which comes before the first call
    hook = guarded(HOOK_POINT, lambda name: _hook(patches, name), None)
    watcher = watch(dict(zip(MODULES, MODULES, strict=True)), hook)
    patches.on_undo(lambda: sys.meta_path.remove(watcher))
    return patches


class _Step:
    """A suite's own function, which marks a step before it runs."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        add_profiler_step()
        return self._original(*args, **kwargs)


def _hook(patches: Patches, name: str) -> None:
    """Replace the function in every module that has it, unless it marks steps already."""
    original = getattr(sys.modules[name], HOOK_POINT)
    if original is add_profiler_step or isinstance(original, _Step):
        return
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(HOOK_POINT) is original:
            patches.replace(module, HOOK_POINT, _Step)
