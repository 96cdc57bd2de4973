"""Gradients travel in many small messages, each with its own latency."""

from __future__ import annotations

from profkit.explain.rules._exchange import exchange_row
from profkit.explain.rules.base import Case, Finding, all_of, cost, from_to, grew, share_of_gap
from profkit.text import byte_size, significant

MORE = 2.0
"""Buckets that are this many times as many as the base's."""

_REMEDY = "larger buckets (bucket_cap_mb in DDP, comm_buffer_size in Paddle's DataParallel): few messages that each fill the link"


def find(case: Case) -> Finding | None:
    ledger, before, after = case.ledger, case.before.exchanges, case.after.exchanges
    if (
        before is None
        or after is None
        or not before.buckets
        or after.buckets < MORE * before.buckets
    ):
        return None
    row = exchange_row(ledger)
    if not grew(row, ledger):
        return None
    evidence = (
        f"{before.buckets} buckets of {byte_size(before.message_bytes)} became {after.buckets} of {byte_size(after.message_bytes)}; "
        f"backward and exchange went from {from_to(row, ledger)} a step with {significant(after.messages, 2)} messages in it"
    )
    return Finding(
        "tiny_buckets",
        cost(row, ledger),
        share_of_gap(row, ledger),
        evidence,
        _REMEDY,
        takes=all_of("exposed_communication", "late_rank", "launch_bound"),
    )
