"""The border between profkit and the job: nothing that goes wrong on our side crosses it."""

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
"""How often each hook failed in this process, by its name."""


def guarded(site: str, function: Callable[P, R], instead: R) -> Callable[P, R]:
    """`function`, except that it returns `instead` where it raises; the first time at a site is told."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # the border to the job: whatever we did wrong, it goes on
            report_failure(site, error)
            return instead

    return call


def report_failure(site: str, error: Exception) -> None:
    """Count a failure, and warn of the first at its site."""
    FAILURES[site] += 1
    if FAILURES[site] == 1:
        log.warning(
            "profkit: %s failed, and is left out where it fails; the job goes on: %s: %s",
            site,
            type(error).__name__,
            error,
        )


class Patches:
    """Replacements of other people's attributes, and how to take them back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Put `wrap(original)` in the place of `owner.name`."""
        own = vars(owner).get(name)  # as it is stored: a descriptor is bound when it is read
        original = getattr(owner, name)
        wrapper = wrap(original)
        setattr(owner, name, wrapper)

        def restore() -> None:
            if vars(owner).get(name) is not wrapper:
                return  # somebody replaced it after us; theirs stays, and ours is inert
            if own is not None:
                setattr(owner, name, own)
            else:
                delattr(owner, name)

        self._undo.append(restore)

    def on_undo(self, undo: Callable[[], object]) -> None:
        """Something else that has to be taken back."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Take everything back, the last first."""
        while self._undo:
            self._undo.pop()()
