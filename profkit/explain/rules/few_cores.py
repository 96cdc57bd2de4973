"""The job may use fewer cores than in the base, and fewer than it has ranks or threads."""

from __future__ import annotations

from profkit.analysis.config_join import COMPUTE
from profkit.explain.ledger import sum_rows
from profkit.explain.rules.base import Case, Cause, Specific, from_to, grew, in_time, trains_on_host
from profkit.frame.costs import INPUT
from profkit.text import plural
from profkit.vocab import Phase

_REMEDY = (
    "give each rank cores of its own (taskset, --cpus, the launcher's binding); two ranks on one "
    "core take turns"
)


def find(case: Case) -> Cause | None:
    ledger = case.ledger
    before, after = (run.environment.get("cpu_count") for run in (case.base, case.target))
    if not isinstance(before, int) or not isinstance(after, int) or after >= before:
        return None
    hosts = {rank.manifest.host for rank in case.after.trace.ranks}
    ranks = case.target.world_size / max(1, len(hosts))
    threads = case.target.config.get("threads")
    needed = ranks * threads if isinstance(threads, int) else ranks
    if after >= max(needed, 2):
        return None
    names = [*COMPUTE, INPUT, Phase.ALLREDUCE.value]
    names = [each for each in names if ledger.find(each)]
    if not trains_on_host(case):
        names = [each for each in names if each == INPUT]
    row = sum_rows(ledger, "computing, input and exchange", names)
    if not names or not grew(row, ledger):
        return None
    first, then = in_time(ledger, before, after)
    evidence = (
        f"the ranks of a host may use {plural(then, 'core')} instead of {first:,}, for "
        f"{plural(int(ranks), 'rank')}; {row.name} went from {from_to(row, ledger)} per step"
    )
    return Cause.from_row("few_cores", row, ledger, evidence, _REMEDY, specific=Specific.COUNT)
