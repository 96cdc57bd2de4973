"""Lanes of all ranks of a run, read when they are first asked for."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from profkit.analysis.timeline.cache import LaneCache
from profkit.analysis.timeline.lanes import COLUMNS, TABLE_OF, Group, Lane, lanes_of, streams_of
from profkit.errors import UnreadableError
from profkit.frame.device_clock import has_device_times
from profkit.frame.device_times import trains_on_device
from profkit.trace.reader import RankTrace
from profkit.vocab import END_FILE

MOST_PIECES = 34_000_000
"""Pieces that are kept in memory; beyond that the lanes that were used longest ago are released.

Pieces of mapped files do not count.
"""

LAUNCHES = "launches"
"""The label of the row of phases of a rank whose device was not timed: they are the host's."""

KEPT = frozenset({Group.DEVICES, Group.STREAMS})
"""Groups whose table may be large enough to be worth keeping on disk."""


class _Key(NamedTuple):
    """Lanes of a rank, without pieces shorter than `at_least_ns`."""

    rank: int
    group: Group
    at_least_ns: int


class LaneStore:
    """The lanes that were read so far. Several threads may use it."""

    def __init__(
        self,
        ranks: Mapping[int, RankTrace],
        cache: Path | None,
        problems: dict[tuple[int, str], str],
        *,
        own: bool,
    ) -> None:
        """Keep lanes of large tables in the folder `cache`, and note damage in `problems`.

        `own` runs were recorded by profkit itself.
        """
        self._ranks = ranks
        self._own = own
        self._cache = LaneCache(cache)
        self._problems = problems
        self._lanes: dict[_Key, tuple[Lane, ...]] = {}
        self._used: dict[_Key, int] = {}
        self._uses = itertools.count()
        self._lock = threading.Lock()

    def loaded(self) -> Iterator[tuple[int, Lane]]:
        """Yield the lanes that were read, with their ranks."""
        for key, lanes in list(self._lanes.items()):
            for lane in lanes:
                yield key.rank, lane

    def ready(self, rank: int, group: Group, at_least_ns: int) -> bool:
        """Return True if `lanes` would read nothing."""
        return _Key(rank, group, at_least_ns) in self._lanes

    def lanes(self, rank: int, group: Group, at_least_ns: int) -> tuple[Lane, ...]:
        """Return the rank's lanes of a group, without shorter pieces; read them if necessary.

        Lanes that were read before are returned without waiting for another thread. Besides 0, only
        the last duration that was asked for is kept.
        """
        key = _Key(rank, group, at_least_ns)
        self._used[key] = next(self._uses)
        lanes = self._lanes.get(key)
        if lanes is not None:
            return lanes
        with self._lock:
            lanes = self._lanes.get(key)
            if lanes is None:
                lanes = self._lanes[key] = self._read(key)
                self._release_oldest(key)
        return lanes

    def forget(self) -> None:
        """Release all lanes; they are read again when they are shown again."""
        with self._lock:
            self._lanes.clear()

    def _read(self, key: _Key) -> tuple[Lane, ...]:
        if key.group is Group.STREAMS:
            streams = streams_of(self._lanes.get(key._replace(group=Group.DEVICES), ()))
            if streams is not None:
                return streams
        if not key.at_least_ns:
            return self._whole(key.rank, key.group)
        for old in list(self._lanes):
            if old.at_least_ns not in {0, key.at_least_ns}:
                del self._lanes[old]
        whole = key._replace(at_least_ns=0)
        if whole not in self._lanes:
            self._lanes[whole] = self._read(whole)
        shortened = [lane.at_least(key.at_least_ns) for lane in self._lanes[whole]]
        return tuple(self._cache.mapped(shortened))

    def _whole(self, rank: int, group: Group) -> tuple[Lane, ...]:
        trace, table = self._ranks[rank], TABLE_OF[group]
        sources = [trace.path(table), trace.path("strings")]
        kept = group in KEPT and (trace.folder / END_FILE).exists() and trace.path(table).exists()
        lanes = None
        if kept:
            lanes = self._cache.load(group, sources)
        if lanes is None:
            rows, self._problems[rank, table] = trace.select(table, COLUMNS[table])
            lanes = lanes_of(group, rows)
            if group is Group.PHASES and self._lacks_device_times(trace, rows):
                lanes = [dataclasses.replace(lane, label=LAUNCHES) for lane in lanes]
            if kept and self._cache.save(group, sources, lanes):
                # As a mapped file they take no memory.
                lanes = self._cache.load(group, sources) or lanes
        return tuple(lanes)

    def _lacks_device_times(self, trace: RankTrace, spans: pa.Table) -> bool:
        """Return true if a device worked for these spans, and only the host knows them."""
        with contextlib.suppress(UnreadableError):
            return self._own and trains_on_device(trace) and not has_device_times(spans).any()
        return False

    def _release_oldest(self, kept: _Key) -> None:
        sizes = {}
        for key, lanes in list(self._lanes.items()):
            sizes[key] = sum(len(lane.level.pieces) for lane in lanes if lane.level.kept is None)
        for oldest in sorted(sizes.keys() - {kept}, key=lambda key: self._used.get(key, 0)):
            if sum(sizes.values()) <= MOST_PIECES:
                return
            del self._lanes[oldest], sizes[oldest]
