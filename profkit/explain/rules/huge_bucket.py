"""Gradients are exchanged in so few messages that no backward is left to hide them."""

from __future__ import annotations

from profkit.explain.ledger import sum_rows
from profkit.explain.rules.base import EXCHANGE, Case, Finding, from_to, grew
from profkit.text import byte_size, duration

EXPLAINS = ("exposed_communication", "late_rank")
_REMEDY = (
    "smaller buckets (bucket_cap_mb in DDP, comm_buffer_size in Paddle's DataParallel), so that "
    "the first ones leave while gradients are still computed"
)


def find(case: Case) -> Finding | None:
    ledger, before, after = case.ledger, case.before.exchanges, case.after.exchanges
    if before is None or after is None or not after.buckets or after.buckets >= before.buckets:
        return None
    row = sum_rows(ledger, "backward and exchange", EXCHANGE)
    if not grew(row, ledger):
        return None
    evidence = (
        f"{before.buckets} buckets of {byte_size(before.message_bytes)} "
        f"became {after.buckets} of {byte_size(after.message_bytes)}; "
    )
    for each in ledger.beside:
        if each.name == "allreduce under backward":
            was = duration(each.base.value * ledger.samples_per_step)
            now = duration(each.target.value * ledger.samples_per_step)
            evidence += f"backward hid {was} per step and now hides {now}; "
    evidence += f"backward and exchange went from {from_to(row, ledger)} per step"
    return Finding.from_row("huge_bucket", row, ledger, evidence, _REMEDY, explains=EXPLAINS)
