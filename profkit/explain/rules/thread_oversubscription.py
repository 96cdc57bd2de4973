"""The ranks run more threads than there are processors for: they use more of them, and are slower."""

from __future__ import annotations

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

MORE = 1.2
"""The ranks' processes have more threads than the base's, by at least as many as there are cores; or they use this many times its cores,"""

SWITCHES = 2.0
"""or are put off a core this many times as often,"""

FEWEST_SWITCHES = 50.0
"""and at least so often a second: fewer are what any machine does."""

_REMEDY = "as many threads in all ranks together as there are cores (OMP_NUM_THREADS, torch.set_num_threads): cores divided by ranks on this machine"


def find(case: Case) -> Finding | None:
    ledger, before, after = case.ledger, case.before.load, case.after.load
    if before is None or after is None or not before.own or after.own is None or not after.full:
        return None
    row = compute_row(ledger)
    more_cores = after.own > MORE * before.own
    switched = (before.switches_per_s or 0.0, after.switches_per_s or 0.0)
    more_threads = (
        before.threads is not None
        and after.threads is not None
        and after.threads >= before.threads + after.cores
    )
    more_switches = switched[1] > max(FEWEST_SWITCHES, SWITCHES * switched[0])
    crowded_by_others = (after.others or 0.0) - (before.others or 0.0) > after.own - before.own
    if (
        not grew(row, ledger)
        or case.base.world_size != case.target.world_size
        or not (more_threads or ((more_cores or more_switches) and not crowded_by_others))
    ):
        return None
    threads = (
        f"{significant(before.threads, 3)} threads became {significant(after.threads, 3)}; "
        if before.threads and after.threads
        else ""
    )
    evidence = (
        f"{threads}"
        f"computing went from {from_to(row, ledger)} a step while the ranks' own threads went from {significant(before.own, 2)} to {significant(after.own, 2)} "
        f"cores of {significant(after.cores, 2)}, and were put off a core {significant(switched[0], 2)} and {significant(switched[1], 2)} times a second"
    )
    return Finding(
        "thread_oversubscription",
        cost(row, ledger),
        share_of_gap(row, ledger),
        evidence,
        _REMEDY,
        takes=all_of("optimizer_unfused", "host_busy"),
    )
