"""The place between two phases to which most time was added."""

from __future__ import annotations

from collections.abc import Mapping

from profkit.explain.evidence import Evidence
from profkit.explain.rules.base import Case
from profkit.frame.gaps import unknown_places

Place = tuple[str, str]
"""The phases, or ends of the step, before and after a piece of time."""


def largest_place(case: Case) -> tuple[Place, float]:
    """Return the place to which most time was added, and how much per step."""
    added = added_places(case)
    place = max(added, key=lambda each: added[each], default=("", ""))
    return place, added.get(place, 0.0)


def added_places(case: Case) -> Mapping[Place, float]:
    """Return how much time per step was added to each place; less than 0 where it was taken."""
    before, after = case.before.figure(places_ns), case.after.figure(places_ns)
    known_factor = case.ledger.batch_factor(case.before.step_samples)
    factor = case.ledger.batch_factor(case.after.step_samples)
    return {
        place: ns * factor - before.get(place, 0.0) * known_factor for place, ns in after.items()
    }


def places_ns(evidence: Evidence) -> Mapping[Place, float]:
    """Return the time between phases in ns per step and rank, on the host."""
    trace = evidence.trace
    found = {}
    for place in unknown_places(trace.steps, trace.spans, evidence.used):
        found[place.after, place.before] = place.step_ns
    return found
