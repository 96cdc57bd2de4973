"""One rank comes late to the gradient exchange, and the others wait for it."""

from __future__ import annotations

from profkit.analysis.costs import INPUT
from profkit.analysis.exchange import LateRank
from profkit.analysis.exposed import WAITING
from profkit.analysis.ledger import Row, sum_rows
from profkit.analysis.phases import UNKNOWN
from profkit.rules._base import Case, Finding, cost, from_to, grew, share_of_gap
from profkit.text import duration, percent
from profkit.vocab import Phase

_ROWS = {Phase.DATA.value: INPUT}
_WORDS = {**_ROWS, UNKNOWN: "time outside all phases"}


EXPLAINS = 0.5
"""A rank whose own phase is longer by at least this part of what the exchange's row grew is why it grew."""


def find(case: Case) -> Finding | None:
    """It costs what the others wait, and what it takes longer itself."""
    ledger, late = case.ledger, case.late_rank
    row = ledger.find(Phase.ALLREDUCE.value)
    waiting = next((part for part in row.inside if part.name == WAITING), None) if row else None
    if late is None or row is None or waiting is None or not (grew(waiting, ledger) or _keeps_others(case, late, row)):
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


def _keeps_others(case: Case, late: LateRank, row: Row) -> bool:
    """Whether the exchange takes longer because of this rank: where it has several buckets, those that follow a late one look like slow transfer."""
    others = 1 - 1 / case.after.costs.ranks
    before = case.before.late_rank
    known = before.excess_ns if before is not None and before.rank == late.rank and before.phase == late.phase else 0.0
    return grew(row, case.ledger) and (late.excess_ns - known) * others > EXPLAINS * row.delta.value * case.ledger.samples_per_step


def _with_own(case: Case, row: Row, phase: str) -> Row:
    """Waiting is part of the exchange's row; the phase that is longer on one rank is on average over all of them."""
    whole = sum_rows(case.ledger, "a late rank", [Phase.ALLREDUCE.value, _ROWS.get(phase, phase)])
    return whole if whole.delta.value > row.delta.value else row
