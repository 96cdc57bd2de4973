"""Gradients are exchanged in many small messages, each with its own latency."""

from __future__ import annotations

from profkit.explain.ledger import sum_rows
from profkit.explain.policy import POLICY
from profkit.explain.rules.base import EXCHANGE, Case, Cause, Specific, from_to, grew, in_time
from profkit.text import byte_size, significant

MIN_BUCKETS_RATIO = 2.0
"""There must be at least this many times the base's buckets."""

_REMEDY = (
    "larger buckets (bucket_cap_mb in DDP, comm_buffer_size in Paddle's DataParallel): few "
    "messages that each fill the link"
)


def find(case: Case) -> Cause | None:
    ledger, before, after = case.ledger, case.before.exchanges, case.after.exchanges
    if before is None or after is None or not before.buckets:
        return None
    row = sum_rows(ledger, "backward and exchange", EXCHANGE)
    if after.buckets < MIN_BUCKETS_RATIO * before.buckets or not grew(row, ledger):
        return None
    bytes_before = before.buckets * before.message_bytes
    if not 0 < after.buckets * after.message_bytes <= POLICY.same_bytes_ratio * bytes_before:
        return None
    was, now = in_time(ledger, before, after)
    evidence = (
        f"{was.buckets} buckets of {byte_size(was.message_bytes)} "
        f"became {now.buckets} of {byte_size(now.message_bytes)}; backward and exchange "
        f"went from {from_to(row, ledger)} per step with {significant(now.messages, 2)} messages"
    )
    return Cause.from_row("tiny_buckets", row, ledger, evidence, _REMEDY, specific=Specific.COUNT)
