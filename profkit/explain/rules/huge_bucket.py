"""Gradients are exchanged in so few messages that no backward is left to hide them."""

from __future__ import annotations

from profkit.explain.ledger import sum_rows
from profkit.explain.rules.base import EXCHANGE, Case, Cause, from_to, grew, in_time
from profkit.explain.rules.tiny_buckets import MAX_BYTES_RATIO
from profkit.text import byte_size

EXPLAINS = ("exposed_communication", "late_rank")
_REMEDY = (
    "smaller buckets (bucket_cap_mb in DDP, comm_buffer_size in Paddle's DataParallel), so that "
    "the first ones leave while gradients are still computed"
)


def find(case: Case) -> Cause | None:
    ledger, before, after = case.ledger, case.before.exchanges, case.after.exchanges
    if before is None or after is None or not after.buckets or after.buckets >= before.buckets:
        return None
    row = sum_rows(ledger, "backward and exchange", EXCHANGE)
    if not grew(row, ledger):
        return None
    ratio = 0.0
    if before.message_bytes:
        ratio = after.buckets * after.message_bytes / (before.buckets * before.message_bytes)
    if not 1 / MAX_BYTES_RATIO <= ratio <= MAX_BYTES_RATIO:
        return None  # other gradients, not the same ones in fewer messages
    was, now = in_time(ledger, before, after)
    evidence = (
        f"{was.buckets} buckets of {byte_size(was.message_bytes)} "
        f"became {now.buckets} of {byte_size(now.message_bytes)}; "
    )
    for each in ledger.beside:
        if each.name == "allreduce under backward":
            evidence += f"what backward hides went from {from_to(each, ledger)} per step; "
    evidence += f"backward and exchange went from {from_to(row, ledger)} per step"
    return Cause.from_row("huge_bucket", row, ledger, evidence, _REMEDY, explains=EXPLAINS)
