"""The ranks run more threads than there are cores for, and are slower for it."""

from __future__ import annotations

from profkit.explain.evidence_counters import Load
from profkit.explain.rules.base import Case, Finding, compute_row, from_to, grew
from profkit.text import significant

MIN_CORES_RATIO = 1.2
"""The ranks use more than this many times as many cores as in the base."""

MIN_SWITCHES_RATIO = 2.0
"""The ranks lose their core to another thread more than this many times as often."""

MIN_SWITCHES_PER_S = 50.0
"""Fewer involuntary switches per second happen on any machine."""

EXPLAINS = ("optimizer_unfused", "host_busy")
_REMEDY = (
    "as many threads in all ranks together as there are cores (OMP_NUM_THREADS, "
    "torch.set_num_threads): cores divided by ranks on this machine"
)


def find(case: Case) -> Finding | None:
    ledger, before, after = case.ledger, case.before.load, case.after.load
    if before is None or after is None or not before.own or after.own is None or not after.full:
        return None
    row = compute_row(ledger)
    if not grew(row, ledger) or case.base.world_size != case.target.world_size:
        return None
    if not _is_oversubscribed(before, after):
        return None
    evidence = ""
    if before.threads and after.threads:
        threads = significant(before.threads, 3), significant(after.threads, 3)
        evidence = f"{threads[0]} threads became {threads[1]}; "
    evidence += (
        f"computing went from {from_to(row, ledger)} per step while the ranks' own threads went "
        f"from {significant(before.own, 2)} to {significant(after.own, 2)} cores "
        f"of {significant(after.cores, 2)}, "
        f"and lost their core {significant(before.switches_per_s or 0.0, 2)} and "
        f"{significant(after.switches_per_s or 0.0, 2)} times per second"
    )
    return Finding.from_row(
        "thread_oversubscription", row, ledger, evidence, _REMEDY, explains=EXPLAINS
    )


def _is_oversubscribed(before: Load, after: Load) -> bool:
    """Return true if the ranks have one more thread per core, or if more threads run at once.

    If processes outside the run took more of the cores than the ranks, only their number counts.
    """
    if (
        before.threads is not None
        and after.threads is not None
        and after.threads >= before.threads + after.cores
    ):
        return True
    own_before, own_after = before.own or 0.0, after.own or 0.0
    if (after.others or 0.0) - (before.others or 0.0) > own_after - own_before:
        return False
    switches = max(MIN_SWITCHES_PER_S, MIN_SWITCHES_RATIO * (before.switches_per_s or 0.0))
    return own_after > MIN_CORES_RATIO * own_before or (after.switches_per_s or 0.0) > switches
