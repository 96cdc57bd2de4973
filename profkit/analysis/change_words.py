"""A change of a run's step time as a sentence."""

from __future__ import annotations

import time
from collections.abc import Iterator

from profkit.analysis.run_change import ChangeKind, RunChange
from profkit.frame.estimate import Estimate
from profkit.text import amount, duration, percent, signed, significant

_ROUGH = 0.02
"""An interval that is wider than this share needs no decimals."""

_LEAST_ROUNDED = 0.5
"""Per cent. Less would be rounded to zero, which a sure change's interval does not contain."""

_FEW_SPANS = "a step has too many spans to keep those of the steps before; see 'profkit report'"


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
    if not change.phases_known:
        parts.append(f"which phase is not known yet: {_FEW_SPANS}")
    if change.late is not None:
        parts.append(f"rank {change.late.rank} late in {change.late.phase}")
    if change.samples is not None:
        before, after = change.samples
        parts.append(f"{amount(after)} instead of {amount(before)} samples per step")
    return f"{line}: {', '.join(parts)}" if parts else line


def say_context(change: RunChange) -> Iterator[str]:
    """Yield what was recorded around a change: clocks and the machine's load."""
    if change.clock is not None:
        clock = change.clock
        reasons = f" ({', '.join(clock.reasons)})" if clock.reasons else ""
        yield (
            f"the clock of {clock.device} went from {clock.before_mhz:,.0f} to "
            f"{clock.after_mhz:,.0f} MHz{reasons}"
        )
    if change.machine is not None:
        load = change.machine
        yield (
            f"other processes used {significant(load.others_after, 2)} instead of "
            f"{significant(load.others_before, 2)} cores, and the job's threads waited "
            f"{significant(load.waited_after, 2)} instead of "
            f"{significant(load.waited_before, 2)} s per second for a core: the machine may be "
            "the reason"
        )


def _longer(change: Estimate) -> str:
    """Return `11 % longer (9 to 13)`."""
    sign = 1.0 if change.value >= 0 else -1.0
    word = "longer" if sign > 0 else "less time"
    if change.low is None or change.high is None:
        return f"{percent(sign * change.value)} {word} (no interval)"
    low, high = sorted(100 * sign * end for end in (change.low, change.high))
    is_rough = change.high - change.low >= _ROUGH and low >= _LEAST_ROUNDED
    digits = 0 if is_rough else 1
    shown = f"{percent(sign * change.value, digits)} {word}"
    return f"{shown} ({low:.{digits}f} to {high:.{digits}f})"
