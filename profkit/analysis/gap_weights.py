"""Weights of samples between phases, by the time of each such place in a step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from profkit.analysis.estimate import Floats, Ints

FEWEST_SAMPLES = 10
"""Places with fewer samples are weighed together: alone, their weight would be chance."""


def weigh_by_gap(weight: Floats, gap: Ints, times: Mapping[int, float]) -> tuple[Floats, Ints]:
    """Return weights that are in proportion to the time of each gap, and each sample's group.

    If a place has by chance more samples than its time accounts for, its lines would seem longer.
    `gap` is the pair of phases around each sample, and `times` the time of each pair. Samples with
    a negative gap are in group 0 and keep their weight, as does the sum of the others.
    """
    group = np.zeros(len(gap), dtype=np.int64)
    inside = np.flatnonzero(gap >= 0)
    pairs, back, counts = np.unique(gap[inside], return_inverse=True, return_counts=True)
    group_of = _join_rare(counts)
    took = np.array([max(0.0, times.get(pair, 0.0)) for pair in pairs.tolist()])
    time_of = np.bincount(group_of, weights=took)
    if group_of.max(initial=0) < 1 or not time_of.all():
        return weight, group
    group[inside] = 1 + group_of[back]
    sampled = np.bincount(group_of[back], weights=weight[inside])
    factor = time_of / sampled * (sampled.sum() / time_of.sum())
    weight = weight.copy()
    weight[inside] *= factor[group_of[back]]
    return weight, group


def _join_rare(counts: Ints) -> Ints:
    """Return the group of each place; those with few samples are in one, which has enough."""
    order = np.argsort(counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]  # samples of all rarer places
    is_rare = (counts[order] < FEWEST_SAMPLES) | ((before > 0) & (before < FEWEST_SAMPLES))
    group = np.zeros(len(counts), dtype=np.int64)
    group[order] = np.maximum(0, np.cumsum(~is_rare) - (0 if is_rare.any() else 1))
    return group
