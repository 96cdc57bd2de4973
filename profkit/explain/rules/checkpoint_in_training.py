"""Checkpoints are written while training waits."""

from __future__ import annotations

from profkit.analysis.estimate import Estimate, scale
from profkit.explain.rules.base import Case, Finding, all_of, cost, is_material, share_of
from profkit.text import duration
from profkit.vocab import Phase

CHECKPOINT = "checkpoint"
_REMEDY = "save less often, or beside the job: copy the weights and write them on a thread (torch.distributed.checkpoint.async_save)"


def find(case: Case) -> Finding | None:
    ledger = case.ledger
    row = ledger.find(Phase.OTHER.value)
    before, after = (
        side.beside.get(CHECKPOINT, 0.0) * _scale(case, side.step_samples)
        for side in (case.before, case.after)
    )
    added = after - before
    if row is None or not is_material(added, ledger):
        return None
    whole = cost(row, ledger)
    price = _part(whole, added / whole.value) if whole.value > 0 else Estimate(added)
    if price.low is not None and price.low <= 0:
        return None
    evidence = f"checkpoints went from {duration(before)} to {duration(after)} a step, were they spread over all of them"
    return Finding(
        "checkpoint_in_training",
        price,
        share_of(added, ledger),
        evidence,
        _REMEDY,
        takes=all_of("evaluation_in_training"),
    )


def _scale(case: Case, samples: float) -> float:
    """From a step of its own to one of the base's batch."""
    return case.ledger.samples_per_step / samples if case.ledger.per_sample and samples else 1.0


def _part(whole: Estimate, share: float) -> Estimate:
    """A part of what was estimated, as uncertain in proportion."""
    return scale(whole, share)
