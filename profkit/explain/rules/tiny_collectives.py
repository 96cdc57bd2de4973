"""A sharded job sends what it exchanges in many small collectives or messages."""

from __future__ import annotations

from collections.abc import Callable

from profkit.analysis.exchange_places import Place
from profkit.analysis.place_costs import PlaceCost
from profkit.explain.ledger import Ledger, Row
from profkit.explain.policy import POLICY
from profkit.explain.rules._overhead import with_overhead
from profkit.explain.rules._sharded import Traffic, compared, costs_of, traffic
from profkit.explain.rules.base import Case, Cause, Specific, from_to, grew, in_time
from profkit.frame.pipelines import MESSAGES
from profkit.text import byte_size, significant
from profkit.vocab import Phase

MIN_CALLS_RATIO = 2.0
"""There must be at least this many times the base's collectives."""

_REMEDY = (
    "exchange the same bytes in fewer collectives: larger units in FSDP (wrap several layers "
    "together), fewer layers split by tensors, fewer microbatches"
)


def find(case: Case) -> Cause | None:
    """Compare the collectives of each operation that carry about as many bytes in both runs."""
    exchange, ledger = compared(case), case.ledger
    if exchange is None:
        return None
    found: list[tuple[Row, str]] = []
    ops = {_name(each) for each in case.after.figure(costs_of)}
    for op in sorted(ops):
        if op == "all_reduce" and case.after.exchanges and case.after.exchanges.buckets:
            continue  # those are gradient buckets, which have a rule of their own
        is_op = _is_one_of(op)
        before, after = traffic(case.before, is_op), traffic(case.after, is_op)
        if not before.calls or after.calls < MIN_CALLS_RATIO * before.calls:
            continue
        if 0 < after.bytes <= POLICY.same_bytes_ratio * before.bytes:
            row = exchange.row(op, is_op)
            if grew(row, ledger):
                found.append((row, _describe(ledger, op, before, after)))
    if not found:
        return None
    found.sort(key=lambda each: -each[0].delta.value)
    is_own = _is_one_of(*(row.name for row, _ in found))
    row = exchange.row("small collectives", is_own)
    calls = "; ".join(words for _, words in found)
    evidence = f"{calls}; their exposed time went from {from_to(row, ledger)}"
    cause = Cause.from_row(
        "tiny_collectives", row, ledger, evidence, _REMEDY, specific=Specific.COUNT
    )
    return with_overhead(cause, is_own, case, exchange, Phase.FORWARD.value, Phase.BACKWARD.value)


def _is_one_of(*ops: str) -> Callable[[Place | PlaceCost], bool]:
    return lambda place: _name(place) in ops


def _describe(ledger: Ledger, op: str, before: Traffic, after: Traffic) -> str:
    was, now = in_time(ledger, before, after)
    return (
        f"{op} went from {significant(was.calls, 2)} calls of {byte_size(was.bytes / was.calls)} "
        f"per step to {significant(now.calls, 2)} of {byte_size(now.bytes / now.calls)}"
    )


def _name(place: Place | PlaceCost) -> str:
    return "messages of the pipeline" if place.op in MESSAGES else place.op
