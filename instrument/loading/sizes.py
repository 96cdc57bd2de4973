"""The sizes of batches, as the loaders' own batch samplers draw them.

A batch sampler yields the keys of a batch's samples, so their number is the batch's size, whatever
`collate_fn` makes of the samples. It may leave broken ones out: where the shapes of batches have
been the drawn sizes so far, a smaller shape is believed. Else shapes are asked only where no
sampler says a size.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, field
from typing import Any

from profkit.instrument.batches import count_batch, count_plain
from profkit.instrument.guard import report_failure

FEWEST_AGREED = 3
"""Shapes are believed after so many batches, unless the loader ends with a smaller one anyway."""


@dataclass(slots=True, eq=False)
class Drawn:
    """The sizes that one loader's sampler has drawn, for batches that the loop has not taken."""

    sizes: deque[int] = field(default_factory=deque)
    ends_short: bool = False
    """True for an iterable data set: it ends anywhere, and its last batch is shorter than drawn."""
    agreed: int = 0
    """Batches whose shapes gave the size that was drawn."""
    smaller: int = 0
    misled: bool = False
    """True once shapes gave no size, or a larger one: they are about something else."""

    def check(self, size: int, counted: int) -> int:
        """Return the size of a batch that was drawn with one size and has another by its shapes."""
        if counted == size:
            self.agreed += 1
        elif not 0 < counted < size:
            self.misled = True
        else:
            self.smaller += 1
            enough = 1 if self.ends_short else FEWEST_AGREED
            if self.agreed >= enough and self.smaller <= self.agreed and not self.misled:
                return counted
        return size


class BatchSizes:
    """The sizes of the batches of all loaders, in the order in which the loop takes them."""

    def __init__(self, note_guessed: Callable[[], object]) -> None:
        self._note_guessed = note_guessed
        self._is_noted = False
        self.drawn: dict[int, Drawn] = {}
        """What was drawn, by the ids of the iterators: a faster way than by weak references."""
        self._iterators: dict[int, weakref.ref[Any]] = {}
        """Iterators that still exist; one that ends leaves both, before its id is used again."""

    def open(self, loader: Any, *, ends_short: bool) -> Drawn:
        """Begin an epoch of this loader's iterator."""
        number = id(loader)
        if number not in self._iterators:
            self._iterators[number] = weakref.ref(loader, lambda _: self._drop(number))
        self.drawn[number] = drawn = Drawn(ends_short=ends_short)
        return drawn

    def _drop(self, number: int) -> None:
        self._iterators.pop(number, None)
        self.drawn.pop(number, None)

    def draw(self, loader: Any, keys: Sized, *, ends_short: bool) -> None:
        """Note the keys of a batch that the loader will yield after those drawn before."""
        drawn = self.drawn.get(id(loader))
        if drawn is None:
            drawn = self.open(loader, ends_short=ends_short)
        drawn.sizes.append(len(keys))

    def take(self, loader: Any, batch: Any) -> int:
        """Return the size of the batch that the loop has got."""
        drawn = self.drawn.get(id(loader))
        if drawn is None or not drawn.sizes:
            counted = count_batch(batch) if type(batch) is not int else 0
            if counted and not self._is_noted:
                self._is_noted = True
                self._note_guessed()
            return counted
        size = drawn.sizes.popleft()
        if drawn.misled:
            return size
        if count_plain(batch) == size:  # as `check` does, with two calls less
            drawn.agreed += 1
            return size
        return drawn.check(size, count_batch(batch))

    def forget(self, loader: Any) -> None:
        """Forget what was drawn in an epoch that has ended."""
        self.drawn.pop(id(loader), None)

    def skip(self, loader: Any) -> None:
        """Note that the loop asked for a batch and got none."""
        drawn = self.drawn.get(id(loader))
        if drawn is not None and drawn.sizes:
            drawn.sizes.popleft()


class CountedSampler:
    """A batch sampler that notes the sizes of what it yields."""

    def __init__(self, sampler: Any, drawn: Drawn) -> None:
        self._sampler = sampler
        self._drawn = drawn

    def __iter__(self) -> Iterator[Any]:
        self._keys = iter(self._sampler)
        return self

    def __next__(self) -> Any:
        keys = next(self._keys)
        try:
            self._drawn.sizes.append(len(keys))
        except Exception as failure:  # noqa: BLE001  # a sampler may yield anything
            report_failure("loader: sizes", failure)
        return keys
