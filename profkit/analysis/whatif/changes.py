"""Changes of a `StepModel`: each returns the model of the changed job."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from profkit.analysis.whatif.loader_model import LoaderLine
from profkit.analysis.whatif.step_model import DATA, EXCHANGE, PARTS, StepModel, set_part
from profkit.frame.estimate import Floats, Ints
from profkit.vocab import Phase

COMPUTES = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.OPTIMIZER.value)


def scale_links(model: StepModel, factor: float, latency_ns: float) -> StepModel:
    """Return the model with links of another bandwidth; each message keeps its latency."""
    fixed = np.minimum(model.transfer, latency_ns)
    return dataclasses.replace(model, transfer=fixed + (model.transfer - fixed) / factor)


def find_latency(model: StepModel) -> float | None:
    """Return what a message takes regardless of its size, or `None` if sizes do not tell it."""
    known = model.sizes > 0
    times, sizes = model.transfer[known].mean(axis=1), model.sizes[known]
    if len(np.unique(sizes)) < 2 or sizes.max() < 4 * sizes.min():
        return None
    slope, level = np.polyfit(sizes, times, 1)
    if slope <= 0:
        return None
    return float(np.clip(level, 0.0, times.min()))


def without_transfers(model: StepModel, kept: float = 0.0) -> StepModel:
    """Return the model with transfers that take this share of their time."""
    lines = []
    for line in model.lines:
        work = line.work.copy()
        work[:, EXCHANGE] *= kept
        lines.append(dataclasses.replace(line, work=work))
    return dataclasses.replace(model, transfer=model.transfer * kept, lines=tuple(lines))


def shift_parts(
    model: StepModel, places: Sequence[int], parts: Sequence[str], less_ns: Sequence[float]
) -> StepModel:
    """Return the model with less time in some parts of the lines at these places, not below 0.

    What steps with a short part cannot give is taken from the others: a cost is a mean over steps.
    """
    lines = list(model.lines)
    for at in places:
        line = lines[at]
        work, loader = line.work, line.loader
        for name, less in zip(parts, less_ns, strict=True):
            part = PARTS.index(name)
            now = work[:, part].sum(axis=0)
            most = find_most(now, less)
            work = set_part(work, part, np.where(now > 0, np.maximum(now - most, 0.0), now))
            loader = None if part == DATA else loader
        lines[at] = dataclasses.replace(line, work=work, loader=loader)
    return dataclasses.replace(model, lines=tuple(lines))


def find_most(times: Floats, mean_ns: float) -> float:
    """Return the most to take from each time, so that the mean taken is the one given."""
    known = np.sort(times[times > 0])
    wanted = mean_ns * len(times)
    if wanted <= 0 or not len(known):
        return mean_ns
    if wanted >= known.sum():
        return float(known[-1])
    sums, left = np.cumsum(known), np.arange(len(known), 0, -1)
    place = int(np.searchsorted(sums + known * (left - 1), wanted))
    return float((wanted - (sums[place] - known[place])) / left[place])


def reduce_evenly(model: StepModel, less_ns: float) -> StepModel:
    """Return the model with less work on every rank, in proportion to its computing parts."""
    ranks, times = range(len(model.lines)), np.array([model.part(each).mean() for each in PARTS])
    chosen = list(map(PARTS.index, COMPUTES))
    if times[chosen].sum() <= 0:
        return shift_parts(model, ranks, [PARTS[int(np.argmax(times))]], [less_ns])
    shares = less_ns * times[chosen] / times[chosen].sum()
    return shift_parts(model, ranks, COMPUTES, shares.tolist())


def reduce_peaks(model: StepModel, less_ns: float) -> StepModel:
    """Return the model with less work, taken where parts are longer than in their median step."""
    peaks, whole = {}, 0.0
    for name in PARTS:
        times = model.part(name)
        peaks[name] = np.maximum(times - np.median(times, axis=1, keepdims=True), 0.0)
        whole += float(peaks[name].mean())
    share = min(1.0, less_ns / max(whole, 1e-9))
    changed = model
    for name, peak in peaks.items():
        if peak.any():
            changed = changed.with_part(name, model.part(name) - share * peak)
    rest = less_ns - share * whole
    if rest > 0:
        changed = reduce_evenly(changed, rest)
    return changed


def remove_trend(model: StepModel, less_ns: float) -> StepModel:
    """Return the model with less work, taken where parts become longer throughout the run."""
    place = np.arange(len(model.steps)) - (len(model.steps) - 1) / 2
    rising, whole = {}, 0.0
    for name in PARTS:
        slope = model.part(name) @ place / (place @ place)
        rising[name] = np.maximum(slope, 0.0)[:, None] * np.arange(len(model.steps))
        whole += float(rising[name].mean())
    if whole <= 0:
        return reduce_evenly(model, less_ns)
    changed = model
    for name, grown in rising.items():
        if grown.any():
            less = model.part(name) - less_ns / whole * grown
            changed = changed.with_part(name, np.maximum(less, 0.0))
    return changed


def level_out(model: StepModel) -> StepModel:
    """Return the model in which each rank computes as long as the mean of the ranks."""
    for name in COMPUTES[:2]:
        times = model.part(name)
        means = times.mean(axis=1, keepdims=True)
        factor = np.divide(times.mean(), means, out=np.ones_like(means), where=means > 0)
        model = model.with_part(name, times * factor)
    return model


def with_loaders(model: StepModel, loaders: Sequence[LoaderLine | None]) -> StepModel:
    """Return the model with other loaders; without workers, the loop makes its batches."""
    lines = []
    for line, loader in zip(model.lines, loaders, strict=True):
        work = line.work
        if loader is not None:
            work = set_part(work, DATA, loader.making + loader.taking)
        lines.append(dataclasses.replace(line, work=work, loader=loader))
    return dataclasses.replace(model, lines=tuple(lines))


GRID = 1_000
"""Points at which distributions are evaluated."""

TAIL_SHARE = 0.1
"""The longest steps, from which longer ones than were seen are extrapolated."""


def expected_maximum(values: Floats, counts: Sequence[int]) -> Floats:
    """Return the mean of the longest of so many ranks, from values by (rank, step).

    Ranks are independent. At least as many as there are take turns in being like each of them;
    fewer are any of them.
    """
    ranks = len(values)
    ordered = np.sort(values.ravel())
    last = len(ordered) - 1
    longest = np.arange(max(0, last - GRID), last)  # they decide on the maximum of many
    places = np.unique(np.append(longest, np.linspace(0, last, GRID).astype(int)))
    grid = ordered[places]
    below = count_below(values, grid)
    # There are few different counts: their logarithms are looked up.
    shares = np.arange(values.shape[1] + 1) / values.shape[1]
    with np.errstate(divide="ignore"):
        logs = np.log(shares)[below].sum(axis=0) / ranks
    mean_share = shares[below].mean(axis=0)
    # What lies between two points of the grid counts with its mean.
    sums = np.cumsum(ordered)[places]
    middle = np.diff(sums, prepend=0.0) / np.diff(places, prepend=-1)
    found = []
    for count in counts:
        reached = mean_share**count
        if count >= ranks:
            reached = np.exp(count * logs)
        found.append(float(np.diff(reached, prepend=0.0) @ middle))
    return np.array(found)


def count_below(values: Floats, grid: Floats) -> Ints:
    """Return how many values of each row are at most each point of the grid, which is sorted."""
    ranks, points = len(values), len(grid)
    place = np.searchsorted(grid, values) + np.arange(ranks)[:, None] * (points + 1)
    counts = np.bincount(place.ravel(), minlength=ranks * (points + 1))
    return np.cumsum(counts.reshape(ranks, points + 1)[:, :-1], axis=1)


def extrapolated_maximum(values: Floats, counts: Sequence[int]) -> Floats:
    """Return the same if the longest values have an exponential tail, as the upper estimate."""
    ordered = np.sort(values.ravel())
    first = int(len(ordered) * (1 - TAIL_SHARE))
    threshold, excess = ordered[first], float(ordered[first:].mean() - ordered[first])
    found = expected_maximum(values, counts)
    for place, count in enumerate(counts):
        expected = count * TAIL_SHARE
        if expected > 1:
            beyond = threshold + excess * (math.log(expected) + np.euler_gamma)
            found[place] = max(found[place], beyond)
    return found
