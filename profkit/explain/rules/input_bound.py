"""The job waits longer for its batches."""

from __future__ import annotations

from collections.abc import Iterator

from profkit.analysis.costs import INPUT
from profkit.explain.ledger import Row, sum_rows
from profkit.explain.rules._input import (
    NO_WORKERS,
    is_crowded_out,
    is_slow_on_all_ranks,
    slow_piece,
)
from profkit.explain.rules.base import (
    Case,
    Finding,
    cost,
    from_to,
    grew,
    input_is_hidden,
    knobs_for,
    share_of_gap,
)
from profkit.text import duration, significant
from profkit.vocab import Phase

_REMEDIES = {
    NO_WORKERS: "make batches in workers (num_workers above 0, --workers): now the loop makes each itself, and trains on none meanwhile",
    "read": "put the data on a faster disk or in memory, or read ahead with more workers",
    "decode": "more workers (--workers), or decode elsewhere (--dali); check that the host has the cores",
    "collate": "collate less: smaller or fixed shapes, or collate in the workers",
    "queue": "pin the memory, or hand batches over in shared memory: they are ready, and arrive late",
}
_OTHERWISE = "more workers (--workers) and a deeper prefetch; then see which of read, decode and collate is left"


def find(case: Case) -> Finding | None:
    ledger = case.ledger
    row = ledger.find(INPUT)
    if row is None or not grew(row, ledger) or input_is_hidden(ledger) or is_crowded_out(case):
        return None
    cause = slow_piece(case, row.delta.value * ledger.samples_per_step)
    words = [f"exposed input went from {from_to(row, ledger)} a step", *_made(case, cause)]
    largest = max(row.inside, key=lambda part: part.delta.value, default=None)
    if largest is not None and not cause:
        words.append(f"most of it {largest.name}, {from_to(largest, ledger)}")
    words += knobs_for(case, INPUT)
    if case.target.config.get("imported_from") == "training_log" and case.target.world_size > 1:
        words.append(
            "rank 0's wait is a lower bound: other ranks' waits show as its gradient exchange"
        )
    remedy = _REMEDIES.get(cause or (largest.name if largest else ""), _OTHERWISE)
    whole = _with_waiting(case, row)
    if whole is not row:
        words.append(
            f"the ranks' batches come late in turns, and with what they wait for each other it went from {from_to(whole, ledger)}"
        )
    return Finding(
        "input_bound",
        cost(whole, ledger),
        share_of_gap(whole, ledger),
        "; ".join(words),
        remedy,
        cause=cause,
    )


def _with_waiting(case: Case, row: Row) -> Row:
    """With the exchange, where the ranks wait in it for the one whose batch came last."""
    ledger = case.ledger
    exchange = ledger.find(Phase.ALLREDUCE.value)
    latest = case.after.work.latest()
    if (
        latest is None
        or exchange is None
        or not grew(exchange, ledger)
        or latest.phase != Phase.DATA.value
        or not is_slow_on_all_ranks(case, latest.rank)
    ):
        return row
    return sum_rows(ledger, "input and waiting for it", (INPUT, Phase.ALLREDUCE.value))


def _made(case: Case, cause: str) -> Iterator[str]:
    before, after = case.before.loader, case.after.loader
    if before is None or after is None:
        return
    if cause == NO_WORKERS:
        yield f"{significant(before.workers)} workers of each rank made the base's batches, the loop makes the target's itself"
    elif cause:
        yield f"making a batch takes longer: {cause} went from {duration(before.pieces.get(cause, 0.0))} to {duration(after.pieces[cause])}, whoever waits"
