"""How often phases begin in a step of the loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from profkit.analysis.config_join import SURE_ERRORS
from profkit.explain.evidence import Evidence
from profkit.explain.ledger import Verdict, judge
from profkit.explain.rules.base import Case
from profkit.frame.columns import places_in, step_places
from profkit.frame.device_times import is_own
from profkit.vocab import ZERO_GRAD, Phase

MIN_RATIO = 1.25
"""A step must have at least this many times the base's calls of a phase."""

MIN_SHARE_OF_EXPECTED = 0.5
"""If a row grew by less than this share of what its calls did, the calls are shorter ones."""

_NAMES = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.OPTIMIZER.value)


class Calls(NamedTuple):
    """Calls per step and rank, with the standard error of the mean."""

    mean: float
    error: float


class More(NamedTuple):
    """A phase that is entered more often, and takes longer about as much."""

    name: str
    before: float
    after: float
    expected_ns: float
    """How much longer the row would be if its calls took as long, in ns per sample and rank."""


def enters_more(case: Case) -> tuple[More, ...]:
    """Return the phases that are entered more often, and take longer about as much."""
    if not (is_own(case.before.trace) and is_own(case.after.trace)):
        return ()
    ledger, base_ns = case.ledger, case.ledger.total.base.value
    before, after = case.before.figure(count_calls), case.after.figure(count_calls)
    known_factor = ledger.batch_factor(case.before.step_samples)
    factor = ledger.batch_factor(case.after.step_samples)
    found = []
    for name in _NAMES:
        row = ledger.find(name)
        if row is None or name not in before or name not in after:
            continue
        was, now = before[name].mean * known_factor, after[name].mean * factor
        error = math.hypot(before[name].error * known_factor, after[name].error * factor)
        # A larger batch needs fewer calls per sample, which says nothing of a step.
        ratio = min(now / was, after[name].mean / before[name].mean)
        if ratio < MIN_RATIO or now - was <= SURE_ERRORS * error:
            continue
        longer_ns = row.base.value * (now / was - 1)
        is_longer = judge(row.delta, base_ns) is Verdict.REGRESSION
        if is_longer and row.delta.value >= MIN_SHARE_OF_EXPECTED * longer_ns:
            found.append(More(name, before[name].mean, after[name].mean, longer_ns))
    return tuple(found)


def count_calls(evidence: Evidence) -> Mapping[str, Calls]:
    """Return how often phases begin in the loop itself; empty without phases.

    Gradients are reset as often as a loop likes, which is no update.
    """
    count = len(evidence.used) * evidence.costs.ranks
    spans = evidence.outer_spans
    spans = spans.filter(pa.array(places_in(spans["name"], (ZERO_GRAD,)) < 0))
    if not spans.num_rows or not count:
        return {}
    phase, place = places_in(spans["phase"], _NAMES), step_places(spans, evidence.used)
    _, rank = np.unique(spans["rank"].to_numpy(), return_inverse=True)
    found = {}
    for number, name in enumerate(_NAMES):
        mine = phase == number
        times = np.bincount(rank[mine] * len(evidence.used) + place[mine], minlength=count)
        if times.any():
            found[name] = Calls(float(times.mean()), float(times.std()) / math.sqrt(count))
    return found
