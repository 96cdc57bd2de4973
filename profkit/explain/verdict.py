"""The judgement of a change, and the noise between runs that it has to exceed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from profkit.analysis.run_noise import MOST_REPEATS, repeats_to_tell
from profkit.frame.estimate import NEGLIGIBLE, Estimate

INDECISIVE = 0.25
"""An interval that holds zero and reaches this share of the base from it is inconclusive.

The data then supports neither a difference that matters nor none.
"""


class Verdict(str, Enum):
    """The judgement of a change of time per sample."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    PROBABLE_REGRESSION = "probable regression"
    PROBABLE_IMPROVEMENT = "probable improvement"
    NEUTRAL = "neutral"
    CANNOT_JUDGE = "cannot judge"


class Basis(str, Enum):
    """The source of what is known about the noise between runs."""

    REPEATS = "repeats"
    EARLIER = "earlier runs"
    READINGS = "readings of the machine"
    DEVICE = "device"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Evident:
    """A change that no machine makes, and that is most of the gap or large by itself."""

    rows: tuple[str, ...]
    """The rows, or the causes, that show it."""
    ns: float
    """At least so many ns per sample and rank."""
    is_gain: bool


@dataclass(frozen=True)
class Between:
    """The noise between the runs of a comparison.

    With repeats it is part of every interval. With one run per side, the intervals only know the
    noise within each run, and `machine_ns` is the largest change that the machine may have made.
    """

    basis: Basis
    machine_ns: float | None = None
    """In ns per sample and rank; null if the intervals hold all of the noise."""
    carried_by: tuple[str, ...] = ()
    """The rows that changed by more than the machine may have made, or the causes that did."""
    doubt: str = ""
    """The reason why a sure change of the steps is no verdict; empty if it is one."""


def judge(delta: Estimate, base: float) -> Verdict:
    """Judge a difference in time.

    A difference whose interval contains zero is neutral, unless the interval is so wide that it
    says nothing.
    """
    if delta.low is None or delta.high is None or not base > 0:
        return Verdict.CANNOT_JUDGE
    if delta.low <= 0 <= delta.high:
        is_narrow = max(-delta.low, delta.high) < INDECISIVE * base
        return Verdict.NEUTRAL if is_narrow else Verdict.CANNOT_JUDGE
    if abs(delta.value) < NEGLIGIBLE * base:
        return Verdict.NEUTRAL
    return Verdict.REGRESSION if delta.value > 0 else Verdict.IMPROVEMENT


def more_repeats_words(delta: Estimate, runs: int) -> str:
    """Return how many repeats per side are needed instead of the fewer ones of a side, `runs`."""
    wanted = repeats_to_tell(delta, max(2, runs))
    if wanted is None:
        return "more repeats are needed"
    about = "more than"
    if wanted < MOST_REPEATS:
        about = "about"
    return f"more repeats are needed, {about} {wanted} per side for a change of this size"
