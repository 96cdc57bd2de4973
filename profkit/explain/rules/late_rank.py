"""One rank takes longer than the others before they meet, and all of them wait for it."""

from __future__ import annotations

from profkit.analysis.costs import INPUT
from profkit.analysis.estimate import Estimate, scale
from profkit.analysis.lateness import Lateness, minus
from profkit.analysis.phases import UNKNOWN
from profkit.explain.rules._input import is_slow_on_all_ranks
from profkit.explain.rules.base import Case, Finding, share_of
from profkit.text import duration, percent
from profkit.vocab import Phase

_ROWS = {Phase.DATA.value: INPUT}
_WORDS = {**_ROWS, UNKNOWN: "time outside all phases"}

MOST_OF_IT = 0.5
"""A rank that makes up for this part of its late phase elsewhere is not late."""

UNEVEN = 0.05
"""Ranks of a healthy job differ by a few percent of a step, as their cores and neighbours do; a late one is later than that."""

_KINDS = {
    INPUT: ("input_bound", "input_stalls"),
    Phase.H2D.value: ("unpinned_copy",),
    Phase.OPTIMIZER.value: ("optimizer_unfused",),
    Phase.OTHER.value: ("evaluation_in_training", "checkpoint_in_training"),
}
"""Whose cost the late rank's own time is part of."""


def find(case: Case) -> Finding | None:
    """It costs what it takes longer than the others: they wait as long. What it was late in the base already is not counted."""
    late = case.after.work.latest() if case.after.exchanges is not None else None
    if late is None:
        return None
    if late.phase == Phase.DATA.value and is_slow_on_all_ranks(case, late.rank):
        return None
    before = case.before.work.lateness(late.rank, late.phase)
    added = scale(
        minus(late.excess, before.excess if before and before.excess.value > 0 else None),
        _in_base_steps(case),
    )
    now = scale(late.excess, _in_base_steps(case))
    if (
        not all(_stands_out(each, case) for each in (added, now))
        or late.whole_ns < MOST_OF_IT * late.excess.value
    ):
        return None
    cause = _ROWS.get(late.phase, late.phase)
    return Finding(
        "late_rank",
        added,
        share_of(added.value, case.ledger),
        "; ".join(_evidence(case, late)),
        f"compare rank {late.rank}'s host, cores, disk and clock with the others'",
        cause=cause,
        takes=_explained(case, added, cause),
    )


def _stands_out(excess: Estimate, case: Case) -> bool:
    return (
        excess.low is not None
        and excess.low > 0
        and excess.value >= UNEVEN * case.ledger.total.base.value * case.ledger.samples_per_step
    )


def _evidence(case: Case, late: Lateness) -> list[str]:
    words = [
        f"rank {late.rank}'s {_WORDS.get(late.phase, late.phase)} takes {duration(late.excess.value)} a step longer than the others'"
    ]
    waited = case.late_rank
    if waited is not None and waited.rank == late.rank:
        words.append(
            f"it is waited for {duration(waited.waited_ns)} a step on each of the others, {percent(waited.share, 0)} of all waiting is for it"
        )
    return words


def _in_base_steps(case: Case) -> float:
    own = case.after.step_samples
    return case.ledger.samples_per_step / own if case.ledger.per_sample and own else 1.0


def _explained(case: Case, added: Estimate, cause: str) -> dict[str, float]:
    """The others' waiting is in the exchange, the rank's own time in its phase, each on the average over all ranks."""
    ranks = case.after.costs.ranks
    own = added.value / ranks
    return {"exposed_communication": added.value - own, **dict.fromkeys(_KINDS.get(cause, ()), own)}
