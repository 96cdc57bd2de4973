"""Measure what recording adds to a collective that a job calls, next to other ways to see it.

    torchrun --standalone --nproc-per-node 2 benchmarks/sharded_cost.py

Short blocks of calls alternate in one process: bare, recorded by profkit, captured by torch's own
profiler, with hooks of process groups that do nothing, and with hooks in Python that only read what
a row is made of. The order within a round changes. The first rank prints as JSON, for each way and
in microseconds per call, the median of the bare blocks and of what the others add to the bare block
of their round, with its 95 % interval: on the wall clock, and in processor time of all threads,
which says more on a machine that does other work.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import distributed

from profkit.instrument.frameworks.base import InnerBooks
from profkit.instrument.frameworks.pytorch import FRAMEWORK
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.tracking.boundaries import CompiledNotes

dist: Any = distributed  # some of its names are not exported
ROUNDS, CALLS, WARM_UP = 120, 60, 20
ELEMENTS = 16
HOOK_ID = 1
CLOCKS = ("wall", "processor")
BARE = "bare"
Z_95 = 1.96


class Loop:
    """Drops the notes of phases when there are too many, as the tracker of a job replays them."""

    def __init__(self, recorder: Recorder) -> None:
        self.notes = CompiledNotes(self, recorder.clock)
        self.notes.open(threading.get_ident(), None, 0, True)
        self.notes.begin_wait()
        recorder.redirect(lambda row, start, end: None, self.notes, self.catch_up)

    def catch_up(self) -> None:
        self.notes.take()
        self.notes.begin_wait()


@contextlib.contextmanager
def record() -> Iterator[None]:
    """Record with profkit, into memory."""
    sink = MemorySink()
    recorder = Recorder(sink)
    Loop(recorder)
    books = InnerBooks(recorder, sink.appender("collectives"), sink.appender("samples"))
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


def nothing(args: Any) -> None:
    """Do nothing with what torch hands over."""


def read_before(args: Any) -> None:
    """Read what a row says of an operation: its name, number, sizes and types."""
    _ = args.name.value, args.op_id
    for tensor in args.input_tensors:  # a barrier has none
        _ = tensor.nbytes, tensor.dtype


def read_after(args: Any) -> None:
    """Read what says when the operation is over."""
    _ = args.op_id, args.work, args.async_op


@contextlib.contextmanager
def hook(before: Callable[[Any], None], after: Callable[[Any], None]) -> Iterator[None]:
    """Register hooks that record nothing; torch before 2.15 has none."""
    group = dist.group.WORLD
    group.register_pre_hook(HOOK_ID, before)
    group.register_post_hook(HOOK_ID, after)
    try:
        yield
    finally:
        group.unregister_pre_hook(HOOK_ID)
        group.unregister_post_hook(HOOK_ID)


WAYS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    BARE: contextlib.nullcontext,
    "profkit": record,
    "profiler": capture,
    "empty": lambda: hook(nothing, nothing),
    "reading": lambda: hook(read_before, read_after),
}


def time_block(*, waits: bool) -> tuple[float, float]:
    """Return the wall and the processor time of a call in us, which another rank joins."""
    tensor = torch.ones(ELEMENTS)
    dist.barrier()
    start = processor = 0.0
    for number in range(WARM_UP + CALLS):
        if number == WARM_UP:  # hooks are installed once per job, and here once per block
            start, processor = time.perf_counter(), time.process_time()
        work: Any = dist.all_reduce(tensor, async_op=not waits)
        if not waits:
            work.wait()
    per_us = 1e6 / CALLS
    return (time.perf_counter() - start) * per_us, (time.process_time() - processor) * per_us


def median_of(values: Sequence[float]) -> list[float]:
    """Return the median, and the order statistics that hold it in 95 of 100 cases."""
    ordered, count = sorted(values), len(values)
    reach = Z_95 * math.sqrt(count) / 2
    low = ordered[max(0, math.floor(count / 2 - reach))]
    high = ordered[min(count - 1, math.ceil(count / 2 + reach))]
    return [ordered[count // 2], low, high]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: dict[str, list[float]] = {}
    turns = random.Random(1)  # the same on all ranks
    for _ in range(ROUNDS):
        for waits in (True, False):
            kind = "waits" if waits else "asynchronous"
            took: dict[str, tuple[float, float]] = {}
            for name in turns.sample([*WAYS], len(WAYS)):
                with WAYS[name]():
                    took[name] = time_block(waits=waits)
            for place, clock in enumerate(CLOCKS):
                for name, values in took.items():
                    alone = 0.0 if name == BARE else took[BARE][place]
                    key = f"{kind}_{name}_{clock}_us"
                    found.setdefault(key, []).append(values[place] - alone)
    if not dist.get_rank():
        print(json.dumps({name: median_of(values) for name, values in found.items()}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
