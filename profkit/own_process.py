"""Permissions of a process that was started for a command of profkit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

_claims: list[str] = []


def claim_process() -> None:
    """Say that this process was started for a command."""
    _claims.append(__name__)


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
