"""One rank comes late to the gradient exchange, and the others wait for it."""

from __future__ import annotations

from profkit.analysis.costs import INPUT
from profkit.analysis.exposed import WAITING
from profkit.analysis.ledger import Row, sum_rows
from profkit.analysis.phases import UNKNOWN
from profkit.rules._base import Case, Finding, cost, from_to, grew, share_of_gap
from profkit.text import duration, percent
from profkit.vocab import Phase

_ROWS = {Phase.DATA.value: INPUT}
_WORDS = {**_ROWS, UNKNOWN: "time outside all phases"}


def find(case: Case) -> Finding | None:
    """It costs what the others wait, and what it takes longer itself."""
    ledger, late = case.ledger, case.late_rank
    row = ledger.find(Phase.ALLREDUCE.value)
    waiting = next((part for part in row.inside if part.name == WAITING), None) if row else None
    if late is None or waiting is None or not grew(waiting, ledger):
        return None
    words = [f"rank {late.rank} is waited for: {duration(late.waited_ns)} a step on each of the others, {percent(late.share, 0)} of all waiting is for it"]
    if late.excess_ns > 0:
        words.append(f"its {_WORDS.get(late.phase, late.phase)} takes {duration(late.excess_ns)} longer than the others'")
    words.append(f"over all ranks, waiting went from {from_to(waiting, ledger)} a step")
    whole = _with_own(case, row, late.phase)
    return Finding(
        "late_rank",
        cost(whole, ledger),
        share_of_gap(whole, ledger),
        "; ".join(words),
        f"compare rank {late.rank}'s host, cores, disk and clock with the others'",
        cause=_ROWS.get(late.phase, late.phase),
        takes=frozenset({"exposed_communication", "input_bound", "input_stalls", "optimizer_unfused"}),
    )


def _with_own(case: Case, row: Row | None, phase: str) -> Row:
    """Waiting is part of the exchange's row, whose other parts hardly change; the phase that is longer on one rank is on average over all of them."""
    names = [Phase.ALLREDUCE.value, _ROWS.get(phase, phase)]
    whole = sum_rows(case.ledger, "a late rank", names)
    return whole if row is None or whole.delta.value > row.delta.value else row
