"""Whether the steps of a run become slower while it lasts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profkit.analysis.costs import RunCosts
from profkit.analysis.estimate import Estimate, Floats, student_95

BLOCKS = 10
"""A run is looked at in so many pieces, each by the median of its steps: single slow ones are no trend."""

RISING = 0.8
"""Of all pairs of blocks, the share in which the later is the slower: above this, chance is out (one in a hundred)."""


@dataclass(frozen=True)
class Trend:
    """A straight line through a run's steps, in ns a step and rank."""

    first_ns: float
    last_ns: float
    share_rising: float
    """Of all pairs of blocks, those in which the later is the slower."""
    rises_throughout: bool
    """Whether that holds in both halves of the run: a step in the middle is another machine, and no drift."""
    added_ns: Estimate
    """What the slope adds to the average step over the first."""

    @property
    def rises(self) -> bool:
        return (
            self.share_rising > RISING
            and self.rises_throughout
            and self.added_ns.low is not None
            and self.added_ns.low > 0
        )


def find_trend(costs: RunCosts) -> Trend | None:
    """`None` where there are too few steps for blocks of some."""
    if costs.steps < 4 * BLOCKS:
        return None
    blocks = np.array(
        [np.median(part) for part in np.array_split(costs.wall_ns / costs.ranks, BLOCKS)]
    )
    place = np.arange(BLOCKS) - (BLOCKS - 1) / 2
    slope = float(place @ blocks / (place @ place))
    error = float(
        np.sqrt(
            ((blocks - blocks.mean() - slope * place) ** 2).sum() / (BLOCKS - 2) / (place @ place)
        )
    )
    half = student_95(BLOCKS - 2) * error
    reach = BLOCKS / 2
    mean = float(blocks.mean())
    added = Estimate(*(bound * reach for bound in (slope, slope - half, slope + half)))
    throughout = all(_share_rising(half) >= RISING for half in np.split(blocks, 2))
    return Trend(
        mean - slope * reach, mean + slope * reach, _share_rising(blocks), throughout, added
    )


def _share_rising(blocks: Floats) -> float:
    later, earlier = np.triu_indices(len(blocks), 1)[::-1]
    return float((blocks[later] > blocks[earlier]).mean())
