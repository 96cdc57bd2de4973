"""The runs that are open, and the views that were made of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.kept_ceilings import load_ceilings
from profkit.trace import Trace

MOST_OPEN: Final = 2
"""Runs whose tables are kept: the two that are compared. More would fill the memory of who looks through a folder."""

MOST_VIEWS: Final = 64


@dataclass(frozen=True)
class Source:
    """What a screen is built from."""

    trace: Trace
    bases: tuple[Trace, ...] = ()
    """The runs that it is compared with, the base first."""
    rank: int | None = None
    ceilings: Ceilings | None = None


class _Key(NamedTuple):
    path: Path
    bases: tuple[Path, ...]
    name: str
    rank: int | None


class Library:
    """Opens runs and builds views once; used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._traces: OrderedDict[Path, Trace] = OrderedDict()
        self._views: OrderedDict[_Key, Any] = OrderedDict()
        self._stamps: dict[Path, Hashable] = {}

    def trace(self, path: Path) -> Trace:
        with self._lock:
            if path not in self._traces:
                self._stamps[path] = stamp(path)
                self._traces[path] = Trace.open(path)
            self._traces.move_to_end(path)
            while len(self._traces) > MOST_OPEN:
                self._traces.popitem(last=False)
            return self._traces[path]

    def ranks(self, path: Path) -> tuple[int, ...]:
        with self._lock:
            trace = self._traces.get(path)
        return tuple(rank.rank for rank in trace.ranks) if trace else ()

    def view(
        self,
        name: str,
        build: Callable[[Source], Any],
        path: Path,
        bases: Sequence[Path] = (),
        rank: int | None = None,
    ) -> Any:
        """The view of a screen, built where there is none yet."""
        key = _Key(path, tuple(bases), name, rank)
        with self._lock:
            if key in self._views:
                self._views.move_to_end(key)
                return self._views[key]
        view = build(self.source(path, bases, rank))
        with self._lock:
            self._views[key] = view
            while len(self._views) > MOST_VIEWS:
                self._views.popitem(last=False)
        return view

    def source(self, path: Path, bases: Sequence[Path], rank: int | None) -> Source:
        compared = tuple(map(self.trace, bases))
        trace = self.trace(path)
        return Source(trace, compared, rank, load_ceilings(trace.manifest.environment))

    def grew(self, path: Path) -> bool:
        """Whether the run's files have changed since it was opened."""
        return self._stamps.get(path) != stamp(path)

    def forget(self, path: Path) -> None:
        """Read the run anew when it is next asked for."""
        with self._lock:
            self._traces.pop(path, None)
            self._views = OrderedDict(
                (key, view)
                for key, view in self._views.items()
                if path not in {key.path, *key.bases}
            )


def stamp(run: Path) -> tuple[int, int, int]:
    """What changes when a run grows: how many files it has, how large they are in all, and when one was last written."""
    sizes = [file.stat() for file in run.rglob("*") if file.is_file()]
    return (
        len(sizes),
        sum(size.st_size for size in sizes),
        max((size.st_mtime_ns for size in sizes), default=0),
    )
