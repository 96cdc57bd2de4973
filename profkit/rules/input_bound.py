"""The job waits longer for its batches."""

from __future__ import annotations

from collections.abc import Iterator

from profkit.analysis.costs import INPUT
from profkit.rules._base import Case, Finding, cost, from_to, grew, input_is_hidden, knobs_for, share_of_gap
from profkit.text import duration, significant

NO_WORKERS = "no workers"

_REMEDIES = {
    NO_WORKERS: "make batches in workers (num_workers above 0, --workers): now the loop makes each itself, and trains on none meanwhile",
    "read": "put the data on a faster disk or in memory, or read ahead with more workers",
    "decode": "more workers (--workers), or decode elsewhere (--dali); check that the host has the cores",
    "collate": "collate less: smaller or fixed shapes, or collate in the workers",
    "queue": "pin the memory, or hand batches over in shared memory: they are ready, and arrive late",
}
_OTHERWISE = "more workers (--workers) and a deeper prefetch; then see which of read, decode and collate is left"

GREW = 0.25
"""A piece of making a batch that grew by this part of what the wait did is behind it; else batches are made as fast as before, by too few."""


def find(case: Case) -> Finding | None:
    ledger = case.ledger
    row = ledger.find(INPUT)
    if row is None or not grew(row, ledger) or input_is_hidden(ledger):
        return None
    cause = _cause(case, row.delta.value * ledger.samples_per_step)
    words = [f"exposed input went from {from_to(row, ledger)} a step", *_made(case, cause)]
    largest = max(row.inside, key=lambda part: part.delta.value, default=None)
    if largest is not None and not cause:
        words.append(f"most of it {largest.name}, {from_to(largest, ledger)}")
    words += knobs_for(case, INPUT)
    if case.target.config.get("imported_from") == "training_log" and case.target.world_size > 1:
        words.append("rank 0's wait is a lower bound: other ranks' waits show as its gradient exchange")
    remedy = _REMEDIES.get(cause or (largest.name if largest else ""), _OTHERWISE)
    return Finding("input_bound", cost(row, ledger), share_of_gap(row, ledger), "; ".join(words), remedy, cause=cause)


def _cause(case: Case, added_ns: float) -> str:
    """Which piece of a batch takes longer, whoever waited for it; nothing where batches are made as fast as before, or nobody timed it."""
    before, after = case.before.loader, case.after.loader
    if after is None or before is None:
        return ""
    if before.workers and not after.workers:
        return NO_WORKERS
    grown = {name: _per_batch(case, name) for name in after.pieces if name != "queue"}
    name = max(grown, key=lambda piece: grown[piece], default="")
    return name if name and grown[name] > GREW * added_ns else ""


def _per_batch(case: Case, piece: str) -> float:
    """By how much a piece became longer, in a step of the base's batch."""
    ledger = case.ledger
    before, after = (
        side.loader.pieces.get(piece, 0.0) * (ledger.samples_per_step / side.step_samples if ledger.per_sample and side.step_samples else 1.0)
        if side.loader
        else 0.0
        for side in (case.before, case.after)
    )
    return after - before


def _made(case: Case, cause: str) -> Iterator[str]:
    before, after = case.before.loader, case.after.loader
    if before is None or after is None:
        return
    if cause == NO_WORKERS:
        yield f"{significant(before.workers)} workers of each rank made the base's batches, the loop makes the target's itself"
    elif cause:
        yield f"making a batch takes longer: {cause} went from {duration(before.pieces.get(cause, 0.0))} to {duration(after.pieces[cause])}, whoever waits"
