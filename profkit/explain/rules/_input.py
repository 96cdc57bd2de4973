"""What the rules of the input share: which piece of making a batch is behind a longer wait."""

from __future__ import annotations

from profkit.analysis.costs import INPUT
from profkit.explain.rules.base import MOST_OF_IT, Case, is_material

NO_WORKERS = "no workers"

GREW = 0.25
"""A piece of making a batch that grew by this part of what the wait did is behind it; else batches are made as fast as before, by too few."""

_BY_ITS_OWN_CLOCK = frozenset({"read", "decode"})
"""Pieces that are timed without the wait for a core: a machine that is busy makes none of them longer."""


def slow_piece(case: Case, added_ns: float) -> str:
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
        side.loader.pieces.get(piece, 0.0)
        * (
            ledger.samples_per_step / side.step_samples
            if ledger.per_sample and side.step_samples
            else 1.0
        )
        if side.loader
        else 0.0
        for side in (case.before, case.after)
    )
    return after - before


OTHERS = 0.25
"""Processes that are none of the job's and use this many cores can be in the way."""


def is_crowded_out(case: Case) -> bool:
    """Whether the input may be slower for want of cores that other processes take: then nothing says that it is the input's own fault."""
    load = case.after.load
    return (
        load is not None and load.full and (load.others or 0.0) > OTHERS and waits_for_cores(case)
    )


def waits_for_cores(case: Case) -> bool:
    """Whether the input may be slower for want of processors alone: no batch is more work, and no fewer workers make it."""
    before, after = case.before.loader, case.after.loader
    row = case.ledger.find(INPUT)
    if row is None or before is None or after is None or after.workers < before.workers:
        return False
    return slow_piece(case, row.delta.value * case.ledger.samples_per_step) not in _BY_ITS_OWN_CLOCK


def is_slow_on_all_ranks(case: Case, latest: int) -> bool:
    """Whether all ranks' batches take longer to make than the base's, and not just those of the rank that is waited for.

    Ranks that meet in each step share one wait: the one whose batch comes last waits for it, and the
    others wait for that rank, though their own batches come no faster.
    """
    before, after = case.before.making_ns, case.after.making_ns
    if latest not in after or not before:
        return False
    known = sum(before.values()) / len(before)
    added = {rank: ns - before.get(rank, known) for rank, ns in after.items()}
    others = [ns for rank, ns in added.items() if rank != latest]
    return (
        bool(others)
        and is_material(min(others), case.ledger)
        and min(others) > MOST_OF_IT * added[latest]
    )
