"""The ranks of a pipeline that compute for longer than the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from profkit.analysis.place_costs import PIPELINE, Pipeline, cost_pipeline
from profkit.explain.evidence import Evidence
from profkit.explain.exchange_ledger import places_of
from profkit.explain.rules._hidden import Hidden, find_hidden
from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    here,
    is_material,
    other_side,
    share_of,
    shift,
)
from profkit.frame.columns import names_and_codes
from profkit.frame.estimate import Estimate, estimate_ratios, scale, subtract
from profkit.frame.pipelines import MESSAGES
from profkit.text import duration
from profkit.vocab import Phase

MIN_EXCESS_SHARE = 0.1
"""Stages of a healthy pipeline differ by less than this share of what they compute."""

_REMEDIES = (
    "move layers from rank {rank} to the others, until all compute for as long",
    "give the last stage fewer layers: the head and the loss are part of it",
)


class Uneven(NamedTuple):
    """The rank of a pipeline that computes longest, in ns per step."""

    rank: int
    stages: tuple[int, ...]
    has_last: bool
    excess: Estimate
    """How much longer it computes than all ranks do on average, which the others wait for."""
    known: Estimate
    """The same rank's in the base."""
    cost_ns: Estimate
    """The growth, per step of the base's batch, less what it waits less for the others."""
    hidden_ns: float
    """What it waits less."""


def find_uneven(case: Case) -> Uneven | None:
    """Return the longest stage of the target, if it is longer than in the base.

    Only another part of the model makes a stage longer. A rank with the same part, or one of which
    the run does not say it, is late, which has its own rule.
    """
    found, before = case.after.figure(pipeline_of), case.before.figure(pipeline_of)
    if found is None or before is None or not found.stages or found.why or before.why:
        return None
    longest = max(found.stages, key=lambda each: each.compute_ns)
    ranks, whole_ns, last = [], 0.0, 0
    for each in found.stages:
        ranks.append(each.rank)
        whole_ns += each.compute_ns
        last = max((last, *each.stages))
    excess = _excess(case.after, longest.rank, ranks)
    known = _excess(case.before, longest.rank, ranks)
    mean_ns = whole_ns / len(ranks)
    if excess is None or known is None or excess.value < MIN_EXCESS_SHARE * mean_ns:
        return None
    ledger = case.ledger
    grown = subtract(
        scale(excess, ledger.batch_factor(case.after.step_samples)),
        scale(known, ledger.batch_factor(case.before.step_samples)),
    )
    is_longer = grown.low is not None and grown.low > 0 and is_material(grown.value, ledger)
    if not is_longer or not _has_other_part(case, longest.rank):
        return None
    waited = find_hidden(case, longest.rank) or Hidden()
    # For its first microbatch, nobody waits longer.
    hidden_ns = max(waited.ns, grown.value / max(1, found.microbatches))
    cost_ns = shift(grown, -hidden_ns)
    has_last = last in longest.stages
    return Uneven(longest.rank, longest.stages, has_last, excess, known, cost_ns, hidden_ns)


def uneven_stages(case: Case) -> Cause | None:
    """Return the cause of a rank that has more to compute than the others."""
    return _find("uneven_stages", case, has_last=False)


def long_last_stage(case: Case) -> Cause | None:
    """Return the cause of a last stage that is longer, with the head and the loss."""
    return _find("long_last_stage", case, has_last=True)


def _find(kind: str, case: Case, *, has_last: bool) -> Cause | None:
    """Return the cause of this kind with what the other ranks wait; `None` if they do not."""
    uneven = find_uneven(case)
    if uneven is None or uneven.has_last is not has_last:
        return None
    remedy = _REMEDIES[has_last].format(rank=uneven.rank)
    cost_ns = uneven.cost_ns
    if cost_ns.low is None or cost_ns.low <= 0 or not is_material(cost_ns.value, case.ledger):
        return None
    return Cause(
        kind,
        uneven.cost_ns,
        share_of(uneven.cost_ns.value, case.ledger),
        _describe(case, uneven),
        remedy,
        specific=Specific.RANK,
        rows=(Phase.FORWARD.value, Phase.BACKWARD.value, Phase.ALLREDUCE.value),
    )


def _describe(case: Case, uneven: Uneven) -> str:
    """Return how much longer a rank of the pipeline computes, in both runs."""
    what = f"rank {uneven.rank}"
    if uneven.stages:
        what += f" (stage {' and '.join(map(str, uneven.stages))})"
    return (
        f"{here(case.ledger)}{what} computes {duration(uneven.excess.value)} per step longer than "
        f"the mean of its pipeline's ranks, against {duration(uneven.known.value)} in the "
        f"{other_side(case.ledger)}: the others wait for it in every microbatch, and it waits "
        f"{duration(uneven.hidden_ns)} less for them"
    )


def pipeline_of(evidence: Evidence) -> Pipeline | None:
    if not set(names_and_codes(evidence.trace.collectives["op"])[0]) & set(MESSAGES):
        return None
    places = evidence.figure(places_of)
    if places is None:
        return None
    return cost_pipeline(evidence.trace, evidence.basis, places)


def _excess(evidence: Evidence, rank: int, ranks: list[int]) -> Estimate | None:
    """Return how much longer a rank computes than the mean of its pipeline's ranks."""
    work = evidence.work
    if rank not in work.ranks or not work.ns.shape[2]:
        return None
    rows = [work.ranks.index(each) for each in ranks if each in work.ranks]
    phases = [*map(work.phases.index, (Phase.FORWARD.value, Phase.BACKWARD.value))]
    compute = work.ns[:, phases].sum(axis=1)
    over = (compute[work.ranks.index(rank)] - compute[rows].mean(axis=0))[None, :]
    (found,) = estimate_ratios(over, np.ones_like(over))
    return found


def _has_other_part(case: Case, rank: int) -> bool:
    """Return true if the rank is known to have other stages or parameters than in the base."""
    sides = []
    for run in (case.before, case.after):
        for each in run.trace.ranks:
            if each.rank == rank:
                config = each.manifest.config
                described = config.get(PIPELINE)
                own = described.get("own_stages") if isinstance(described, dict) else None
                sides.append((config.get("parameters_fingerprint"), own))
    is_known = len(sides) == 2 and None not in (*sides[0], *sides[1])
    return is_known and sides[0] != sides[1]
