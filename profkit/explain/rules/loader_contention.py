"""Loader workers take the cores that the step needs; it hardly waits for data."""

from __future__ import annotations

from profkit.analysis.costs import INPUT
from profkit.analysis.estimate import Estimate
from profkit.analysis.notices import is_log
from profkit.analysis.slow_lines import describe_fast_ends, fast_ends
from profkit.explain.rules.base import (
    Case,
    Cause,
    compute_row,
    from_to,
    grew,
    here,
    in_time,
    is_material,
    share_of,
)
from profkit.text import significant

MIN_ADDED_WORKER_CORES = 0.15
"""Workers can be in the step's way if they use at least this many cores more than the base's."""

EXPLAINS = ("optimizer_unfused", "host_busy", "thread_oversubscription")
EXPLAINS_IN_LOGS = ("exposed_communication",)
_REMEDY = (
    "fewer workers, or one thread in each (torch.set_num_threads(1), OMP_NUM_THREADS=1, "
    "cv2.setNumThreads(0)); leave the step the cores that it needs"
)


def find(case: Case) -> Cause | None:
    if is_log(case.after.trace):
        return _find_in_log(case)
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
    return Cause.from_row("loader_contention", row, ledger, evidence, _REMEDY, explains=EXPLAINS)


def _find_in_log(case: Case) -> Cause | None:
    """Compare what steps take longer while workers have batches to make."""
    ends = fast_ends(case.target.config)
    if ends is None or not grew(case.ledger.total, case.ledger):
        return None
    cost_ns = (ends["others_ns"] - ends["step_ns"]) * case.ledger.batch_factor(
        case.after.step_samples
    )
    if before := fast_ends(case.base.config):
        cost_ns -= (before["others_ns"] - before["step_ns"]) * case.ledger.batch_factor(
            case.before.step_samples
        )
    if not is_material(cost_ns, case.ledger):
        return None
    takes = dict.fromkeys(EXPLAINS_IN_LOGS, cost_ns)
    return Cause(
        "loader_contention",
        Estimate(cost_ns),
        share_of(cost_ns, case.ledger),
        here(case.ledger) + describe_fast_ends(ends),
        _REMEDY,
        takes=takes,
    )
