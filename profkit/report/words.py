"""The words for one run that all formats and the interface share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from profkit.analysis.overview import Overview
from profkit.explain.ledger import TOO_ALIKE
from profkit.frame.device_times import LAUNCHES, PhaseClock
from profkit.frame.phases import UNKNOWN
from profkit.show.figures import interval_words, reason_name
from profkit.text import duration, percent, plural
from profkit.vocab import OTHER_OF_PIPELINE, PHASES, Phase

if TYPE_CHECKING:
    from profkit.analysis.views.live import LiveView

# -- one run ---------------------------------------------------------------------------------------


def used_words(view: Overview) -> str:
    """Return the number of steps behind the figures; the reasons why most others are excluded."""
    if 2 * view.steps_used < view.steps_seen:
        return steps_line(view)
    return f"{view.steps_used:,} of {plural(view.steps_seen, 'step')} used"


def steps_line(view: Overview) -> str:
    """Return the number of steps behind the figures, and the reasons why others are excluded."""
    used = f"{view.steps_used:,} of {plural(view.steps_seen, 'step')} used"
    excluded = []
    for reason, count in view.left_out.items():
        excluded.append(f"{count:,} {reason_name(reason)}")
    if not excluded:
        return used
    return f"{used}; excluded: {', '.join(excluded)}"


def untimed_words(view: Overview) -> Iterator[str]:
    """Yield that the phases are not the device's, if there is a device that was not timed."""
    if view.clock is PhaseClock.LAUNCH:
        yield f"No device times: {LAUNCHES}."


def clock_words(view: Overview) -> Iterator[str]:
    """Yield the clock that the phases are on, if there is a device, and the steps behind them."""
    yield from untimed_words(view)
    costs = view.costs
    if costs is None:
        return
    yield "Per step: the device's time. Host: the host's time to launch the work, or to wait."
    fewer = []
    if costs.steps < len(view.selection.steps):
        for reason, count in costs.selection.left_out.items():
            if reason not in view.selection.left_out:
                fewer.append(f"{count:,} {reason_name(reason)}")
    if view.thinned is not None:
        yield from _words_of_sums(view, fewer)
        return
    words = f"{costs.steps:,} of {len(view.selection.steps):,} used steps"
    if fewer:
        words += f" (not: {', '.join(fewer)})"
    if costs.unclocked:
        ranks = costs.ranks + len(costs.unclocked)
        words += f" and {costs.ranks:,} of {plural(ranks, 'rank')}"
    if fewer or costs.unclocked:
        yield f"The phases are those of {words}."


def _words_of_sums(view: Overview, fewer: list[str]) -> Iterator[str]:
    """Yield which steps the phases of a thinned run are of; its sums tell no kinds apart."""
    words = f"all {view.steps_used:,} used steps"
    if fewer:
        words += f", also of those like these of the sample: {', '.join(fewer)}"
    yield f"The phases are those of {words}."
    if not view.exchange_timed:
        yield "They hold the exchange only as far as it was timed."


def run_meanings(view: Overview) -> dict[str, str]:
    """Return what happens in the phases of this run that hold more than their meaning says."""
    found = {}
    if not view.exchange_timed and view.clock is PhaseClock.DEVICE:
        found[Phase.BACKWARD.value] = f"{Phase.BACKWARD.meaning}, and their exchange"
    if view.has_pipeline:
        found[Phase.OTHER.value] = OTHER_OF_PIPELINE
    return found


def live_parts_words(view: LiveView) -> Iterator[str]:
    """Yield the steps that the parts of a live view are about, and their clock."""
    of_steps = ""
    if view.parts_steps < view.recent_steps:
        latest = plural(view.recent_steps, "step")
        of_steps = f" of {view.parts_steps:,} of the latest {latest}, which are timed and known"
    if view.clock is PhaseClock.DEVICE:
        yield f"phases: the device's times{of_steps}"
    elif view.clock is PhaseClock.LAUNCH:
        yield f"phases{of_steps}: no device times; {LAUNCHES}"
    elif of_steps:
        yield f"phases{of_steps}"


def why_not_judged(view: Overview) -> str:
    """Return the reason why no verdict is given on a run."""
    if view.bad_times:
        return f"the source has impossible times ({'; '.join(view.bad_times)})"
    if view.changed:
        return f"a file was changed since it was written ({'; '.join(view.changed)})"
    if view.silent_ranks:
        ranks = f"{view.silent_ranks:,} of {plural(view.world_size, 'rank')}"
        missing = f"{ranks} left no steps"
        if "imported_from" in view.config:
            missing = f"there are no steps of {ranks} in the imported files"
        return (
            f"{missing}, so the throughput of the whole job is not known; "
            "step time and shares are those of the others"
        )
    if view.steps_needed:
        return f"an interval needs {plural(view.steps_needed, 'more step')}"
    if not view.samples_known:
        missing = "nothing says how many samples a step trains on"
        if view.sharing.why:
            missing = f"ranks may train on the same samples ({view.sharing.why})"
        return f"{missing}, so there is no throughput; all other figures are valid"
    return TOO_ALIKE if view.step_ns.value > 0 else "the used steps took no time at all"


_ROLES = {"rest": Phase.OTHER.value}
"""The phase whose colour a part of the ledger has, if its name is no phase."""


def role_of(part: str) -> str:
    """Return the role of a part: that of its phase."""
    return _ROLES.get(part, part)


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
        words = f"{duration(cost.opening_ns)} per rank once, to open its files; "
    words += f"per step at least {duration(cost.hooks_ns or 0)} in the loop"
    if view.step_ns.value > 0:
        words += f" ({percent((cost.hooks_ns or 0) / view.step_ns.value, 3)})"
    words += f", and processor time beside it: writer {duration(cost.writer_ns or 0)}"
    if cost.collectors_ns is not None:
        words += f", collectors {duration(cost.collectors_ns)}"
    if cost.eye_ns is not None:
        words += f", reading stacks from outside {duration(cost.eye_ns)}"
    control = cost.switched
    if control is not None and control.low is not None and control.high is not None:
        words += "; measured with control steps (recording off): "
        if control.low > 0:
            words += f"{duration(control.value)}, {interval_words(control, duration)}"
        elif control.high > 0:  # a cost is never below zero, though a difference may be
            words += f"not above the noise, at most {duration(control.high)}"
        else:
            words += "none, they took longer than measured steps"
    return words
