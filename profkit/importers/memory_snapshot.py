"""PyTorch's memory snapshots: what fills a device at the moment of most allocated bytes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from profkit.analysis.memory.ledger import build_ledgers, write_ledgers
from profkit.clock import Anchor
from profkit.importers.base import Imported, Target
from profkit.trace.manifest import RankManifest, RunManifest

_HEAD = re.compile(rb"\x80.{0,99999}?(?:device_traces|segments)", re.DOTALL)


class MemorySnapshot:
    """Imports each file as a run of its own, which has a ledger of bytes and no steps."""

    name = "memory_snapshot"
    title = "PyTorch memory snapshot, a pickle"

    def recognises(self, head: bytes, path: Path) -> float:
        return 0.9 * bool(_HEAD.match(head))

    def divide(self, sources: Sequence[Path]) -> Iterator[Sequence[Path]]:
        return ((path,) for path in sources)

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        for path in sources:
            ledgers = build_ledgers(path)
            events = sum(ledger.events for ledger in ledgers)
            with target.new_run(self.name, (path,), path.stem) as draft:
                draft.rank(RankManifest(0, "", 0, "", Anchor(0, 0, 0)))
                write_ledgers(draft.run, ledgers)
                made = draft.finish(RunManifest("", framework="pytorch"))
            yield dataclasses.replace(made, rows={"devices": len(ledgers), "events": events})


IMPORTER = MemorySnapshot()
