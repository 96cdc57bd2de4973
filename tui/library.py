"""The runs that are open, and the views that were built from them."""

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

MAX_OPEN_RUNS: Final = 2
"""The tables of this many runs stay in memory, which is enough to compare two."""

MAX_VIEWS: Final = 64


@dataclass(frozen=True)
class Source:
    """The input from which a screen builds its view."""

    trace: Trace
    bases: tuple[Trace, ...] = ()
    """The runs to compare with, the base first."""
    rank: int | None = None
    ceilings: Ceilings | None = None


class _Key(NamedTuple):
    path: Path
    bases: tuple[Path, ...]
    name: str
    rank: int | None


class Library:
    """Opens each run and builds each view once; used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._traces: OrderedDict[Path, Trace] = OrderedDict()
        self._views: OrderedDict[_Key, Any] = OrderedDict()
        self._stamps: dict[Path, Hashable] = {}

    def trace(self, path: Path) -> Trace:
        """Return the trace of a run, opened if it is not open yet."""
        with self._lock:
            if path not in self._traces:
                self._stamps[path] = stamp(path)
                self._traces[path] = Trace.open(path)
            self._traces.move_to_end(path)
            while len(self._traces) > MAX_OPEN_RUNS:
                self._traces.popitem(last=False)
            return self._traces[path]

    def ranks(self, path: Path) -> tuple[int, ...]:
        """Return the ranks of a run that is open."""
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
        """Return the view of a screen, built if it was not built before."""
        key = _Key(path, tuple(bases), name, rank)
        with self._lock:
            if key in self._views:
                self._views.move_to_end(key)
                return self._views[key]
        compared = tuple(map(self.trace, bases))
        trace = self.trace(path)
        ceilings = load_ceilings(trace.manifest.environment)
        view = build(Source(trace, compared, rank, ceilings))
        with self._lock:
            self._views[key] = view
            while len(self._views) > MAX_VIEWS:
                self._views.popitem(last=False)
        return view

    def known(self, name: str, path: Path) -> Any:
        """Return the view of a screen if it was built before, else `None`."""
        with self._lock:
            return self._views.get(_Key(path, (), name, None))

    def forget_grown(self, path: Path) -> bool:
        """Drop a run and its views if its files have changed since it was opened.

        Return True if they have.
        """
        if self._stamps.get(path) == stamp(path):
            return False
        with self._lock:
            self._traces.pop(path, None)
            for key in list(self._views):
                if path == key.path or path in key.bases:
                    del self._views[key]
        return True


def stamp(run: Path) -> tuple[int, int, int]:
    """Return the number of a run's files, their total size, and the time of the last change."""
    files = size = newest_ns = 0
    for file in run.rglob("*"):
        if file.is_file():
            status = file.stat()
            files += 1
            size += status.st_size
            newest_ns = max(newest_ns, status.st_mtime_ns)
    return files, size, newest_ns
