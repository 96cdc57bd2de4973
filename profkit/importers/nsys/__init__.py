"""Nsight Systems exports (`nsys export --type sqlite`), schemas 3.13 and later.

Each process becomes a rank, on each device that it trains on. The schema changes from version to
version, so a table is known by its columns: required ones are checked, all others are optional.
Environment variables, command lines and user names are in tables that are never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from profkit.importers.base import Imported, Target
from profkit.importers.nsys.export import Export
from profkit.importers.nsys.joining import join_communicators
from profkit.importers.reading.rank_files import (
    Held,
    RankFile,
    RunSummary,
    write_collectives,
    write_rank,
)
from profkit.importers.reading.sqlite import open_read_only


class Nsys:
    """Imports each file as a run, with a rank for each process and device that trains."""

    name = "nsys"
    title = "Nsight Systems, exported to SQLite"

    def recognises(self, head: bytes, path: Path) -> float:
        if not head.startswith(b"SQLite format 3\0"):
            return 0.0
        if b"CUPTI_ACTIVITY" in head or b"StringIds" in head:
            return 0.9
        return 0.5

    def divide(self, sources: Sequence[Path]) -> list[Sequence[Path]]:
        """Return the files of each run."""
        return [[path] for path in sources]

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        for path in sources:
            with target.new_run(self.name, [path]) as draft:
                summary = RunSummary()
                with open_read_only(path) as connection:
                    export = Export(connection, path)
                    traces = export.traces()
                for flag in export.flags:
                    summary.flag(flag)
                held: Held = []
                for trace in traces:
                    write_rank(draft, RankFile(path, trace), len(traces), target, summary, held)
                for flag in join_communicators([each.columns for _, each in held]):
                    summary.flag(flag)
                for tables, collectives in held:
                    write_collectives(tables, collectives, summary)
                draft.flags.extend(summary.flags)
                yield draft.finish(summary.manifest(len(traces)))


IMPORTER = Nsys()
