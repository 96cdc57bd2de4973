"""The phases in which a rank is late, and by how much more than in the base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from profkit.explain.rules._hidden import Hidden, find_hidden
from profkit.explain.rules._input import is_slow_on_all_ranks
from profkit.explain.rules.base import Case, here, is_material, other_side
from profkit.frame.costs import INPUT
from profkit.frame.estimate import Estimate, scale, subtract
from profkit.frame.lateness import Lateness
from profkit.frame.phases import UNKNOWN
from profkit.text import duration
from profkit.vocab import Phase

MIN_PHASE_SHARE = 0.1
"""Phases of a late rank that differ by less than this share of its latest phase are noise."""


MOST_RANKS_NAMED = 4


class Growth(NamedTuple):
    """The lateness of a rank, less its lateness in the base, in ns per step."""

    late: Lateness
    """In the phases in which its lateness changed."""
    cost_ns: Estimate
    """Per step of the base's batch."""
    known_ns: float
    """What it was late by in the same phases of the base; zero if it was not."""
    changes: Mapping[str, Estimate]
    """The change of each of these phases, the largest first; of some, it catches up."""
    hidden: Hidden
    """The part of its lateness that costs nothing: it waits so much less."""


def find_growth(case: Case, late: Lateness, *, has_trade: bool, is_told: bool) -> Growth | None:
    """Return by how much more a rank is late than in the base, in which phases.

    If it is not told who waits in forward, the phase in which it is latest counts alone.
    """
    left_out = set()
    if has_trade and is_told:
        left_out.add(Phase.FORWARD.value)  # the others wait there
    if is_slow_on_all_ranks(case, late.rank):
        left_out.add(Phase.DATA.value)
    changes = {}
    for phase, change in _changes(case, late.rank):
        if phase not in left_out and (is_told or phase == late.phase):
            changes[phase] = change
    names = _largest(case, changes)
    after, before = case.after.work, case.before.work
    if not names or changes[names[0]].value <= 0:
        return None
    found, base = after.lateness(late.rank, *names), before.lateness(late.rank, *names)
    if found is None:
        return None
    factor, known_factor = _factors(case)
    known_ns = base.excess if base is not None and base.excess.value > 0 else Estimate(0.0)
    cost_ns = scale(found.excess, factor)
    if known_ns.value > 0:
        cost_ns = subtract(cost_ns, scale(known_ns, known_factor))
    hidden = Hidden()
    if not has_trade:  # else nobody knows what it waits in its forward
        # If one rank is late in all steps, ranks are no longer late in turns.
        in_turns_ns = before.turns_ns() * known_factor - after.turns_ns() * factor
        hidden = (find_hidden(case, late.rank, *names) or hidden).at_least(in_turns_ns)
    changes = {name: changes[name] for name in names}
    return Growth(found, hidden.shorten(cost_ns), known_ns.value, changes, hidden)


def _largest(case: Case, changes: Mapping[str, Estimate]) -> list[str]:
    """Return the phases with the changes that are no noise, the latest first."""
    least_ns = MIN_PHASE_SHARE * max((each.value for each in changes.values()), default=0.0)
    names = []
    for phase in sorted(changes, key=lambda phase: -changes[phase].value):
        size_ns = abs(changes[phase].value)
        if size_ns >= least_ns and is_material(size_ns, case.ledger):
            names.append(phase)
    return names


def _changes(case: Case, rank: int) -> Iterator[tuple[str, Estimate]]:
    """Yield the phases in which a rank's lateness surely changed, and by how much.

    What another rank was late by in the base is no lateness of this one.
    """
    factor, known_factor = _factors(case)
    known = case.before.work.by_phase(rank)
    for phase, excess in case.after.work.by_phase(rank).items():
        change, was = scale(excess, factor), known.get(phase)
        if was is not None and was.value * excess.value > 0:
            change = subtract(change, scale(was, known_factor))
        is_later = change.low is not None and change.low > 0 and excess.value > 0
        is_earlier = change.high is not None and change.high < 0
        if is_later or is_earlier:
            yield phase, change


def _factors(case: Case) -> tuple[float, float]:
    """Return the factors from a step of the target, and of the base, to the base's batch."""
    ledger = case.ledger
    after = ledger.batch_factor(case.after.step_samples)
    return after, ledger.batch_factor(case.before.step_samples)


def row_of(phase: str) -> str:
    """Return the row of the ledger that holds a phase."""
    return INPUT if phase == Phase.DATA.value else phase


def _name_ranks(ranks: Sequence[int]) -> str:
    """Return a few ranks as the subject of a sentence."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} is"
    if len(ranks) > MOST_RANKS_NAMED:
        return f"{len(ranks):,} more ranks are"
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last} are"


def describe_lateness(case: Case, growth: Growth) -> str:
    """Return in which phases the rank takes longer, and where it catches up."""
    late = growth.late
    excess = case.after.work.by_phase(late.rank)
    longer: list[str] = []
    less: list[str] = []
    whose = f"rank {late.rank}'s"
    for phase, change in growth.changes.items():
        where = "time outside all phases" if phase == UNKNOWN else row_of(phase)
        takes = duration(abs(excess[phase].value))
        if change.value > 0:
            longer.append(f"{whose} {where}{'' if longer else ' takes'} {takes}")
            whose = "its"
        elif excess[phase].value < 0:
            less.append(f"; its {where} takes {takes} less than theirs")
        else:
            less.append(f"; its {where} takes only {takes} longer than theirs")
    joined = " and ".join(filter(None, [", ".join(longer[:-1]), longer[-1]]))
    words = f"{here(case.ledger)}{joined} per step longer than"
    also = case.after.work.as_late(late)
    if also:
        words += f" most others'; {_name_ranks(also)} late as well"
    else:
        words += " the others'"
    if is_material(growth.known_ns, case.ledger):
        words += f", against {duration(growth.known_ns)} in the {other_side(case.ledger)}"
    return words + "".join(less) + growth.hidden.describe(case)
