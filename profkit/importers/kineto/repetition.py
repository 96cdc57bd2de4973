"""Finds the period of work that repeats, for files in which nothing marks the steps.

A step launches the same kernels as the one before. So a kernel that runs once per step stands at
equal distances in the sequence of all kernels, and the sequence between two of them repeats. Layers
of a model repeat as well, but what comes before the first of them is no end of a layer. So the
whole file must repeat, from its first kernel to its last.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profkit.importers.reading.numbers import Ints

MIN_ALIKE = 0.95
"""Two periods are alike if so many of their kernels are the same, place by place."""
MIN_PERIODS = 3
"""Two periods may be alike by chance."""
MIN_KERNELS = 8
"""Fewer kernels are no step, but the same operator called again and again."""
MOST_CANDIDATES = 64
"""At most this many numbers of periods are tried, the smallest first."""


def find_period_starts(names: npt.NDArray[np.integer], times: Ints) -> Ints:
    """Return the places in a sequence of kernels at which each whole period begins.

    `names` are numbers, `times` are those of their launches. The last place is the end of the last
    whole period. The result is empty if the sequence does not repeat.
    """
    nothing = np.empty(0, dtype=np.int64)
    if not len(names):
        return nothing
    distinct, counts = np.unique(names, return_counts=True)
    for count in np.unique(counts[counts >= MIN_PERIODS])[:MOST_CANDIDATES].tolist():
        for name in distinct[counts == count][:MOST_CANDIDATES]:
            places = np.flatnonzero(names == name)
            length = int(np.median(np.diff(places)))
            if length < MIN_KERNELS or length * count < len(names) - 2 * length:
                continue
            if not _repeats(names, length):
                continue
            # A step begins at the place of a period before which the host pauses longest.
            pauses = np.diff(times, prepend=times[:1])
            whole = len(names) // length * length
            usual = np.median(pauses[:whole].reshape(-1, length), axis=0)
            return np.arange(int(np.argmax(usual)), len(names), length)
    return nothing


def _repeats(names: npt.NDArray[np.integer], length: int) -> bool:
    """Return whether a sequence is like itself one period later, in each of its parts."""
    alike = names[length:] == names[:-length]
    if not len(alike):
        return False
    parts = np.add.reduceat(alike, np.arange(0, len(alike), length))
    sizes = np.minimum(length, len(alike) - np.arange(0, len(alike), length))
    return bool((parts >= MIN_ALIKE * sizes).all())
