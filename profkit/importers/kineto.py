"""PyTorch profiler (Kineto) and Paddle profiler traces: Chrome JSON, plain or gzipped, one file a rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from profkit.importers._base import Imported, Target
from profkit.importers._chrome import read_chrome
from profkit.importers._rank_files import RankFile, Summary, rank_in_name, write_rank


class Kineto:
    """Files of one command whose ranks differ are one run; else each file is a run."""

    name = "kineto"
    title = "PyTorch profiler (Kineto) and Paddle profiler, Chrome JSON"

    def recognises(self, head: bytes, path: Path) -> float:
        text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        if not text.startswith((b"{", b"[")):
            return 0.0
        if b'"traceEvents"' in head or b'"schemaVersion"' in head:
            return 0.9
        return 0.6 if re.search(rb'"ph"\s*:\s*"[A-Za-z]"', head) else 0.0

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        if len(sources) == 1:
            yield self._import(sources, target)
            return
        ranks = [_told_rank(path) for path in sources]
        if None not in ranks and len(set(ranks)) == len(ranks):
            yield self._import(sources, target)
        else:
            for path in sources:
                yield self._import([path], target)

    def _import(self, sources: Sequence[Path], target: Target) -> Imported:
        with target.new_run(self.name, sources) as draft:
            world, summary = 1, Summary()
            for path in sources:
                file = RankFile(path, read_chrome(path))
                world = max(world, file.world_size, len(sources))
                write_rank(draft, file, world, target, summary)
            draft.flags.extend(summary.flags)
            return draft.finish(summary.manifest(world))


def _told_rank(path: Path) -> int | None:
    """The rank by the file's name or, where that does not tell, by its content."""
    found = rank_in_name(path)
    return RankFile(path, read_chrome(path)).rank if found is None else found


IMPORTER = Kineto()
