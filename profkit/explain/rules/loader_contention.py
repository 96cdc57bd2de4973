"""Loader workers take the cores that the step needs; it hardly waits for data."""

from __future__ import annotations

from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    compute_row,
    from_to,
    grew,
    in_time,
)
from profkit.frame.costs import INPUT
from profkit.text import significant

MIN_ADDED_WORKER_CORES = 0.15
"""Workers can be in the step's way if they use at least this many cores more than the base's."""

_REMEDY = (
    "fewer workers, or one thread in each (torch.set_num_threads(1), OMP_NUM_THREADS=1, "
    "cv2.setNumThreads(0)); leave the step the cores that it needs"
)


def find(case: Case) -> Cause | None:
    ledger, before, after = case.ledger, case.before.load, case.after.load
    if before is None or after is None or not after.full:
        return None
    if after.workers < before.workers + MIN_ADDED_WORKER_CORES:
        return None
    row, waiting = compute_row(ledger), ledger.find(INPUT)
    if not grew(row, ledger) or (waiting is not None and waiting.delta.value > row.delta.value):
        return None
    was, now = in_time(ledger, before, after)
    evidence = (
        f"computing went from {from_to(row, ledger)} per step while loader workers went from "
        f"{significant(was.workers, 2)} to {significant(now.workers, 2)} cores of "
        f"{significant(now.cores, 2)}, "
        f"{significant((now.own or 0) + now.workers, 2)} with the ranks themselves{now.where}"
    )
    return Cause.from_row(
        "loader_contention", row, ledger, evidence, _REMEDY, specific=Specific.PROCESS
    )
