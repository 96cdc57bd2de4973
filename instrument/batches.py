"""Counts the samples of a batch by its shapes, where its loader does not say them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from profkit.clock import Clock, now_ns
from profkit.instrument.guard import report_failure
from profkit.instrument.rows import Append
from profkit.vocab import BATCH_ELEMENTS

STATED_SIZES = ("num_graphs", "batch_size")
"""Attributes by which a batch states its size, as those of graph libraries do."""

PLAIN_TENSORS: set[type] = set()
"""The frameworks' own classes of tensors, which state no size but by their shape."""

READING_NS = 20_000_000
"""Batches that all differ are read this often."""

_NONE = 0
"""Not a size: the batch is not plain."""


def count_batch(batch: Any) -> int:
    """Return the number of samples of a batch, or 0 if it cannot be counted.

    A whole number is the size itself, which a loader has said.
    """
    if type(batch) is int:
        return batch
    try:
        return count_plain(batch) or count_samples(batch)
    except Exception as failure:  # noqa: BLE001  # a batch may raise anything
        report_failure("count_samples", failure)
        return 0


def count_plain(batch: Any) -> int:
    """Return what `count_samples` counts in a few tensors that all have this size, else 0.

    The loop waits meanwhile. For a list of two tensors, `count_samples` takes at least ten times as
    long (7 us), and more once it has left the processor's caches.
    """
    kind = type(batch)
    if kind is dict:
        batch = batch.values()
    elif kind is not list and kind is not tuple:
        return _NONE
    size = _NONE
    for item in batch:
        if type(item) not in PLAIN_TENSORS:
            return _NONE
        try:
            shape = item.shape
        except Exception:  # noqa: BLE001  # nested tensors raise; `count_batch` reports it
            return _NONE
        if not shape or (size and shape[0] != size):
            return _NONE
        size = shape[0]
    return size


def count_elements(batch: Any) -> int:
    """Return the number of elements of a batch's first tensor, or 0 if there is none at once."""
    if isinstance(batch, Mapping):
        batch = next(iter(batch.values()), None)
    elif isinstance(batch, list | tuple):
        batch = batch[0] if batch else None
    shape = getattr(batch, "shape", None)
    return math.prod(shape) if shape else 0


class ElementReadings:
    """Notes the elements of batches where they differ, but not too often."""

    def __init__(self, append: Append, clock: Clock = now_ns) -> None:
        self._append, self._clock = append, clock
        self._known = self._due_ns = 0

    def note(self, batch: Any) -> None:
        count = count_elements(batch)
        if count in (0, self._known) or (now := self._clock()) < self._due_ns:
            return
        self._known, self._due_ns = count, now + READING_NS
        self._append((None, "loader", BATCH_ELEMENTS, now, float(count)))


def count_samples(batch: Any) -> int:
    """Return the number of samples of a batch, or 0 if it has none.

    This is the size that the batch states, or the first dimension that most of its tensors have,
    or else the batch's length.
    """
    stated = _stated_size(batch)
    if stated is not None:
        return stated
    if isinstance(batch, Mapping):
        return _count_most(batch.values())
    if isinstance(batch, list | tuple):
        return _count_sequence(batch)
    try:
        return len(batch)
    except TypeError:  # as of dataclasses, and of classes that hold `tensors`
        return _count_most(getattr(batch, "__dict__", {}).values())


def _stated_size(batch: Any) -> int | None:
    """Return the size that a batch states by an attribute or its shape; `None` if it does not."""
    for name in STATED_SIZES:
        stated = getattr(batch, name, None)
        if type(stated) is int:
            return stated
    shape = getattr(batch, "shape", None)
    if shape is None:
        return None
    return int(shape[0]) if len(shape) else 1


def _count_sequence(batch: Any) -> int:
    """Return the number of samples of a list or a tuple."""
    if hasattr(batch, "batch_sizes"):  # a `PackedSequence` has one such size per time
        return int(batch.batch_sizes[0])
    if _is_detection(batch):
        return len(batch[0])
    if isinstance(batch, list) and all(isinstance(item, Mapping) for item in batch):
        return len(batch)  # one mapping for each sample
    return _count_most(batch) or len(batch)


def _count_most(items: Iterable[Any]) -> int:
    """Return the size that most of the items have, the first of equals; 0 if none has one."""
    sizes: Counter[int] = Counter()
    for item in items:
        if isinstance(item, Mapping | list | tuple) or getattr(item, "shape", None):
            sizes[count_samples(item)] += 1
    del sizes[0]
    return max(sizes, key=sizes.__getitem__, default=0)


def _is_detection(items: list[Any] | tuple[Any, ...]) -> bool:
    """Return true for lists of equal length, one entry per sample, as detectors take them."""
    if len(items) < 2:
        return False
    lengths = set()
    for item in items:
        if not isinstance(item, list | tuple):
            return False
        lengths.add(len(item))
    return len(lengths) == 1 and 0 not in lengths
