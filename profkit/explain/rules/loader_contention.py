"""Loader workers take the processors that the step itself needs: it is slower, and hardly waits for data."""

from __future__ import annotations

from profkit.analysis.costs import INPUT
from profkit.explain.rules.base import (
    Case,
    Finding,
    all_of,
    compute_row,
    cost,
    from_to,
    grew,
    share_of_gap,
)
from profkit.text import significant

MORE = 0.15
"""Workers that use this many cores more than the base's can be in the way."""

_REMEDY = "fewer workers, or one thread in each (torch.set_num_threads(1), OMP_NUM_THREADS=1, cv2.setNumThreads(0)); leave the step the cores that it needs"


def find(case: Case) -> Finding | None:
    ledger, before, after = case.ledger, case.before.load, case.after.load
    if before is None or after is None or not after.full or after.workers < before.workers + MORE:
        return None
    row, waiting = compute_row(ledger), ledger.find(INPUT)
    if not grew(row, ledger) or (waiting is not None and waiting.delta.value > row.delta.value):
        return None
    evidence = (
        f"computing went from {from_to(row, ledger)} a step while loader workers went from {significant(before.workers, 2)} to "
        f"{significant(after.workers, 2)} cores of {significant(after.cores, 2)}, {significant((after.own or 0) + after.workers, 2)} with the ranks themselves"
    )
    return Finding(
        "loader_contention",
        cost(row, ledger),
        share_of_gap(row, ledger),
        evidence,
        _REMEDY,
        takes=all_of("optimizer_unfused", "host_busy", "thread_oversubscription"),
    )
