"""What a batch of any make holds."""

from __future__ import annotations

from typing import Any

from profkit.instrument.guard import report_failure

_PLAIN = (list, tuple)


def count_batch(batch: Any) -> int:
    """How many samples it has, and 0 where that cannot be told. Tensors side by side, the common case, are not looked at one by one."""
    try:
        shape = batch[0].shape if type(batch) in _PLAIN and batch else None
    except AttributeError:
        shape = None
    try:
        return int(shape[0]) if shape else count_samples(batch)
    except Exception as failure:  # noqa: BLE001  # the border to the job: a batch of any make
        report_failure("count_samples", failure)
        return 0


def count_samples(batch: Any) -> int:
    """How many samples a batch has: the first dimension of the first tensor in it, else its length; 0 if it has none."""
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if isinstance(batch, list | tuple):
        return _count_items(batch)
    try:
        return len(batch)
    except TypeError:
        return 0


def _count_items(items: list[Any] | tuple[Any, ...]) -> int:
    if _is_detection(items):
        return len(items[0])
    first = next(
        (
            item
            for item in items
            if isinstance(item, dict | list | tuple) or getattr(item, "shape", None)
        ),
        None,
    )
    return len(items) if first is None else count_samples(first)


def _is_detection(items: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a batch is lists side by side, one entry a sample, as detectors take them."""
    lengths = {len(item) for item in items if isinstance(item, list | tuple)}
    return (
        len(items) > 1
        and len(lengths) == 1
        and all(isinstance(item, list | tuple) for item in items)
    )
