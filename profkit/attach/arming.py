"""Waits for a framework to be imported, then hooks it. Standard library only until then."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from profkit.environment import disabled
from profkit.instrument.guard import guarded
from profkit.vocab import FRAMEWORKS


def arm() -> None:
    """Hook each framework as soon as the job has imported it."""
    if disabled():
        return
    waiting = dict(FRAMEWORKS)
    for module in FRAMEWORKS:
        if module in sys.modules:
            _hook(waiting.pop(module))
    if waiting:
        sys.meta_path.insert(0, _Watcher(waiting, _hook))


def _hook(framework: str) -> None:
    guarded(f"hooks of {framework}", _hook_unguarded, None)(framework)


def _hook_unguarded(framework: str) -> None:
    from profkit.job import current_job

    current_job().hook(framework)


class _Watcher:
    """Finds the watched modules as they would be found without it, and tells when one has been executed."""

    def __init__(self, waiting: dict[str, str], tell: Callable[[str], None]) -> None:
        self._waiting = waiting
        self._tell = tell

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self._waiting:
            return None
        framework = self._waiting.pop(name)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _after_execution(spec.loader, lambda: self._tell(framework))
        return spec


def _after_execution(loader: Any, then: Callable[[], None]) -> None:
    """Have `then` called when the loader has executed its module without an error."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        then()

    loader.exec_module = exec_module
