"""The exposed exchange on other numbers of ranks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.estimate import Floats
from profkit.analysis.kept_ceilings import load_ceilings
from profkit.analysis.whatif.changes import find_latency, without_transfers
from profkit.analysis.whatif.step_model import StepModel
from profkit.analysis.whatif.step_replay import replay
from profkit.explain.predict.job import Job

MOST_REPLAYS = 12
"""Replays of other transfers; between them, the exposed exchange is interpolated."""


class Links(NamedTuple):
    """The exposed exchange by number of ranks, in ns per step."""

    value: Floats
    low: Floats
    high: Floats
    words: str


def links_of_ranks(job: Job, model: StepModel, counts: Sequence[int]) -> Links | None:
    """Return the exposed exchange, or `None` if nothing says what it takes."""
    now = len(model.lines)
    if now < 2 or not model.members:
        return links_of_curve(job, counts)
    bare = float(replay(without_transfers(model)).mean())
    latency, measured = find_latency(model), measured_growth(job, model)
    words = (
        "transfers of the run: their volume grows as in a ring, at most they grow by the logarithm "
        "of the ranks"
    )
    if measured:
        words = f"{words}; 'profkit ceilings --links' at {sorted(measured)} ranks"
    whole, share = float(model.transfer.mean(axis=1).sum()), 0.0
    if latency is not None and whole > 0:
        share = min(1.0, latency * len(model.transfer) / whole)
    found: list[list[float]] = [[], [], []]
    for count in counts:
        ring = (1 - 1 / count) / (1 - 1 / now)
        tree = math.log2(count) / math.log2(now)
        least, most = min(ring, tree), max(ring, tree)
        usual = ring + share * (tree - ring)
        if count in measured:
            least = most = usual = measured[count]
        for place, factor in enumerate((usual, least, most)):
            found[place].append(factor)
    factors = np.array(found)
    asked = np.unique(factors)
    if len(asked) > MOST_REPLAYS:  # what is exposed bends where a transfer is no longer hidden
        asked = np.linspace(asked[0], asked[-1], MOST_REPLAYS)
    exposed = []
    for factor in asked:
        changed = dataclasses.replace(model, transfer=model.transfer * factor)
        if factor == 0:
            changed = without_transfers(changed)
        exposed.append(max(0.0, float(replay(changed).mean()) - bare))
    value, low, high = np.interp(factors, asked, exposed)
    return Links(value, low, high, words)


def measured_growth(job: Job, model: StepModel) -> dict[int, float]:
    """Return the factors of the transfer by number of ranks, if the links were measured there."""
    ceilings = load_ceilings(job.evidence.trace.manifest.environment)
    backends = set(pc.unique(job.evidence.trace.collectives["backend"]).to_pylist())
    if ceilings is None or not model.sizes.any():
        return {}
    now, size, found = len(model.lines), float(model.sizes.mean()), {}
    for backend in backends:
        here = ceilings.links_of(str(backend), now)
        for links in ceilings.links:
            if links.backend == backend and here is not None:
                volume = (1 - 1 / links.ranks) / (1 - 1 / now)
                found[links.ranks] = volume * here.at(size) / links.at(size)
    return found


def links_of_curve(job: Job, counts: Sequence[int]) -> Links | None:
    """Return what the gradients take on measured links, at most exposed as a whole."""
    ceilings: Ceilings | None = load_ceilings(job.evidence.trace.manifest.environment)
    size = job.evidence.trace.manifest.config.get("parameters_bytes")
    if ceilings is None or not ceilings.links or not isinstance(size, int) or size <= 0:
        return None
    links = max(ceilings.links, key=lambda each: each.ranks)
    whole = []
    for count in counts:
        growth = max(1.0, math.log2(max(2, count)) / math.log2(links.ranks))
        seconds = 2 * (1 - 1 / count) * size / links.at(size)
        whole.append(1e9 * seconds * growth)
    most = np.array(whole)
    words = (
        f"the gradients' exchange on links between {links.ranks} processes of this machine, by "
        "'profkit ceilings --links': hidden as a whole, or not at all"
    )
    return Links(most / 2, most * 0, most, words)
