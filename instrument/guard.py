"""Keeps errors of profkit out of the job, and undoes what profkit has patched."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

log = logging.getLogger("profkit")

P = ParamSpec("P")
R = TypeVar("R")

FAILURES: Counter[str] = Counter()
"""Number of failures of each hook in this process, by its name."""


def guarded(site: str, function: Callable[P, R], instead: R) -> Callable[P, R]:
    """Return a function that returns `instead` if `function` raises; the first time it warns."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # our errors must not stop the job
            report_failure(site, error)
            return instead

    return call


def report_failure(site: str, error: Exception) -> None:
    """Count a failure, and warn of the first of its site."""
    FAILURES[site] += 1
    if FAILURES[site] == 1:
        log.warning(
            "profkit: %s failed and is skipped; the job continues: %s: %s",
            site,
            type(error).__name__,
            error,
        )


class Patches:
    """Replacements of other people's attributes, which can be undone."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `wrap(original)`."""
        own = vars(owner).get(name)  # as stored, because reading a descriptor binds it
        original = getattr(owner, name)
        wrapper = wrap(original)
        setattr(owner, name, wrapper)

        def restore() -> None:
            if vars(owner).get(name) is not wrapper:
                return  # somebody replaced it after us; theirs stays
            if own is not None:
                setattr(owner, name, own)
            else:
                delattr(owner, name)

        self._undo.append(restore)

    def on_undo(self, undo: Callable[[], object]) -> None:
        """Call `undo` when the replacements are undone."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Undo everything, the last first."""
        while self._undo:
            self._undo.pop()()
