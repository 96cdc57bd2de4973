"""What kind of process this is: one of a command of profkit, one with real threads."""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable, Sequence
from typing import Any

_claims: list[str] = []


def claim_process() -> None:
    """Say that this process was started for a command."""
    _claims.append(__name__)


def threads_are_patched() -> bool:
    """Return true if gevent, eventlet or the like has replaced the threads of this process.

    A new thread is a greenlet then, and belongs to the thread of the operating system that started
    it. A debugger may wrap the start of a thread, but not the identity of one.
    """
    return _thread.get_ident.__module__ != _thread.__name__


def spare_pandas(make_array: Callable[[list[bool]], Any]) -> None:
    """Let `pyarrow.array` find no pandas in a process of profkit's own.

    It looks once, and importing pandas takes a second. A plug-in can still convert from and to it.
    """
    if not _claims or "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        make_array([True])
    finally:
        sys.meta_path.remove(_NoPandas)


class _NoPandas:
    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None, _target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
