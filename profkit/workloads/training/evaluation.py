"""Evaluation: reads samples ahead of the model, and computes top-1 accuracy."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from profkit.workloads.base import Build
from profkit.workloads.training.network import Ops, predictor
from profkit.workloads.training.samples import BadSampleError

T = TypeVar("T")

READ_AHEAD = 16
"""Samples that are read before the model asks for them, in addition to a batch."""


def read_ahead(load: Callable[[int], T], count: int, build: Build) -> Iterator[T]:
    """Yield `load(index)` for each of this rank's indices, in order.

    With `--bad-samples skip` bad samples are noted and excluded, so that none counts twice.
    """
    config = build.config
    indices = iter(range(config.get("rank", 0), count, config.get("world_size", 1)))
    ahead = READ_AHEAD + config["batch_size"]
    with ThreadPoolExecutor(max(1, config.get("workers", 1))) as pool:
        pending = deque(pool.submit(load, index) for index in itertools.islice(indices, ahead))
        while pending:
            coming = pending.popleft()
            pending.extend(pool.submit(load, index) for index in itertools.islice(indices, 1))
            try:
                sample = coming.result()
            except BadSampleError as error:
                build.bad.note_or_raise(error)
            else:
                yield sample


def in_batches(
    samples: Iterable[T], size: int, shape_of: Callable[[T], object] = lambda sample: None
) -> Iterator[list[T]]:
    """Yield the samples in lists of at most this size, in which all have one shape."""
    for _, alike in itertools.groupby(samples, shape_of):
        while batch := list(itertools.islice(alike, size)):
            yield batch


def top1(
    ops: Ops,
    model: Any,
    load: Callable[[int], tuple[Any, Any]],
    count: int,
    build: Build,
    *,
    if_empty: float = 0.0,
) -> Mapping[str, float]:
    """Return the share of samples whose highest score is that of their label."""
    right = seen = 0
    with predictor(ops, model) as predict:
        for batch in in_batches(read_ahead(load, count, build), build.config["batch_size"]):
            inputs, labels = map(np.stack, zip(*batch, strict=True))
            right += int((predict(inputs).argmax(-1) == labels).sum())
            seen += len(batch)
    counts = np.sum(build.gather((right, seen)), axis=0)
    return {"top1": float(counts[0] / counts[1]) if counts[1] else if_empty}
