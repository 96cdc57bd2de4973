"""Evaluation: reads samples ahead of the model, and computes top-1 accuracy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from profkit.workloads.base import Build
from profkit.workloads.training.network import Ops, predictor
from profkit.workloads.training.samples import BadSampleError

T = TypeVar("T")

READ_AHEAD = 16
"""Samples that are read before the model asks for them."""


def read_ahead(load: Callable[[int], T], count: int, build: Build) -> Iterator[T]:
    """Yield `load(index)` for each index, in order.

    With `--bad-samples skip` bad samples are noted and excluded, so that none counts twice.
    """
    with ThreadPoolExecutor(max(1, build.config.get("workers", 1))) as pool:
        ahead = range(min(count, READ_AHEAD))
        pending = deque(pool.submit(load, index) for index in ahead)
        for index in range(count):
            if index + READ_AHEAD < count:
                pending.append(pool.submit(load, index + READ_AHEAD))
            try:
                sample = pending.popleft().result()
            except BadSampleError as error:
                build.bad.note_or_raise(error)
            else:
                yield sample


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
        for inputs, label in read_ahead(load, count, build):
            right += int(predict(inputs[None])[0].argmax() == label)
            seen += 1
    return {"top1": right / seen if seen else if_empty}
