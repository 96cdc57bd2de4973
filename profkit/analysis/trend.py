"""Finds out if the steps of a run become slower while it lasts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profkit.frame.costs import RunCosts
from profkit.frame.estimate import Estimate, Floats, student_95

BLOCKS = 10
"""A run is cut into this many blocks, each with its median step: outliers are no trend."""

FEWEST_PER_BLOCK = 4
"""With fewer steps per block the medians are not robust."""

RISING = 0.8
"""A trend needs the later block to be slower in more than this share of all pairs.

Chance alone exceeds it in one of a hundred runs.
"""


@dataclass(frozen=True)
class Trend:
    """A straight line through a run's steps, in ns per step and rank."""

    first_ns: float
    last_ns: float
    share_rising: float
    """The share of all pairs of blocks in which the later is slower."""
    rises_throughout: bool
    """True if both halves of the run rise; a single jump in the middle is no drift."""
    added_ns: Estimate
    """The time that the slope adds to the average step, compared with the first."""

    @property
    def rises(self) -> bool:
        if self.added_ns.low is None or self.added_ns.low <= 0:
            return False
        return self.share_rising > RISING and self.rises_throughout


def find_trend(costs: RunCosts, part: str | None = None) -> Trend | None:
    """Fit the trend of the steps, or of a part of them; `None` if the run has too few steps."""
    if costs.steps < FEWEST_PER_BLOCK * BLOCKS:
        return None
    whole_ns = costs.wall_ns if part is None else costs.parts.get(part)
    if whole_ns is None:
        return None
    step_ns = whole_ns / costs.ranks
    blocks = np.array([np.median(part) for part in np.array_split(step_ns, BLOCKS)])
    place = np.arange(BLOCKS) - (BLOCKS - 1) / 2
    slope = float(place @ blocks / (place @ place))
    residuals = blocks - blocks.mean() - slope * place
    error = float(np.sqrt((residuals**2).sum() / (BLOCKS - 2) / (place @ place)))
    half = student_95(BLOCKS - 2) * error
    reach, mean = BLOCKS / 2, float(blocks.mean())
    first, second = np.split(blocks, 2)
    return Trend(
        first_ns=mean - slope * reach,
        last_ns=mean + slope * reach,
        share_rising=_share_rising(blocks),
        rises_throughout=min(_share_rising(first), _share_rising(second)) >= RISING,
        added_ns=Estimate(slope * reach, (slope - half) * reach, (slope + half) * reach),
    )


def _share_rising(blocks: Floats) -> float:
    later, earlier = np.triu_indices(len(blocks), 1)[::-1]
    return float((blocks[later] > blocks[earlier]).mean())
