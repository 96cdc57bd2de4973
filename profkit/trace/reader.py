"""Open a run: its manifest, and the tables of all ranks with names instead of ids."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from profkit.address import to_path
from profkit.notebook import ShownInNotebook
from profkit.schema import open_schema
from profkit.text import safe_text
from profkit.trace.folders import check_folder, find_ranks, find_runs, rank_manifests, read_run
from profkit.trace.manifest import RunManifest
from profkit.trace.rank import LOST_NAME, RankEnd, RankTrace, check_seen, name_ids
from profkit.trace.sharing import Sharing, find_sharing, share_samples
from profkit.vocab import LOADER_WORKER, EventKind

__all__ = [
    "LOST_NAME",
    "Mapper",
    "RankEnd",
    "RankTrace",
    "Trace",
    "check_folder",
    "check_seen",
    "events_of",
    "find_ranks",
    "find_runs",
    "name_ids",
]

Mapper: TypeAlias = Callable[..., Iterable[Any]]
"""`map`, or an executor's method of that name: it returns results in the order of the input."""

SMALL_PIECE_ROWS = 1_000
"""To go through pieces of a table costs as much as through so many rows, at each selection."""

MOST_JOINED_ROWS = 2_000_000
"""Larger tables are left in pieces: to join them takes their memory once more."""


def _kept_table(name: str) -> functools.cached_property[pa.Table]:
    """Return a property of `Trace` that reads a table once."""
    return functools.cached_property(lambda trace: trace.table(name))


def events_of(events: pa.Table, *kinds: EventKind) -> pa.Table:
    """Return the events of these kinds."""
    values = pa.array([kind.value for kind in kinds], pa.string())
    return events.filter(pc.is_in(events["kind"].cast(pa.string()), values))


@dataclass(frozen=True)
class Trace(ShownInNotebook):
    """A run on disk, opened for reading. Each table is read once, when it is asked for."""

    path: Path
    manifest: RunManifest
    ranks: tuple[RankTrace, ...]

    @classmethod
    def open(cls, run: str | Path) -> Trace:
        """Open a run's folder. An `UnreadableError` says what is wrong with it and what helps."""
        path = to_path(run)
        check_folder(path)
        ranks = tuple(find_ranks(path))
        return cls(path, read_run(path, ranks), ranks)

    @property
    def name(self) -> str:
        return safe_text(self.path.resolve().name)

    @property
    def own_warm_up(self) -> int | None:
        """The warm-up of a part of a run; `None` for a whole run."""
        return None

    @property
    def is_part(self) -> bool:
        """True for some steps of a run, which need not begin with the run's first."""
        return self.own_warm_up is not None

    spans = _kept_table("spans")
    kernels = _kept_table("kernels")
    collectives = _kept_table("collectives")
    samples = _kept_table("samples")
    events = _kept_table("events")
    frames = _kept_table("frames")
    sums = _kept_table("sums")

    @functools.cached_property
    def derived(self) -> dict[Any, Any]:
        """What readers have computed of the run, by what they computed."""
        return {}

    @functools.cached_property
    def sharing(self) -> Sharing:
        """The ranks that train on the same samples."""
        return find_sharing(rank_manifests(self.ranks))

    @functools.cached_property
    def steps(self) -> pa.Table:
        """The steps of all ranks, with each sample on one of the ranks that share it."""
        if not self.is_part:
            self._share_columns()
        whole = self.table("steps")
        if not self.is_part and whole["rank"].num_chunks == 1:
            self._keep_once(whole)
        return share_samples(whole, self.sharing)

    def _share_columns(self) -> None:
        """Keep columns of steps once that ranks have in common with the first one."""
        known = [rank.content("steps").batches for rank in self.ranks[:1]]
        for rank in self.ranks[1:]:
            content, shared = rank.content("steps"), []
            for batch, first in zip(content.batches, known[0], strict=False):
                pairs = zip(first.columns, batch.columns, strict=True)
                columns = [one if one.equals(own) else own for one, own in pairs]
                shared.append(pa.RecordBatch.from_arrays(columns, schema=batch.schema))
            batches = (*shared, *content.batches[len(shared) :])
            rank.contents["steps"] = dataclasses.replace(content, batches=batches)

    def _keep_once(self, steps: pa.Table) -> None:
        """Let the ranks' rows be those of the whole table, so that they are in memory once."""
        first = 0
        for rank in self.ranks:
            content = rank.content("steps")
            own = steps.slice(first, content.rows).to_batches()
            rank.contents["steps"] = dataclasses.replace(content, batches=tuple(own))
            first += content.rows

    @functools.cached_property
    def stacks(self) -> pa.Table:
        """Samples of the threads that train."""
        return self._samples_of_workers[0]

    @functools.cached_property
    def worker_stacks(self) -> pa.Table:
        """Samples of the loaders' workers."""
        return self._samples_of_workers[1]

    @functools.cached_property
    def _samples_of_workers(self) -> tuple[pa.Table, pa.Table]:
        """The samples of all threads but them, and theirs."""
        table = self.table("stacks")
        is_worker = pc.starts_with(table["thread"].cast(pa.string()), LOADER_WORKER)
        return table.filter(pc.invert(is_worker)), table.filter(is_worker)

    def table(self, table: str) -> pa.Table:
        """Return all ranks' rows of one table, rank after rank, with names as one dictionary."""
        parts = [rank.table(table) for rank in self.ranks]
        if not parts:
            return open_schema(table).empty_table()
        whole = pa.concat_tables(parts).unify_dictionaries()
        pieces = whole["rank"].num_chunks
        if whole.num_rows > min(MOST_JOINED_ROWS, SMALL_PIECE_ROWS * pieces):
            return whole
        return whole.combine_chunks()

    @property
    def dropped(self) -> int:
        """Number of rows that the job handed over and that were not written."""
        return sum(rank.end.dropped for rank in self.ranks if rank.end)

    @property
    def problems(self) -> tuple[str, ...]:
        """Damage in the tables that were read so far. Rows before the damage are in the tables."""
        return tuple(problem for rank in self.ranks for problem in rank.problems)

    @property
    def changed(self) -> tuple[str, ...]:
        """Tables, of those read so far, that were changed since: no figure of them is reliable."""
        places = []
        for rank in self.ranks:
            for table, content in rank.read_so_far():
                if content.changed:
                    places.append(f"rank {rank.rank}, {table}")
        return tuple(places)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the job's world that left no folder."""
        here = {rank.rank for rank in self.ranks}
        return tuple(sorted(set(range(self.manifest.world_size)) - here))
