"""The part of a rank's longer work that costs nothing, as it waits less for the others.

The step of a rank is its work and its waits. If its work becomes longer and its waits shorter, the
step grows by the difference.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from profkit.analysis.whatif.step_model import ranks_by_host
from profkit.explain.evidence import Evidence
from profkit.explain.exchange_ledger import places_of
from profkit.explain.rules.base import Case, is_material, shift, trains_on_host
from profkit.frame.estimate import Estimate
from profkit.frame.pipelines import MESSAGES
from profkit.text import duration

CORES_PER_RANK = 2
"""With fewer cores per rank, the threads that send wait for a core while other ranks compute."""


class Exposed(NamedTuple):
    """The exposed exchange of one rank in ns per step."""

    whole_ns: float
    transfer_ns: float
    """The part in which collectives were sent. Messages of a pipeline are no part of it."""


class Hidden(NamedTuple):
    """The part of a rank's longer work that costs nothing, in ns per step of the base's batch."""

    ns: float = 0.0
    sure_ns: float = 0.0
    """The part that shorter transfers do not explain: the exchange may have become quicker."""
    in_pipeline: bool = False

    def at_least(self, ns: float) -> Hidden:
        """Return the same part, or a larger one that the ranks' own work shows."""
        return self._replace(ns=max(self.ns, ns), sure_ns=max(self.sure_ns, ns))

    def shorten(self, cost_ns: Estimate) -> Estimate:
        """Return a cost without this part."""
        cost_ns, unsure_ns = shift(cost_ns, -self.ns), self.ns - self.sure_ns
        if cost_ns.high is None or not unsure_ns:
            return cost_ns
        return dataclasses.replace(cost_ns, high=cost_ns.high + unsure_ns)

    def describe(self, case: Case) -> str:
        """Return what is hidden as the end of a sentence; empty if that is not worth a word."""
        if not is_material(self.ns, case.ledger):
            return ""
        whom = "messages of its pipeline" if self.in_pipeline else "the others and the exchange"
        words = (
            f"; {duration(self.ns)} of it cost nothing, because it waits so much less for {whom}"
        )
        if is_material(self.ns - self.sure_ns, case.ledger):
            words += (
                f" ({duration(self.ns - self.sure_ns)} less in transfers, which the ranks no "
                "longer make all at once, unless the exchange itself became quicker)"
            )
        return words


def find_hidden(case: Case, rank: int, *phases: str) -> Hidden | None:
    """Return how much less a rank waits than in the base; `None` if that was not measured.

    The time by which it was earlier than the others in these phases of the base is no part of it.
    Work hides the messages of a pipeline. The transfers of other collectives count if the ranks
    share the cores that send them: a rank that comes late has them for itself.
    """
    sides = []
    for run in (case.before, case.after):
        found = run.figure(exposed_by_rank).get(rank)
        if found is None:
            return None
        factor = case.ledger.batch_factor(run.step_samples)
        sides.append(Exposed(found.whole_ns * factor, found.transfer_ns * factor))
    was, now = sides
    known = case.before.work.lateness(rank, *phases) if phases else None
    less_ns = was.whole_ns - now.whole_ns
    if known is not None:
        less_ns += min(0.0, known.excess.value * case.ledger.batch_factor(case.before.step_samples))
    sure_ns = max(0.0, less_ns - (was.transfer_ns - now.transfer_ns))
    ns = max(sure_ns, less_ns) if shares_cores(case) else sure_ns
    return Hidden(ns, sure_ns, case.after.figure(has_messages))


def exposed_by_rank(evidence: Evidence) -> dict[int, Exposed]:
    """Return the exposed exchange of each rank; empty if the waits were not timed."""
    places = evidence.figure(places_of)
    if places is None:
        return {}
    waits, per = places.waits, 1 / len(places.steps)
    is_message = np.isin([place.op for place in places.places], MESSAGES)[waits.place]
    found = {}
    for rank in np.unique(places.found.rank).tolist():
        own = waits.rank == rank
        whole, transfer = waits.exposed[own].sum(), waits.moving[own & ~is_message].sum()
        found[rank] = Exposed(float(whole) * per, float(transfer) * per)
    return found


def has_messages(evidence: Evidence) -> bool:
    places = evidence.figure(places_of)
    return places is not None and any(place.op in MESSAGES for place in places.places)


def shares_cores(case: Case) -> bool:
    """Return true if the ranks of a host have too few cores to compute and send side by side."""
    cores = case.target.environment.get("cpu_count")
    most = max(map(len, ranks_by_host(case.after.trace).values()), default=0)
    return trains_on_host(case) and isinstance(cores, int) and cores < CORES_PER_RANK * most
