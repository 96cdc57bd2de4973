"""PyTorch profiler (Kineto) and Paddle profiler traces: Chrome JSON, one file per rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from profkit.importers.base import Imported, Target, read_head
from profkit.importers.kineto.aligning import Aligner
from profkit.importers.reading.chrome import read_chrome
from profkit.importers.reading.rank_files import (
    MAX_RANKS,
    RankFile,
    RunSummary,
    name_of_run,
    stated_rank,
    write_rank,
)

_SIZE_IN_HEAD = re.compile(
    rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"world_size"\s*:\s*"?(\d{1,6})\b'
)


class Kineto:
    """Imports files with different ranks as one run, and other files as a run each."""

    name = "kineto"
    title = "PyTorch profiler (Kineto) and Paddle profiler, Chrome JSON"

    def recognises(self, head: bytes, path: Path) -> float:
        text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        if not text.startswith((b"{", b"[")):
            return 0.0
        if b'"traceEvents"' in head or b'"schemaVersion"' in head:
            return 0.9
        if re.search(rb'"ph"\s*:\s*"[A-Za-z]"', head):
            return 0.6
        return 0.0

    def divide(self, sources: Sequence[Path]) -> list[Sequence[Path]]:
        """Return the files of each run."""
        if self._find_ranks(sources):
            return [sources]
        return [[path] for path in sources]

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        ranks = self._find_ranks(sources)
        if ranks:
            yield self._import(ranks, target)
        else:
            for path in sources:
                yield self._import({path: None}, target)

    def _find_ranks(self, sources: Sequence[Path]) -> dict[Path, int | None]:
        """Return the rank of each file, nothing if they are not ranks of one job."""
        ranks = {path: stated_rank(path, read_head(path)) for path in sources}
        different = set(ranks.values())
        if len(sources) > 1 and None not in different and len(different) == len(sources):
            return ranks
        return {}

    def _import(self, ranks: Mapping[Path, int | None], target: Target) -> Imported:
        with target.new_run(self.name, list(ranks), name_of_run(list(ranks))) as draft:
            world_size, summary = _world_size(ranks), RunSummary()
            aligner = Aligner() if len(ranks) > 1 else None
            for path, rank in ranks.items():
                file = RankFile(path, read_chrome(path), rank)
                # What only stands at a file's end is too late for the ranks before it.
                world_size = max(world_size, file.world_size, (file.rank or 0) + 1)
                write_rank(draft, file, world_size, target, summary, aligner=aligner)
            for flag in aligner.flags() if aligner else ():
                summary.flag(flag)
            draft.flags.extend(summary.flags)
            return draft.finish(summary.manifest(world_size))


def _world_size(ranks: Mapping[Path, int | None]) -> int:
    """Return the largest number of ranks that any file states at its beginning, or needs."""
    sizes = [len(ranks)]
    for path, rank in ranks.items():
        sizes.append((rank or 0) + 1)
        stated = _SIZE_IN_HEAD.search(read_head(path))
        if stated:
            sizes.append(int(stated[1]))
    return min(max(sizes), MAX_RANKS)


IMPORTER = Kineto()
