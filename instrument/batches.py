"""Counts the samples of a batch of any type."""

from __future__ import annotations

from typing import Any

from profkit.instrument.guard import report_failure

_PLAIN = (list, tuple)


def count_batch(batch: Any) -> int:
    """Return the number of samples of a batch, or 0 if it cannot be counted.

    A list of tensors, the common case, is counted by its first tensor alone.
    """
    try:
        shape = batch[0].shape if type(batch) in _PLAIN and batch else None
    except AttributeError:
        shape = None
    try:
        return int(shape[0]) if shape else count_samples(batch)
    except Exception as failure:  # noqa: BLE001  # a batch may raise anything
        report_failure("count_samples", failure)
        return 0


def count_samples(batch: Any) -> int:
    """Return the number of samples of a batch, or 0 if it has none.

    This is the first dimension of the first tensor in the batch, or else the batch's length.
    """
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if isinstance(batch, list | tuple):
        if _is_detection(batch):
            return len(batch[0])
        for item in batch:
            if isinstance(item, dict | list | tuple) or getattr(item, "shape", None):
                return count_samples(item)
        return len(batch)
    try:
        return len(batch)
    except TypeError:
        return 0


def _is_detection(items: list[Any] | tuple[Any, ...]) -> bool:
    """Return true for lists of equal length, one entry per sample, as detectors take them."""
    if len(items) < 2:
        return False
    lengths = set()
    for item in items:
        if not isinstance(item, list | tuple):
            return False
        lengths.add(len(item))
    return len(lengths) == 1
