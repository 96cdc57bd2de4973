"""Describes the job that is recorded: its models, optimizers, loaders and batches.

Hooks remember weak references on the way, at the cost of a look-up. The description is made once,
after the first steps, on the thread that opens the files.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MOST_OBJECTS = 64
"""A job that makes its objects anew in each step has no more of them remembered."""

MOST_BATCHES = 16
"""The shapes of so many batches are kept."""

MOST_SHAPES = 4
"""The description of a batch names the shapes of so many of its parts."""

MOST_USUAL_SHAPES = 2
"""Batches of more shapes vary; else there are the usual one and the last, which is shorter."""

TRIES = 3
"""The job may change its model while it is described; then it is described again."""

Facts = dict[str, Any]


class Seen:
    """The objects of one job that its description is about, none of which is kept alive."""

    def __init__(self) -> None:
        self.optimizers: dict[int, weakref.ref[Any]] = {}
        """The optimizers that have stepped, by their ids."""
        self.loader: Facts = {}
        """The options of the loader that was started last, which may be gone already."""
        self.shapes: list[str] = []
        """The shapes of the first batches."""
        self.thread: Facts = {}
        """Facts that only the thread which trains knows."""
        self.precision = ""
        """The data type of mixed precision, once a model is called in it."""
        self.recomputes = False
        """True once a model was called inside a backward."""

    def add_optimizer(self, optimizer: Any) -> None:
        """Remember an optimizer that steps."""
        if len(self.optimizers) < MOST_OBJECTS:
            self.optimizers[id(optimizer)] = weakref.ref(optimizer)

    def living_optimizers(self) -> list[Any]:
        """Return the optimizers that the job still has."""
        found = [optimizer() for optimizer in list(self.optimizers.values())]
        return [optimizer for optimizer in found if optimizer is not None]


def describe_shapes(batch: Any) -> str:
    """Return the shapes of the first tensors of a batch, as in `8x3x32x32, 8`."""
    shapes: list[str] = []
    waiting = [batch]
    while waiting and len(shapes) < MOST_SHAPES:
        item = waiting.pop(0)
        shape = getattr(item, "shape", None)
        if shape is not None:
            shapes.append("x".join(map(str, shape)) or "1")
        elif isinstance(item, Mapping):
            waiting[:0] = list(item.values())[:MOST_SHAPES]
        elif isinstance(item, list | tuple):
            waiting[:0] = item[:MOST_SHAPES]
    return ", ".join(shapes)


def describe_batches(shapes: Iterable[str]) -> Facts:
    """Return the most frequent shapes of a batch, and how many others there were.

    If they vary, as with sentences, the mean size of the first tensor is more than one shape says.
    """
    counts = Counter(filter(None, shapes))
    if not counts:
        return {}
    usual = max(counts, key=counts.__getitem__)
    facts: Facts = {"batch_shapes": usual, "batch_shapes_distinct": len(counts)}
    sizes = []
    for shape, count in counts.items():
        sizes += [math.prod(map(int, shape.split(",")[0].split("x")))] * count
    if len(counts) > MOST_USUAL_SHAPES and len(sizes) > 1:
        facts["batch_elements"] = round(statistics.fmean(sizes))
        facts["batch_elements_error"] = round(statistics.stdev(sizes) / math.sqrt(len(sizes)), 1)
    return facts


def describe_parameters(shapes: Iterable[tuple[str, tuple[int, ...], str, int]]) -> Facts:
    """Describe parameters by their names, shapes, data types and bytes."""
    total: Counter[str] = Counter()
    count = 0
    digest = hashlib.sha256()
    for name, shape, dtype, item_bytes in shapes:
        elements = 1
        for length in shape:
            elements *= length
        count += elements
        total[dtype] += elements * item_bytes
        digest.update(f"{name} {shape} {dtype}\n".encode())
    if not total:
        return {}
    return {
        "parameters_count": count,
        "parameters_bytes": dict(sorted(total.items())),
        "parameters_fingerprint": digest.hexdigest()[:12],
    }


def describe_job(describe: Callable[[Seen, list[Any]], Facts], seen: Seen, models: Any) -> Facts:
    """Return the facts of a job whose models these are, without those that cannot be had."""
    facts: Facts = {}
    for _ in range(TRIES):
        try:
            facts = describe(seen, models.alive)
            break
        except RuntimeError:  # as of a dictionary that changes while it is read
            continue
    facts |= describe_batches(seen.shapes)
    facts |= seen.thread
    if seen.recomputes:
        facts["activation_checkpointing"] = True
    return {name: fact for name, fact in facts.items() if fact is not None}
