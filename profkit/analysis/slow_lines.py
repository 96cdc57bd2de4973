"""The slow and the fast lines of an imported log, as the importer found them, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from profkit.text import duration, percent

MOSTLY, HARDLY = 0.5, 0.1
"""Shares of a difference that the wait for data explains mostly, or hardly at all."""

_NEEDED = ("lines", "lines_in_all", "steps_per_line", "step_ns", "others_ns", "excess_ns")


def slow_lines(config: Mapping[str, Any]) -> Mapping[str, float] | None:
    """Return the slow lines of a run's configuration, or `None` if it has none."""
    stored = config.get("slow_lines")
    if not isinstance(stored, Mapping):
        return None
    slow = {}
    for name, value in stored.items():
        if isinstance(value, int | float) and math.isfinite(value):
            slow[name] = value
    if any(slow.get(name, 0) <= 0 for name in _NEEDED):
        return None
    return slow


def fast_ends(config: Mapping[str, Any]) -> Mapping[str, float] | None:
    """Return the step times at the ends of epochs and before, if the log's differ."""
    stored = config.get("fast_epoch_ends")
    if not isinstance(stored, Mapping):
        return None
    found = {}
    for name in ("lines", "others", "step_ns", "others_ns"):
        value = stored.get(name)
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            return None
        found[name] = value
    return found if found["step_ns"] < found["others_ns"] else None


def describe_fast_ends(ends: Mapping[str, float]) -> str:
    """Return how much faster steps are when loader workers have nothing left to do."""
    return (
        f"the last lines of {ends['lines']:,.0f} epochs, when no batch is left to make, take "
        f"{duration(ends['step_ns'])} per step without the wait for data, and others "
        f"{duration(ends['others_ns'])}, as if workers that make batches slowed the training down"
    )


def describe_slow_lines(slow: Mapping[str, float]) -> str:
    """Return how many lines are slow, where they are, and what the log says of the reason."""
    steps, lines = slow["steps_per_line"], slow["lines"]
    most = slow.get("most_steps_per_line", steps)
    noun = f"windows of {steps:,.0f} to {most:,.0f} steps"
    if steps == most:
        noun = "steps printed" if steps == 1 else f"windows of {steps:,.0f} steps"
    shown = f"{duration(slow['step_ns'])} per step, the others {duration(slow['others_ns'])}"
    words = [f"{lines:,.0f} of {slow['lines_in_all']:,.0f} {noun} take {shown}"]
    if starts := slow.get("epoch_starts"):
        which = "each" if starts == lines else f"{starts:,.0f}"
        words.append(f"an epoch begins in {which} of them")
    if every := slow.get("every_steps"):
        regular = f"they come about every {every:,.0f} steps"
        if "epoch_starts" not in slow:
            regular += ", as epochs or checkpoints would"
        words.append(regular)
    if first := slow.get("among_first"):
        words.append(f"they are among the first {first:,.0f}")
    words.append(_say_if_reader_explains(slow))
    return "; ".join(words)


def _say_if_reader_explains(slow: Mapping[str, float]) -> str:
    data_ns = slow.get("excess_data_ns")
    if data_ns is None:
        return "the log does not say if they waited for data"
    share = data_ns / slow["excess_ns"]
    waits = f"{duration(slow.get('data_ns', 0))} and {duration(slow.get('others_data_ns', 0))}"
    words = f"their wait for data ({waits} per step)"
    if share > 1:
        return f"{words} is longer by more than the difference"
    if share > MOSTLY:
        return f"{words} explains {percent(share, 0)} of the difference"
    if share > HARDLY:
        return f"{words} explains only {percent(share, 0)} of the difference"
    return f"{words} does not explain the difference"
