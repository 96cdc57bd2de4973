"""Hook the parts of a framework that a job imports later, if it does at all."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from profkit.instrument.guard import guarded
from profkit.run.attach.watcher import watch

if TYPE_CHECKING:
    from profkit.instrument.frameworks.base import Books, Framework
    from profkit.instrument.guard import Patches


def hook_later(framework: Framework, patches: Patches, books: Books) -> None:
    """Install each hook of `framework.later` now, or as soon as its module was imported."""

    def hook(module: str) -> None:
        guarded(f"hooks of {module}", framework.later[module], None)(patches, books)

    if not framework.later:
        return
    watcher = watch({module: module for module in framework.later}, hook)

    def stop() -> None:
        with contextlib.suppress(ValueError):  # the job may have replaced the list
            sys.meta_path.remove(watcher)

    patches.on_undo(stop)
