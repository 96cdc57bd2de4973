"""Assigns samples to batches alike for every framework and number of workers and ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from profkit.workloads.base import Key


class Batches:
    """The batches of one rank, as lists of keys. Set `epoch` before iterating.

    All ranks shuffle alike, and each takes its slice of every global batch: two ranks with half
    the batch train on the same samples, step by step, as one rank with the whole batch. Samples
    that do not fill a global batch are excluded.
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
    ) -> None:
        self.epoch = 0
        self._length = length
        self._batch_size = batch_size
        self._seed = seed
        self._rank = rank
        self._global = batch_size * world_size
        self._groups = np.zeros(length, dtype=np.int64) if groups is None else np.asarray(groups)
        counts = np.unique(self._groups, return_counts=True)[1]
        self._count = int((counts // self._global).sum())

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[Key]]:
        """Yield batches of one group each, in the order in which the shuffled set fills them."""
        start = self._rank * self._batch_size
        own = slice(start, start + self._batch_size)
        shuffled = np.random.default_rng((self._seed, self.epoch)).permutation(self._length)
        waiting: defaultdict[int, list[int]] = defaultdict(list)
        for index in shuffled.tolist():
            group = waiting[int(self._groups[index])]
            group.append(index)
            if len(group) == self._global:
                yield [(self.epoch, member) for member in group[own]]
                group.clear()


def stack(samples: Sequence[Any]) -> tuple[Any, ...]:
    """Stack the arrays and numbers of samples, each field into one array."""
    return tuple(map(np.stack, zip(*samples, strict=True)))
