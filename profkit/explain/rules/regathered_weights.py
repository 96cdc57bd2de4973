"""Weights are gathered again for backward, because they are dropped after forward."""

from __future__ import annotations

from profkit.analysis.exchange_places import Place
from profkit.analysis.place_costs import PlaceCost
from profkit.explain.rules._overhead import with_overhead
from profkit.explain.rules._sharded import compared, is_gather, traffic
from profkit.explain.rules.base import Case, Cause, Specific, from_to, grew, in_time
from profkit.text import byte_size, significant
from profkit.vocab import Phase

MIN_CALLS_RATIO = 3.0
"""There must be this many times the gathers in backward: one module is often gathered there."""

MAX_RATIO = 1.2
"""By at most this factor, the gathers in forward may differ."""

_REMEDY = (
    "if the memory allows it, keep the weights of the largest modules until backward "
    "(reshard_after_forward=False in fully_shard)"
)


def find(case: Case) -> Cause | None:
    """Compare the gathers in backward of runs that gather in forward alike."""
    exchange, ledger = compared(case), case.ledger
    if exchange is None:
        return None
    before, after = traffic(case.before, _in_backward), traffic(case.after, _in_backward)
    known, now = traffic(case.before, _in_forward), traffic(case.after, _in_forward)
    if after.calls < MIN_CALLS_RATIO * max(1.0, before.calls):
        return None
    if not known.calls or not 1 / MAX_RATIO <= now.calls / known.calls <= MAX_RATIO:
        return None  # more units, or more microbatches: everything is gathered more often
    row = exchange.row("all_gather in backward", _in_backward)
    if not grew(row, ledger):
        return None
    was, then = in_time(ledger, before, after)
    evidence = (
        f"all-gathers in backward went from {significant(was.calls, 2)} to "
        f"{significant(then.calls, 2)} per step ({byte_size(was.bytes)} to "
        f"{byte_size(then.bytes)}), and their exposed time from {from_to(row, ledger)}"
    )
    cause = Cause.from_row(
        "regathered_weights", row, ledger, evidence, _REMEDY, specific=Specific.PART
    )
    return with_overhead(cause, _in_backward, case, exchange, Phase.BACKWARD.value)


def _in_backward(place: Place | PlaceCost) -> bool:
    return is_gather(place) and place.around == Phase.BACKWARD.value


def _in_forward(place: Place | PlaceCost) -> bool:
    return is_gather(place) and place.around == Phase.FORWARD.value
