"""A rank that begins its collectives later than the others, within the exchange."""

from __future__ import annotations

import numpy as np

from profkit.analysis.estimate import scale
from profkit.analysis.exchange import LateRank
from profkit.analysis.exposed import WAITING
from profkit.explain.evidence import Evidence
from profkit.explain.rules.base import (
    Case,
    Cause,
    cost,
    grew,
    here,
    is_material,
    other_side,
    share_of,
)
from profkit.text import duration, percent
from profkit.vocab import Phase

MIN_SHARE_OF_WAITS = 0.5
"""The rank's own delay must be at least this share of what the others wait for it."""

_REMEDY = (
    "look at what rank {rank} does there before it calls its collectives, such as a communication "
    "hook or a compression, and compare its host and cores with the others'"
)


def find_late_in_exchange(case: Case) -> Cause | None:
    """Return the rank that most waiting is for, if it is as late there with its buckets.

    The cost is what the others wait longer than in the base, or what the exchange lasts longer.
    """
    row = case.ledger.find(Phase.ALLREDUCE.value)
    waited = case.after.figure(find_waited_rank)
    if row is None or waited is None or not grew(row, case.ledger):
        return None
    waits = next((part for part in row.inside if part.name == WAITING), None)
    if waits is None or not grew(waits, case.ledger):
        return None
    ledger, ranks = case.ledger, case.after.costs.ranks
    late_ns = ledger.batch_factor(case.after.step_samples) * _longer_ns(case.after, waited.rank)
    known_ns = ledger.batch_factor(case.before.step_samples) * _longer_ns(case.before, waited.rank)
    added = scale(waits.delta, ledger.samples_per_step * ranks / (ranks - 1))
    if added.value > cost(row, ledger).value:  # other parts of the exchange became shorter
        added = cost(row, ledger)
    if late_ns - max(0.0, known_ns) < MIN_SHARE_OF_WAITS * added.value:
        return None
    evidence = (
        f"{here(ledger)}within the exchange, rank {waited.rank} begins its collectives "
        f"{duration(late_ns)} per step later than the others"
    )
    if is_material(known_ns, ledger):
        evidence += f", against {duration(known_ns)} in the {other_side(ledger)}"
    evidence += (
        f"; each of the others waits {duration(waited.waited_ns)} per step, and "
        f"{percent(waited.share, 0)} of the waiting of all ranks is for it"
    )
    return Cause(
        "late_rank",
        added,
        share_of(added.value, ledger),
        evidence,
        _REMEDY.format(rank=waited.rank),
        detail=row.name,
        takes={"exposed_communication": added.value},
        rows=(row.name,),
    )


def find_waited_rank(evidence: Evidence) -> LateRank | None:
    """Return the rank that most waiting in the exchange is for, if one stands out."""
    basis = evidence.basis
    return basis.late_rank(basis.exchange())


def _longer_ns(evidence: Evidence, rank: int) -> float:
    """Return how much longer a rank's exchange lasts without any collective than the others'."""
    exchange = evidence.basis.exchange()
    idle_ns = {each.rank: each.not_ready_ns for each in exchange.ranks} if exchange else {}
    own_ns = idle_ns.pop(rank, 0.0)
    return own_ns - float(np.median(list(idle_ns.values()))) if idle_ns else 0.0
