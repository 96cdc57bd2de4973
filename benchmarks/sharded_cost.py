"""Measure what recording adds to a collective that a job calls, next to other ways to see it.

    torchrun --standalone --nproc-per-node 2 benchmarks/sharded_cost.py

Blocks of calls alternate in one process: bare, recorded by profkit, captured by torch's own
profiler, and with hooks of process groups that do nothing. The first rank prints as JSON, for each
way and in microseconds per call, the median of the bare blocks and of what the others add to the
bare block of their round: on the wall clock, and in processor time of all threads, which says more
on a machine that does other work.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed

from profkit.instrument.frameworks.base import InnerBooks
from profkit.instrument.frameworks.pytorch import FRAMEWORK
from profkit.instrument.recorder import MemorySink, Recorder

dist: Any = distributed  # some of its names are not exported
BLOCKS, CALLS = 25, 200
ELEMENTS = 16
HOOK_ID = 1
CLOCKS = ("wall_us", "processor_us")


@contextlib.contextmanager
def record() -> Iterator[None]:
    """Record with profkit, into memory."""
    sink = MemorySink()
    books = InnerBooks(Recorder(sink), sink.appender("collectives"), sink.appender("samples"))
    patches, _ = FRAMEWORK.install_inner(books)
    try:
        yield
    finally:
        patches.undo()
    rows = len(sink.rows["collectives"])
    assert rows >= CALLS, f"{rows} rows of {CALLS} calls"


@contextlib.contextmanager
def capture() -> Iterator[None]:
    """Capture with torch's profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        yield


@contextlib.contextmanager
def hook_nothing() -> Iterator[None]:
    """Register hooks that do nothing; torch before 2.15 has none."""
    group = dist.group.WORLD
    group.register_pre_hook(HOOK_ID, lambda args: None)
    group.register_post_hook(HOOK_ID, lambda args: None)
    try:
        yield
    finally:
        group.unregister_pre_hook(HOOK_ID)
        group.unregister_post_hook(HOOK_ID)


WAYS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "profkit": record,
    "profiler": capture,
    "empty": hook_nothing,
}


def time_block(*, waits: bool) -> tuple[float, float]:
    """Return the wall and the processor time of a call in us, which another rank joins."""
    tensor = torch.ones(ELEMENTS)
    dist.barrier()
    start, processor = time.perf_counter(), time.process_time()
    for _ in range(CALLS):
        work: Any = dist.all_reduce(tensor, async_op=not waits)
        if not waits:
            work.wait()
    per_us = 1e6 / CALLS
    return (time.perf_counter() - start) * per_us, (time.process_time() - processor) * per_us


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: dict[str, list[float]] = {}
    for _ in range(BLOCKS):
        for waits in (True, False):
            kind = "waits" if waits else "asynchronous"
            bare = time_block(waits=waits)
            for clock, value in zip(CLOCKS, bare, strict=True):
                found.setdefault(f"{kind}_bare_{clock}", []).append(value)
            for name, way in WAYS.items():
                with way():
                    took = time_block(waits=waits)
                for clock, value, alone in zip(CLOCKS, took, bare, strict=True):
                    found.setdefault(f"{kind}_{name}_{clock}", []).append(value - alone)
    if not dist.get_rank():
        print(json.dumps({name: statistics.median(values) for name, values in found.items()}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
