"""PyTorch profiler (Kineto) and Paddle profiler traces: Chrome JSON, plain or gzipped, one file a rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from profkit.importers.base import Imported, Target, read_head
from profkit.importers.reading.chrome import read_chrome
from profkit.importers.reading.rank_files import RankFile, Summary, told_rank, write_rank


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
        ranks = [told_rank(path, read_head(path)) for path in sources]
        if len(sources) > 1 and None not in ranks and len(set(ranks)) == len(ranks):
            yield self._import(dict(zip(sources, ranks, strict=True)), target)
        else:
            for path in sources:
                yield self._import({path: None}, target)

    def _import(self, sources: Mapping[Path, int | None], target: Target) -> Imported:
        with target.new_run(self.name, list(sources)) as draft:
            world, summary = 1, Summary()
            for path, rank in sources.items():
                file = RankFile(path, read_chrome(path), rank)
                world = max(world, file.world_size, len(sources), (file.rank or 0) + 1)
                write_rank(draft, file, world, target, summary)
            draft.flags.extend(summary.flags)
            return draft.finish(summary.manifest(world))


IMPORTER = Kineto()
