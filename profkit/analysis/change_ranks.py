"""The rank whose own work became longer than the others' at a change of the step time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.columns import rows_of_rank
from profkit.analysis.estimate import Floats, Ints, estimate_ratios, subtract
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
    work = []
    for rank in ranks:
        own = rows_of_rank(steps, rank), rows_of_rank(spans, rank)
        work.append(_work(*own, np.concatenate([before, after])))
    whole = np.stack([np.sum(list(phases.values()), axis=0) for phases in work])
    split = len(before)
    own_ns = _growth(whole, split)
    late = int(own_ns.argmax())
    later_ns = float(own_ns[late]) - float(np.median(np.delete(own_ns, late)))
    ahead = whole[late] - np.median(np.delete(whole, late, axis=0), axis=0)
    if later_ns < LEAST_SHARE * change_ns or not _surely_grew(ahead, split):
        return None
    others = [phases for place, phases in enumerate(work) if place != late]
    later = {}
    for name, ns in work[late].items():
        growths = [float(_growth(phases.get(name, np.zeros(1)), split)) for phases in others]
        later[name] = float(_growth(ns, split)) - float(np.median(growths))
    return LateSince(ranks[late], max(later, key=lambda name: later[name]), later_ns)


def _work(steps: pa.Table, spans: pa.Table, used: Ints) -> dict[str, Floats]:
    """Return the time of each phase of one rank's own work in each step."""
    times = step_times(steps, spans, used)
    found = dict(zip(times.names, times.parts, strict=True))
    found.pop(Phase.ALLREDUCE.value, None)
    return found


def _growth(series: Floats, split: int) -> Floats:
    """Return how much longer the steps from a place on are than those before it."""
    return np.asarray(series[..., split:].mean(axis=-1) - series[..., :split].mean(axis=-1))


def _surely_grew(series: Floats, split: int) -> bool:
    """Return true if the interval of the growth is above zero; too few steps have none."""
    sides = []
    for part in (series[:split], series[split:]):
        sides.append(estimate_ratios(part[None, :], np.ones((1, len(part))))[0])
    grown = subtract(sides[1], sides[0])
    return grown.low is not None and grown.low > 0
