"""Gradients are exchanged in so few messages that no backward is left to hide them."""

from __future__ import annotations

from profkit.explain.ledger import Ledger, Row, sum_rows
from profkit.explain.policy import POLICY
from profkit.explain.rules.base import EXCHANGE, Case, Cause, Specific, from_to, grew, in_time
from profkit.text import byte_size
from profkit.vocab import Phase

MIN_BOTH_SHARE = 0.5
"""Backward and exchange together must be longer by this share of the exchange's growth."""

_REMEDY = (
    "smaller buckets (bucket_cap_mb in DDP, comm_buffer_size in Paddle's DataParallel), so that "
    "the first ones leave while gradients are still computed"
)


def find(case: Case) -> Cause | None:
    ledger, before, after = case.ledger, case.before.exchanges, case.after.exchanges
    if before is None or after is None or not after.buckets or after.buckets >= before.buckets:
        return None
    row = _grown_row(ledger)
    if row is None:
        return None
    ratio = 0.0
    if before.message_bytes:
        ratio = after.buckets * after.message_bytes / (before.buckets * before.message_bytes)
    if not 1 / POLICY.same_bytes_ratio <= ratio <= POLICY.same_bytes_ratio:
        return None  # other gradients, not the same ones in fewer messages
    was, now = in_time(ledger, before, after)
    evidence = (
        f"{was.buckets} buckets of {byte_size(was.message_bytes)} "
        f"became {now.buckets} of {byte_size(now.message_bytes)}; "
    )
    for each in ledger.beside:
        if each.name == "allreduce under backward":
            evidence += f"what backward hides went from {from_to(each, ledger)} per step; "
    evidence += f"{row.name} went from {from_to(row, ledger)} per step"
    return Cause.from_row("huge_bucket", row, ledger, evidence, _REMEDY, specific=Specific.COUNT)


def _grown_row(ledger: Ledger) -> Row | None:
    """Return backward and exchange together, or the exchange alone.

    A backward that varies may hide by how much both have grown.
    """
    both = sum_rows(ledger, "backward and exchange", EXCHANGE)
    if grew(both, ledger):
        return both
    exchange = ledger.find(Phase.ALLREDUCE.value)
    if exchange is None or not grew(exchange, ledger):
        return None
    return exchange if both.delta.value >= MIN_BOTH_SHARE * exchange.delta.value else None
