"""Gradients travel in so few messages that no backward is left to hide them."""

from __future__ import annotations

from profkit.explain.rules._exchange import exchange_row
from profkit.explain.rules.base import Case, Finding, all_of, cost, from_to, grew, share_of_gap
from profkit.text import byte_size, duration

_REMEDY = "smaller buckets (bucket_cap_mb in DDP, comm_buffer_size in Paddle's DataParallel), so that the first leave while gradients are still computed"


def find(case: Case) -> Finding | None:
    ledger, before, after = case.ledger, case.before.exchanges, case.after.exchanges
    if before is None or after is None or not after.buckets or after.buckets >= before.buckets:
        return None
    row = exchange_row(ledger)
    if not grew(row, ledger):
        return None
    hidden = next((each for each in ledger.beside if each.name == "allreduce under backward"), None)
    words = [
        f"{before.buckets} buckets of {byte_size(before.message_bytes)} became {after.buckets} of {byte_size(after.message_bytes)}"
    ]
    if hidden is not None:
        words.append(
            "backward hid "
            + " and now ".join(
                duration(side.value * ledger.samples_per_step)
                for side in (hidden.base, hidden.target)
            )
            + " a step"
        )
    words.append(f"backward and exchange went from {from_to(row, ledger)} a step")
    return Finding(
        "huge_bucket",
        cost(row, ledger),
        share_of_gap(row, ledger),
        "; ".join(words),
        _REMEDY,
        takes=all_of("exposed_communication", "late_rank"),
    )
