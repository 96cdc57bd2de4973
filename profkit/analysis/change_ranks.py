"""The rank whose own work became longer than the others' at a change of the step time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.columns import rows_of_rank
from profkit.analysis.estimate import Ints
from profkit.analysis.phases import step_times
from profkit.analysis.run_change import LateSince
from profkit.vocab import Phase

LEAST_SHARE = 0.5
"""A rank is late if it explains at least this share of the change."""


def find_late(
    steps: pa.Table, spans: pa.Table, before: Ints, after: Ints, change_ns: float
) -> LateSince | None:
    """Return the rank that grew most beyond the others' median, if that explains the change.

    The wait for other ranks is no work of a rank.
    """
    ranks = pc.unique(steps["rank"]).to_pylist()
    if len(ranks) < 2 or change_ns <= 0 or not len(before) or not len(after):
        return None
    grown = []
    for rank in ranks:
        own = rows_of_rank(steps, rank), rows_of_rank(spans, rank)
        grown.append(_grown(*own, before, after))
    own_ns = np.array([sum(phases.values()) for phases in grown])
    late = int(own_ns.argmax())
    others = [phases for place, phases in enumerate(grown) if place != late]
    later_ns = own_ns[late] - float(np.median(np.delete(own_ns, late)))
    if later_ns < LEAST_SHARE * change_ns:
        return None
    phase = max(grown[late], key=lambda name: grown[late][name] - _median(others, name))
    return LateSince(ranks[late], phase, float(later_ns))


def _grown(steps: pa.Table, spans: pa.Table, before: Ints, after: Ints) -> dict[str, float]:
    """Return by how much each phase of one rank grew per step, in ns."""
    times = step_times(steps, spans, np.concatenate([before, after]))
    found = {}
    for name, part in zip(times.names, times.parts, strict=True):
        if name != Phase.ALLREDUCE.value:
            found[name] = float(part[len(before) :].mean() - part[: len(before)].mean())
    return found


def _median(ranks: Sequence[dict[str, float]], name: str) -> float:
    return float(np.median([phases.get(name, 0.0) for phases in ranks]))
