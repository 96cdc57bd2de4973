"""A change of a run's step time as a sentence."""

from __future__ import annotations

import time

from profkit.analysis.estimate import Estimate
from profkit.analysis.run_changes import ChangeKind, RunChange
from profkit.text import duration, percent, signed

_ROUGH = 0.02
"""An interval that is wider than this share needs no decimals."""


def say_change(change: RunChange, *, with_date: bool = False) -> str:
    """Return a change as one sentence."""
    at = f"{change.first_step:,}"
    if change.unix_ns is not None:
        shown = "%Y-%m-%d %H:%M" if with_date else "%H:%M"
        at += f" ({time.strftime(shown, time.localtime(change.unix_ns / 1e9))})"
    longer = _longer(change.change)
    times = f"{duration(change.after_ns.value)} instead of {duration(change.before_ns.value)}"
    until = "" if change.last_step is None else f" until step {change.last_step:,}"
    if change.kind is ChangeKind.PERIODIC:
        line = f"since step {at}{until} one step in {change.every} takes {longer}, {times}"
    elif change.kind is ChangeKind.DRIFT:
        slower = "longer" if change.change.value > 0 else "shorter"
        line = f"from step {at} on{until} steps become {slower}: the last take {longer}, {times}"
    elif change.kind is ChangeKind.BURST:
        line = f"from step {at}{until} a step takes {longer}, {times}"
    else:
        line = f"since step {at}{until} a step takes {longer}, {times}"
    parts = [f"{name} {signed(ns, duration)}" for name, ns in change.phases]
    return f"{line}: {', '.join(parts)}" if parts else line


def _longer(change: Estimate) -> str:
    """Return `11 % longer (9 to 13)`."""
    sign = 1.0 if change.value >= 0 else -1.0
    word = "longer" if sign > 0 else "less time"
    if change.low is None or change.high is None:
        return f"{percent(sign * change.value)} {word} (no interval)"
    digits = 0 if change.high - change.low >= _ROUGH else 1
    low, high = sorted(100 * sign * end for end in (change.low, change.high))
    shown = f"{percent(sign * change.value, digits)} {word}"
    return f"{shown} ({low:.{digits}f} to {high:.{digits}f})"
