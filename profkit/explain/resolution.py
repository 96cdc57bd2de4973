"""The rows that two runs have in common, so that they can be compared."""

from __future__ import annotations

from profkit.frame.costs import DATA, OWN, RunCosts
from profkit.frame.device_times import PhaseClock
from profkit.vocab import Phase


def at_one_resolution(base: RunCosts, target: RunCosts) -> tuple[RunCosts, RunCosts]:
    """Return both sides in the rows of the coarser one, because a missing row is not zero.

    Logs have no phases, and some not even the wait for data. A profile may know its communication
    and no phase. Launch times say nothing of what a device did.
    """
    if PhaseClock.MIXED in (base.clock, target.clock) or unlike_clocks(base, target):
        return base.of_wall_alone(), target.of_wall_alone()
    knows_phases = (base.knows_phases or not base.steps) and (
        target.knows_phases or not target.steps
    )
    if knows_phases and PhaseClock.LAUNCH not in (base.clock, target.clock):
        if not (base.exchange_timed and target.exchange_timed):
            base, target = base.without_exchange(), target.without_exchange()
        if OWN in base.parts and OWN in target.parts:
            return base, target
        return base.without_own(), target.without_own()
    kept = []
    if DATA in base.parts and DATA in target.parts:
        kept.append(DATA)
    exchange = Phase.ALLREDUCE.value
    is_timed = base.exchange_timed and target.exchange_timed
    is_launch = PhaseClock.LAUNCH in (base.clock, target.clock)
    if exchange in base.parts and exchange in target.parts and is_timed and not is_launch:
        kept.append(exchange)
    if not kept:
        return base.of_wall_alone(), target.of_wall_alone()
    return base.without_phases(kept), target.without_phases(kept)


def unlike_clocks(base: RunCosts, target: RunCosts) -> str:
    """Return why the clocks of two runs rule out comparing phases; empty if they do not."""
    if PhaseClock.MIXED in (base.clock, target.clock):
        return (
            "some repeats of one side have device times and others have none: nobody knows how "
            "long the device worked in these"
        )
    if {base.clock, target.clock} != {PhaseClock.DEVICE, PhaseClock.LAUNCH}:
        return ""
    without, other = "base", "target"
    if target.clock is PhaseClock.LAUNCH:
        without, other = other, without
    return (
        f"the {without} has no device times, and the {other} has: the phases of one are when the "
        "host launched work, those of the other how long the device worked; record device times "
        "on both sides"
    )
