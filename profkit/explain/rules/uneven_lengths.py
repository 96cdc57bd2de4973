"""One rank's batches are larger than the others', as with longer sequences."""

from __future__ import annotations

import math
import statistics

from profkit.explain.evidence import Evidence, step_elements
from profkit.explain.policy import POLICY
from profkit.explain.rules._hidden import Hidden, find_hidden
from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    here,
    is_material,
    other_side,
    share_of,
)
from profkit.frame.estimate import scale, subtract
from profkit.text import duration, significant
from profkit.vocab import Phase

MIN_RATIO = 1.15
"""A rank's batches are larger than the others' median by this factor."""

_WORK = (Phase.FORWARD.value, Phase.BACKWARD.value)
_REMEDY = (
    "give all ranks about as many elements: shuffle across ranks, sort by length within larger "
    "windows, or fill batches by elements and not by samples"
)


def find(case: Case) -> Cause | None:
    """Compare the mean size of each rank's first batches, and how long the ranks compute."""
    after, before = case.after.figure(elements_by_rank), case.before.figure(elements_by_rank)
    ledger = case.ledger
    if len(after) < 2 or len(after) < len(case.after.work.ranks):
        return None
    rank = max(after, key=lambda each: after[each][0])
    ratio, known = _ratio(after, rank), _ratio(before, rank)
    late = case.after.work.lateness(rank, *_WORK)
    base = case.before.work.lateness(rank, *_WORK)
    if ratio < MIN_RATIO or known >= MIN_RATIO or late is None:
        return None
    cost_ns = scale(late.excess, ledger.batch_factor(case.after.step_samples))
    if base is not None and base.excess.value > 0:
        factor = ledger.batch_factor(case.before.step_samples)
        cost_ns = subtract(cost_ns, scale(base.excess, factor))
    hidden = find_hidden(case, rank, *_WORK) or Hidden()
    cost_ns = hidden.shorten(cost_ns)
    if cost_ns.low is None or cost_ns.low <= 0 or not is_material(cost_ns.value, ledger):
        return None
    evidence = (
        f"{here(ledger)}rank {rank}'s batches have at least {significant(ratio, 3)} times the "
        f"elements of the others', by the shapes of its first batches ({significant(known, 3)} "
        f"times in the {other_side(ledger)}), and it computes {duration(late.excess.value)} per "
        f"step longer{hidden.describe(case)}"
    )
    return Cause(
        "uneven_lengths",
        cost_ns,
        share_of(cost_ns.value, ledger),
        evidence,
        _REMEDY,
        specific=Specific.RANK,
        rows=(*_WORK, Phase.ALLREDUCE.value),
    )


def elements_by_rank(evidence: Evidence) -> dict[int, tuple[float, float]]:
    """Return the mean elements of each rank's batches, with its standard error.

    It is empty if ranks share their batches.
    """
    found = {}
    if evidence.trace.sharing.groups or evidence.trace.sharing.why:
        return {}
    for number, read in evidence.figure(step_elements).items():
        found[number] = float(read.mean()), float(read.std()) / math.sqrt(len(read))
    for rank in evidence.trace.ranks:
        config = rank.manifest.config
        if rank.rank in found:
            continue
        elements, error = config.get("batch_elements"), config.get("batch_elements_error")
        if not isinstance(elements, int | float) or not isinstance(error, int | float):
            elements, error = _of_shape(str(config.get("batch_shapes", ""))), 0.0
        if elements:
            found[rank.rank] = float(elements), float(error)
    return found


def _of_shape(shapes: str) -> float:
    """Return the elements of a batch's first tensor, as in `8x64, 8`; 0 if it is not known."""
    total = 1.0
    for part in shapes.split(",", maxsplit=1)[0].split("x"):
        if not part.strip().isdigit():
            return 0.0
        total *= int(part)
    return total


def _ratio(elements: dict[int, tuple[float, float]], rank: int) -> float:
    """Return the factor by which a rank's batches are surely larger than the others' median."""
    others = [mean for other, (mean, _) in elements.items() if other != rank]
    if rank not in elements or not others:
        return 1.0
    mean, error = elements[rank]
    return max(1.0, (mean - POLICY.sure_errors * error) / statistics.median(others))
