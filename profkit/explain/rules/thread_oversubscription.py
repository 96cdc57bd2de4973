"""The ranks run more threads than there are cores for, and are slower for it."""

from __future__ import annotations

from profkit.analysis.config_join import COMPUTE
from profkit.explain.evidence_counters import Load
from profkit.explain.ledger import sum_rows
from profkit.explain.rules._threads import uses_python_threads
from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    compute_row,
    differs,
    from_to,
    grew,
    here,
    in_time,
    trains_on_host,
)
from profkit.text import plural, significant
from profkit.vocab import Phase

MIN_CORES_RATIO = 1.2
"""The ranks use more than this many times as many cores as in the base."""

MIN_SWITCHES_RATIO = 2.0
"""The ranks lose their core to another thread more than this many times as often."""

MIN_ADDED_THREADS = 0.5
"""With no thread more, it is others that take the cores; the number is a mean of readings."""

MIN_SWITCHES_PER_S = 50.0
"""Fewer involuntary switches per second happen on any machine."""

_REMEDY = (
    "as many threads in all ranks together as there are cores (OMP_NUM_THREADS, "
    "torch.set_num_threads): cores divided by ranks on this machine"
)


def find(case: Case) -> Cause | None:
    if _has_more_threads_than_cores(case):
        return _find_by_setting(case)
    ledger, before, after = case.ledger, case.before.load, case.after.load
    if before is None or after is None or not before.own or after.own is None or not after.full:
        return None
    row = compute_row(ledger)
    if not grew(row, ledger) or case.base.world_size != case.target.world_size:
        return None
    if not is_oversubscribed(before, after) or uses_python_threads(before, after):
        return None
    was, now = in_time(ledger, before, after)
    words = []
    if was.threads and now.threads:
        words.append(f"{significant(was.threads, 3)} threads became {significant(now.threads, 3)}")
    if was.runnable and now.runnable:
        runnable = significant(was.runnable, 2), significant(now.runnable, 2)
        words.append(f"those that run or could run went from {runnable[0]} to {runnable[1]}")
    words.append(
        f"computing went from {from_to(row, ledger)} per step while the ranks' own threads went "
        f"from {significant(was.own or 0.0, 2)} to {significant(now.own or 0.0, 2)} cores "
        f"of {significant(now.cores, 2)}, "
        f"and lost their core {significant(was.switches_per_s or 0.0, 2)} and "
        f"{significant(now.switches_per_s or 0.0, 2)} times per second{now.where}"
    )
    return Cause.from_row(
        "thread_oversubscription", row, ledger, "; ".join(words), _REMEDY, specific=Specific.PROCESS
    )


def _has_more_threads_than_cores(case: Case) -> bool:
    """Return true if the runs state their threads, and only the target's do not fit the cores."""
    if not trains_on_host(case) or not differs(case, "threads"):
        return False
    fits = []
    for run, evidence in ((case.base, case.before), (case.target, case.after)):
        cores, threads = run.environment.get("cpu_count"), run.config["threads"]
        if not isinstance(cores, int) or not isinstance(threads, int):
            return False
        hosts = {rank.manifest.host for rank in evidence.trace.ranks}
        fits.append(threads * run.world_size <= cores * max(1, len(hosts)))
    return fits == [True, False]


def _find_by_setting(case: Case) -> Cause | None:
    """Return the cause without readings of the processors: short runs have too few."""
    ledger, after = case.ledger, case.after.load
    rows = [*COMPUTE, Phase.ALLREDUCE.value]
    row = sum_rows(ledger, "computing and exchange", [each for each in rows if ledger.find(each)])
    if not grew(row, ledger) or case.base.world_size != case.target.world_size:
        return None
    was, now = in_time(ledger, case.base, case.target)
    evidence = (
        f"{was.config['threads']} threads per rank became {now.config['threads']}, on "
        f"{plural(case.target.environment['cpu_count'], 'core')} with "
        f"{plural(case.target.world_size, 'rank')}; computing and exchange went from "
        f"{from_to(row, ledger)} per step"
    )
    if after is not None and after.switches_per_s is not None:
        evidence += (
            f"; {here(ledger)}the ranks' threads lost their core "
            f"{significant(after.switches_per_s, 2)} times per second{after.where}"
        )
    return Cause.from_row(
        "thread_oversubscription", row, ledger, evidence, _REMEDY, specific=Specific.PROCESS
    )


def is_oversubscribed(before: Load, after: Load) -> bool:
    """Return true if threads of the ranks wait for cores, and did not before.

    More threads alone are no sign: most threads sleep, and those that wait for the interpreter's
    lock need no core. If processes outside the run took more of the cores than the ranks, the
    ranks must have one thread more for each core.
    """
    if after.runnable is not None and after.runnable <= after.cores:
        return False
    both = before.threads is not None and after.threads is not None
    if both and (after.threads or 0.0) < (before.threads or 0.0) + MIN_ADDED_THREADS:
        return False
    switches = max(MIN_SWITCHES_PER_S, MIN_SWITCHES_RATIO * (before.switches_per_s or 0.0))
    if (after.switches_per_s or 0.0) <= switches:
        return False
    if both and (after.threads or 0.0) >= (before.threads or 0.0) + after.cores:
        return True
    own_before, own_after = before.own or 0.0, after.own or 0.0
    others_grew = (after.others or 0.0) - (before.others or 0.0) > own_after - own_before
    return not others_grew and own_after > MIN_CORES_RATIO * own_before
