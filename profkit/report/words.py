"""The words for estimates and for one run that all formats and the interface share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from profkit.analysis.estimate import Estimate
from profkit.analysis.overview import Overview
from profkit.analysis.phases import UNKNOWN
from profkit.analysis.selection import SWITCHED_OFF
from profkit.text import duration, percent, plural, significant
from profkit.vocab import PHASES, Phase

Number = TypeVar("Number", int, float)

NO_FIGURE = "-"
"""Shown for a figure that is not known."""

plain = partial(significant, digits=4)
"""Shows a figure without a unit."""

whole_percent = partial(percent, digits=0)
"""Shows a share without decimals."""


def known(value: Number | None, show: Callable[[Number], str]) -> str:
    return NO_FIGURE if value is None else show(value)


# -- estimates -------------------------------------------------------------------------------------


def interval_range(estimate: Estimate, show: Callable[[float], str]) -> str:
    """Return the bounds of the 95 % interval, or a dash."""
    if estimate.low is None or estimate.high is None:
        return NO_FIGURE
    return f"{show(estimate.low)} to {show(estimate.high)}"


def interval_words(estimate: Estimate, show: Callable[[float], str]) -> str:
    if estimate.low is None or estimate.high is None:
        return "no interval"
    return f"{level_words(estimate.level)} {interval_range(estimate, show)}"


def interval_in_brackets(estimate: Estimate, show: Callable[[float], str]) -> str:
    """Return the interval as an addition to its figure, or an empty text."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f" ({level_words(estimate.level)} {interval_range(estimate, show)})"


def level_words(level: float) -> str:
    """Return the name of an interval, with its confidence."""
    return f"{percent(level, 0)} interval"


def share_range(share: Estimate) -> str:
    """Return the bounds of a share with one percent sign for both."""
    if share.low is None or share.high is None:
        return NO_FIGURE
    return f"{percent(share.low).removesuffix(' %')} to {percent(share.high)}"


# -- one run ---------------------------------------------------------------------------------------


def reason_name(reason: str) -> str:
    """Return the reason to exclude a step as it is shown."""
    return "control steps (recording off)" if reason == SWITCHED_OFF else reason


def steps_line(view: Overview) -> str:
    """Return the number of steps behind the figures, and the reasons why others are excluded."""
    used = f"{len(view.selection.steps):,} of {plural(view.steps_seen, 'step')} used"
    excluded = []
    for reason, count in view.selection.left_out.items():
        excluded.append(f"{count:,} {reason_name(reason)}")
    if not excluded:
        return used
    return f"{used}; excluded: {', '.join(excluded)}"


def why_not_judged(view: Overview) -> str:
    """Return the reason why no verdict is given on a run."""
    if view.bad_times:
        return f"the source has impossible times ({'; '.join(view.bad_times)})"
    if view.changed:
        return f"a file was changed since it was written ({'; '.join(view.changed)})"
    if view.silent_ranks:
        return (
            f"{view.silent_ranks:,} of {plural(view.world_size, 'rank')} left no steps, so the "
            "throughput of the whole job is not known; step time and shares are those of the others"
        )
    if view.steps_needed:
        return f"an interval needs {plural(view.steps_needed, 'more step')}"
    if not view.samples_known:
        return (
            "nothing says how many samples a step trains on, so there is no throughput; "
            "all other figures are valid"
        )
    return "the used steps took no time at all"


def meaning(name: str) -> str:
    """Return what happens in a phase of a step."""
    if name == UNKNOWN:
        return "wall time minus all of the above"
    return Phase(name).meaning if name in PHASES else ""


def own_cost_words(view: Overview) -> str:
    """Return what profkit itself costs per step."""
    cost = view.own_cost
    if cost.total_ns is None:
        return "not measured in this run"
    words = ""
    if cost.opening_ns is not None:
        words = f"{duration(cost.opening_ns)} per rank once, to open its files, and "
    words += f"{duration(cost.total_ns)} per step"
    if view.step_ns.value > 0:
        words += f" ({percent(cost.total_ns / view.step_ns.value, 3)})"
    words += (
        f": at least {duration(cost.hooks_ns or 0)} in the loop, "
        f"{duration(cost.writer_ns or 0)} on the writer's thread"
    )
    if cost.collectors_ns is not None:
        words += f", {duration(cost.collectors_ns)} on the collectors' threads"
    control = cost.switched
    if control is not None and control.low is not None:
        words += (
            f"; measured with control steps (recording off): {duration(control.value)}, "
            f"{interval_words(control, duration)}"
        )
    return words
