"""Measure what recording adds to a collective that the job calls itself, on one rank.

Bare and recorded blocks of calls alternate in one process. The result is the median over the
blocks, in microseconds per call, as JSON.
"""

from __future__ import annotations

import datetime as dt
import json
import statistics
import time
from typing import Any

import torch
from torch import distributed

from profkit.instrument.frameworks.base import InnerBooks
from profkit.instrument.frameworks.pytorch import FRAMEWORK
from profkit.instrument.recorder import MemorySink, Recorder

dist: Any = distributed  # some of its names are not exported
BLOCKS, CALLS = 30, 200


def time_block(*, waits: bool) -> float:
    """Return the time of a call in us."""
    tensor = torch.ones(16)
    start = time.perf_counter()
    for _ in range(CALLS):
        work: Any = dist.all_reduce(tensor, async_op=not waits)
        if not waits:
            work.wait()
    return (time.perf_counter() - start) / CALLS * 1e6


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", rank=0, world_size=1, store=dist.HashStore(), timeout=dt.timedelta(seconds=60)
    )
    found: dict[str, list[float]] = {}
    for _ in range(BLOCKS):
        for waits in (True, False):
            kind = "waits" if waits else "asynchronous"
            bare = time_block(waits=waits)
            sink = MemorySink()
            books = InnerBooks(
                Recorder(sink), sink.appender("collectives"), sink.appender("samples")
            )
            patches, _ = FRAMEWORK.install_inner(books)
            try:
                added = time_block(waits=waits) - bare
            finally:
                patches.undo()
            found.setdefault(f"{kind}_bare_us", []).append(bare)
            found.setdefault(f"{kind}_added_us", []).append(added)
    print(json.dumps({name: statistics.median(values) for name, values in found.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
