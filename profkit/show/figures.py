"""How numbers and their intervals are shown, and in which unit JSON has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from profkit.frame.estimate import Estimate
from profkit.frame.selection import CAPTURED, SWITCHED_OFF
from profkit.text import (
    amount,
    byte_size,
    bytes_per_second,
    duration,
    low_to_high,
    percent,
    signed,
    significant,
)

NO_FIGURE = "-"
"""Shown for a figure that is not known."""

plain = partial(significant, digits=4)
"""Shows a figure without a unit."""

whole_percent = partial(percent, digits=0)
"""Shows a share without decimals."""

EQUAL_SHARES = "within 0.1 %"
"""Shown for an interval of a share whose ends are equal in all digits that are shown."""


@dataclass(frozen=True)
class Unit:
    """How a number is shown, and by which factor JSON has it in the unit of its key."""

    show: Callable[..., str]
    scale: float = 1.0


WORDS = Unit(str)
COUNT = Unit("{:,}".format)
NUMBER = Unit(significant)
AMOUNT = Unit(amount)
RATE = Unit(plain)
MS = Unit(duration, 1e-6)
SIGNED_MS = Unit(signed, 1e-6)
NS = Unit(duration)
SIGNED_NS = Unit(signed)
SHARE = Unit(percent)
WHOLE_SHARE = Unit(whole_percent)
TIMES = Unit(lambda value: f"{significant(value)} x")
BYTES = Unit(byte_size)
BYTES_PER_S = Unit(bytes_per_second)


def range_words(value: object, unit: Unit) -> str:
    """Return the bounds of an interval in a unit, or a dash; nothing for what has none."""
    if not isinstance(value, Estimate):
        return ""
    if unit is SHARE:
        return share_range(value)
    return interval_range(value, unit.show)


def interval_range(estimate: Estimate, show: Callable[..., str]) -> str:
    """Return the bounds of the 95 % interval, or a dash."""
    if estimate.low is None or estimate.high is None:
        return NO_FIGURE
    return low_to_high(estimate.low, estimate.high, show)


def interval_words(estimate: Estimate, show: Callable[..., str]) -> str:
    if estimate.low is None or estimate.high is None:
        return "no interval"
    return f"{level_words(estimate.level)} {interval_range(estimate, show)}"


def interval_in_brackets(estimate: Estimate, show: Callable[..., str]) -> str:
    """Return the interval as an addition to its figure, or an empty text."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f" ({level_words(estimate.level)} {interval_range(estimate, show)})"


def level_words(level: float) -> str:
    """Return the name of an interval, with its confidence."""
    return f"{percent(level, 0)} interval"


def share_range(share: Estimate) -> str:
    """Return the bounds of a share with one percent sign for both, if they differ."""
    if share.low is None or share.high is None:
        return NO_FIGURE
    low, high = percent(share.low), percent(share.high)
    if low == high and share.low != share.high:
        return EQUAL_SHARES
    return f"{low.removesuffix(' %')} to {high}"


_REASONS = {SWITCHED_OFF: "control steps (recording off)", CAPTURED: "line capture"}
"""The names of reasons that would mislead behind a number of steps: `9 lines captured`."""


def reason_name(reason: str) -> str:
    """Return the reason to exclude a step as it is shown."""
    return _REASONS.get(reason, reason)
