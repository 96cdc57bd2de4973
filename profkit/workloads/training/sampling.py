"""Assigns samples to batches alike for every framework and number of workers and ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from profkit.workloads.base import Key

MIN_EPOCH_STEPS = 50
"""An epoch of a generated set has at least so many steps.

Loaders start their workers anew at each epoch, so that short epochs measure little else.
"""


@dataclass(frozen=True)
class Length:
    """The length of a run.

    `steps` are planned. An epoch visits each sample `copies` times, each time with another crop.
    """

    steps: int
    steps_per_epoch: int
    copies: int = 1


def run_length(
    config: Mapping[str, Any], samples: int, groups: Sequence[int] | None = None
) -> Length:
    """Return the length of a run on so many samples, of which a batch has one group only.

    A generated set is small. It is repeated within an epoch until the epoch has enough steps for
    the global batch. Nothing more is generated: the copies of a sample differ in their crops.
    """
    counts = np.array([samples])
    if groups is not None:
        counts = np.unique(groups, return_counts=True)[1]
    in_batch, copies = config["global_batch_size"], 1
    if config.get("data") == "generated" and samples:
        # Each group may leave a part of a batch over.
        wanted = (MIN_EPOCH_STEPS + len(counts) - 1) * in_batch
        copies = -(-wanted // samples)
    steps_per_epoch = int((counts * copies // in_batch).sum())
    steps = config["steps"]
    if config.get("epochs"):
        steps = config["epochs"] * max(1, steps_per_epoch)
    return Length(steps, steps_per_epoch, copies)


class Batches:
    """The batches of one rank, as lists of keys.

    All ranks shuffle alike, and each takes its slice of every global batch: two ranks with half
    the batch train on the same samples, step by step, as one rank with the whole batch. Samples
    that do not fill a global batch are excluded.

    Set `epoch` before iterating. `start` is the number of batches to skip in this epoch.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        groups: Sequence[int] | None = None,
        copies: int = 1,
    ) -> None:
        self.epoch = 0
        self.start = 0
        self._length = length
        self._copies = copies
        self._batch_size = batch_size
        self._seed = seed
        self._rank = rank
        self._global = batch_size * world_size
        self._groups = None if groups is None else np.asarray(groups)
        counts = np.array([length])
        if self._groups is not None:
            counts = np.unique(self._groups, return_counts=True)[1]
        self._count = int((counts * copies // self._global).sum())

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[Key]]:
        """Yield batches of one group each, in the order in which the shuffled set fills them."""
        first = self._rank * self._batch_size
        own = slice(first, first + self._batch_size)
        rng = np.random.default_rng((self._seed, self.epoch))
        shuffled = rng.permutation(self._length * self._copies)
        batches = self._fill_groups(shuffled)
        if self._groups is None:
            whole = self._count * self._global
            batches = iter(shuffled[:whole].reshape(self._count, self._global))
        for number, batch in enumerate(batches):
            if number < self.start:
                continue
            copies, indices = np.divmod(np.asarray(batch[own]), self._length)
            visits = self.epoch * self._copies + copies
            yield list(zip(visits.tolist(), indices.tolist(), strict=True))

    def _fill_groups(self, shuffled: Any) -> Iterator[Any]:
        groups: Any = self._groups
        waiting: defaultdict[int, list[int]] = defaultdict(list)
        for index in shuffled.tolist():
            group = waiting[int(groups[index % self._length])]
            group.append(index)
            if len(group) == self._global:
                yield group.copy()
                group.clear()


def stack(samples: Sequence[Any]) -> tuple[Any, ...]:
    """Stack the arrays and numbers of samples, each field into one array."""
    return tuple(map(np.stack, zip(*samples, strict=True)))
