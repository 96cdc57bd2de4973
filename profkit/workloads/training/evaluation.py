"""Reads the samples of an evaluation ahead of the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from profkit.workloads.training.samples import BadSampleError, BadSamples

T = TypeVar("T")

AHEAD = 16


def read_ahead(load: Callable[[int], T], count: int, bad: BadSamples, threads: int) -> Iterator[T]:
    """What `load` gives for each index, in order. Where bad samples are to be skipped they are noted and left out, so that none counts twice."""
    with ThreadPoolExecutor(max(1, threads)) as pool:
        pending: deque[Future[T]] = deque()
        for index in range(count):
            pending.append(pool.submit(load, index))
            if len(pending) > AHEAD:
                yield from _result(pending.popleft(), bad)
        while pending:
            yield from _result(pending.popleft(), bad)


def _result(future: Future[T], bad: BadSamples) -> Iterator[T]:
    try:
        sample = future.result()
    except BadSampleError as error:
        if bad.policy != "skip":
            raise
        path, _, why = str(error).partition(": ")
        bad.note(path, why.partition(";")[0])
        return
    yield sample
