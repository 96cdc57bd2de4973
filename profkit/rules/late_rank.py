"""One rank comes late to the gradient exchange, and the others wait for it."""

from __future__ import annotations

from profkit.analysis.exposed import WAITING
from profkit.rules._base import Case, Finding, cost, from_to, grew, share_of_gap
from profkit.text import duration, percent
from profkit.vocab import Phase


def find(case: Case) -> Finding | None:
    ledger, late = case.ledger, case.late_rank
    row = ledger.find(Phase.ALLREDUCE.value)
    waiting = next((part for part in row.inside if part.name == WAITING), None) if row else None
    if late is None or waiting is None or not grew(waiting, ledger):
        return None
    words = [f"rank {late.rank} is waited for: {duration(late.waited_ns)} a step on each of the others, {percent(late.share, 0)} of all waiting is for it"]
    if late.excess_ns > 0:
        words.append(f"its {late.phase} takes {duration(late.excess_ns)} longer than the others'")
    words.append(f"over all ranks, waiting went from {from_to(waiting, ledger)} a step")
    return Finding(
        "late_rank",
        cost(waiting, ledger),
        share_of_gap(waiting, ledger),
        "; ".join(words),
        f"compare rank {late.rank}'s host, cores, disk and clock with the others'",
    )
