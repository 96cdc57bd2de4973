"""Quantiles of step times, to within 1 %, from counts in logarithmic places that add up."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from profkit.frame.estimate import Ints

BASE = 1.02
"""A place holds times up to this factor above its lower end."""

ERROR = math.sqrt(BASE) - 1
"""The largest relative error of a quantile: the middle of a place stands for all times in it."""

_PAIR = re.compile(r"(\d{1,5}):(\d{1,15})")


def count_lengths(lengths_ns: Ints) -> Counter[int]:
    """Return how many times are in each place."""
    places = np.floor(np.log(np.maximum(lengths_ns, 1)) / math.log(BASE)).astype(np.int64)
    found, counts = np.unique(places, return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True)))


def write_lengths(counts: Mapping[int, int]) -> str:
    """Return counts as the column `lengths` of `sums` holds them."""
    return " ".join(f"{place}:{counts[place]}" for place in sorted(counts))


def read_lengths(texts: Iterable[str | None]) -> Counter[int]:
    """Add up the counts of some rows of `sums`. Damaged words are skipped."""
    total: Counter[int] = Counter()
    for text in texts:
        for place, count in _PAIR.findall(text or ""):
            total[int(place)] += int(count)
    return total


def find_quantile(counts: Mapping[int, int], share: float) -> float:
    """Return the time in ns that this share of the counted times do not exceed; NaN of none."""
    wanted = share * (sum(counts.values()) - 1)
    passed = 0
    for place in sorted(counts):
        passed += counts[place]
        if passed > wanted:
            return float(BASE ** (place + 0.5))
    return math.nan
