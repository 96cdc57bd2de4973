"""Ratios of per-step sums with intervals that hold for autocorrelated steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FEWEST_STEPS = 8
"""With fewer steps no interval is given: the bootstrap would claim more than it knows."""

NEGLIGIBLE = 0.005
"""A change below this share of the base is neutral: no run repeats itself more closely."""

RESAMPLES = 1_000
_MOST_POINTS = 4_000
"""Longer series are shortened to this many points, which bounds the work."""

_RESAMPLE_PARTS = 8
"""Resamples are counted in this many parts, which bounds the memory."""

_FEWEST_BLOCKS = 3
"""A correlation that leaves fewer independent blocks than this in the series is not believed."""

_FEWEST_LAGS = 5
"""Politis and White's minimum, for lags to examine and for a run of insignificant ones."""

_HIGHEST_RATIO = 0.97
"""Ratios of neighbouring lags are capped here: towards 1 the memory grows without bound."""

Z_95 = 1.959964
USUAL_LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value with its interval, which is `None` if there are too few steps."""

    value: float
    low: float | None = None
    high: float | None = None
    level: float = USUAL_LEVEL
    """The confidence of the interval; that of few steps is lower."""

    @property
    def judged(self) -> bool:
        return self.low is not None and self.high is not None


@np.errstate(divide="ignore", invalid="ignore")
def estimate_ratios(
    numerators: Floats,
    denominators: Floats,
    *,
    seed: int = 0,
    shares: npt.NDArray[np.bool_] | None = None,
) -> list[Estimate]:
    """Estimate `sum(numerator) / sum(denominator)` over the steps by a block bootstrap.

    Both are arrays of (quantity, step). Steps are resampled in circular blocks that are long enough
    to keep their autocorrelation, and in the same blocks for every quantity, so that parts of one
    whole vary together. The interval is widened for what blocks cannot show: correlation across
    block boundaries, and the small number of independent blocks. It ends at what is possible;
    `shares` says which quantities are parts of their denominator.
    """
    values = numerators.sum(axis=1) / denominators.sum(axis=1)
    if numerators.shape[1] < FEWEST_STEPS or not np.isfinite(values).all():
        return list(map(Estimate, values.tolist()))
    stacked = np.concatenate([numerators, denominators])
    group = math.ceil(stacked.shape[1] / _MOST_POINTS)
    if group > 1:
        # Neighbouring steps of a very long series are added up, which keeps the ratios.
        stacked = np.add.reduceat(stacked, np.arange(0, stacked.shape[1], group), axis=1)
    above, below = stacked[: len(values)], stacked[len(values) :]
    # What each quantity adds to its ratio's error, per step: this autocorrelation matters.
    errors = (above - values[:, None] * below) / below.mean(axis=1, keepdims=True)
    block = max(map(block_length, errors))
    sums = _resampled_sums(stacked, block, seed)
    ratios = sums[:, : len(values)] / sums[:, len(values) :]
    widening = _widening(errors, ratios.std(axis=0), block)
    least, most = np.quantile(ratios, (0.025, 0.975), axis=0)
    high = values + (most - values) * widening
    is_amount = ((numerators >= 0) & (denominators >= 0)).all(axis=1) & (values > 0)
    low = _widened_low(values, least, widening, is_amount)
    if shares is not None:
        within = shares & is_amount & (numerators <= denominators).all(axis=1)
        high = np.where(within, np.minimum(high, 1.0), high)
    estimates = []
    for value, begin, end in zip(values, low, high, strict=True):
        estimates.append(Estimate(float(value), _finite(begin), _finite(end)))
    return estimates


def _widened_low(
    values: Floats, least: Floats, widening: Floats, is_amount: npt.NDArray[np.bool_]
) -> Floats:
    """Return the lower ends of intervals. Times and other amounts have none below zero.

    Where the interval of few uneven steps would begin there, it is widened by a factor instead: no
    step that was seen takes 0 s. All other intervals would become narrower by it.
    """
    ends = values + (least - values) * widening
    factor = np.divide(least, values, out=np.ones_like(values), where=is_amount)
    scaled = values * np.maximum(factor, 0.0) ** widening
    return np.where(is_amount & (ends <= 0), scaled, ends)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _widening(errors: Floats, spread: Floats, block: int) -> Floats:
    """Return how much wider each interval must be than the `spread` of its resamples.

    Blocks cut the correlation at their boundaries, and a short series shows too little of it, by
    about (1 + 4 r) / n. So the standard error is at least that of a first-order autoregression with
    the corrected correlation, and that of a slow drift under noise. Student's t allows for the
    number of independent steps in the series.
    """
    count = errors.shape[1]
    variance = (errors**2).mean(axis=1)
    products = (errors[:, 1:] * errors[:, :-1]).sum(axis=1) / count
    seen = np.divide(products, variance, out=np.zeros_like(variance), where=variance > 0)
    correlation = np.clip(seen + (1 + 4 * seen) / count, 0, _highest_correlation(count))
    remembered = np.array(list(map(_memory, errors)))
    alike = np.maximum((1 + correlation) / (1 - correlation), remembered)
    alike = np.minimum(alike, count / _FEWEST_BLOCKS)
    least = np.sqrt(variance * alike / (count - alike))
    too_narrow = np.divide(least, spread, out=np.ones_like(least), where=spread > 0)
    student = np.array([student_95(count / max(steps, block) - 1) for steps in alike])
    return np.asarray(np.maximum(1, too_narrow) * student / Z_95)


def _highest_correlation(count: int) -> float:
    """Return the correlation at which `count` steps hold `_FEWEST_BLOCKS` independent ones."""
    return (count - _FEWEST_BLOCKS) / (count + _FEWEST_BLOCKS)


def _memory(series: Floats) -> float:
    """Return how many steps count as one if the correlation falls off geometrically.

    Noise on top of a slow drift hides the drift's memory from the first lag alone, but the ratio of
    neighbouring lags still shows it. A short series shows too low a ratio as well.
    """
    count = len(series)
    products = _lagged_products(series - series.mean())
    correlations = np.zeros(len(products))
    if products[0] > 0:
        correlations = products / products[0]
    seen = correlations[1 : _last_lag(correlations, count) + 1]
    if len(seen) < 2 or seen[0] <= 0:
        return 1.0
    ratio = 0.0
    if seen[:-1].sum() > 0:
        ratio = float(np.clip(seen[1:].sum() / seen[:-1].sum(), 0, _HIGHEST_RATIO))
    ratio = min(ratio + 2 * (1 + 3 * ratio) / count, _highest_correlation(count))
    return float(1 + 2 * min(1.0, float(seen[0]) / ratio) * ratio / (1 - ratio))


def _lagged_products(centred: Floats) -> Floats:
    """Return the product of a series with itself at each lag that is examined, from 0 on.

    About sqrt(n) lags can be estimated from n steps. The logarithmic rest leaves room for the run
    of insignificant lags that ends the search for the last significant one.
    """
    count = len(centred)
    most = max(_FEWEST_LAGS, math.isqrt(count)) + math.ceil(math.log10(count)) * 2
    products = np.zeros(min(count - 1, most) + 1)
    for lag in range(len(products)):
        products[lag] = centred[lag:] @ centred[: count - lag]
    return products


def _last_lag(correlations: Floats, count: int) -> int:
    """Return the last lag before a run of lags that are all within the noise."""
    noise = 2 * math.sqrt(math.log10(count) / count)
    run = max(_FEWEST_LAGS, math.ceil(math.sqrt(math.log10(count))))
    quiet = np.abs(correlations[1:]) < noise
    for start in range(len(quiet)):
        if quiet[start : start + run].all():
            return start
    return len(quiet)


def block_length(series: Floats) -> int:
    """Return the block length for a circular bootstrap, after Politis and White (2004).

    Lags count as long as their correlation stands out of the noise; a series without correlation
    gets blocks of one step. The length is limited so that at least five blocks remain.
    """
    count = len(series)
    centred = series - series.mean()
    variance = float(centred @ centred) / count
    if variance <= 0 or not math.isfinite(variance):
        return 1
    covariances = _lagged_products(centred) / count
    reach = 2 * _last_lag(covariances / variance, count)
    if reach == 0:
        return 1
    lag = np.arange(min(reach + 1, len(covariances)))
    weights = np.clip(2 * (1 - lag / reach), 0, 1) * np.where(lag == 0, 1, 2)
    spectrum = float(weights @ covariances[lag])
    slope = float((weights * lag) @ covariances[lag])
    if spectrum <= 0:
        return 1
    length = (1.5 * (slope / spectrum) ** 2 * count) ** (1 / 3)
    return int(min(max(1, round(length)), max(1, count // 5)))


def _resampled_sums(rows: Floats, block: int, seed: int) -> Floats:
    """Return every row's sum over each resample of circular blocks, by (resample, row)."""
    places: dict[bytes, int] = {}
    place = [places.setdefault(row.tobytes(), len(places)) for row in rows]
    rows = rows[np.unique(place, return_index=True)[1]]  # many ratios share their denominator
    count, circular = rows.shape[1], np.concatenate([rows, rows[:, :block]], axis=1)
    padded = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(circular, axis=1)], axis=1)
    block_sums = (padded[:, block : block + count] - padded[:, :count]) / block
    blocks = max(1, round(count / block))
    starts = np.random.default_rng(seed).integers(0, count, size=(RESAMPLES, blocks))
    sums = []
    for part in np.array_split(starts, _RESAMPLE_PARTS):
        flat = part + np.arange(len(part))[:, None] * count
        drawn = np.bincount(flat.ravel(), minlength=len(part) * count).reshape(len(part), count)
        # `@` would start threads, which cost more than they save next to a running job.
        sums.append(np.einsum("rb,qb->rq", drawn.astype(np.float64), block_sums))
    return np.asarray(np.concatenate(sums)[:, place] / blocks)


def student_95(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t for these degrees of freedom.

    The Cornish-Fisher expansion is within 1 % from three degrees on; fewer count as three.
    """
    freedom = max(3.0, freedom)
    z = Z_95
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def as_floats(column: Any) -> Floats:
    """Return an Arrow column as floats; null becomes NaN."""
    return np.asarray(column.to_numpy(), dtype=np.float64)


def subtract(target: Estimate, base: Estimate) -> Estimate:
    """Return the difference of two independent figures, whose deviations add up as squares."""
    value = target.value - base.value
    if target.low is None or target.high is None or base.low is None or base.high is None:
        return Estimate(value)
    below = math.hypot(target.value - target.low, base.high - base.value)
    above = math.hypot(target.high - target.value, base.value - base.low)
    return Estimate(value, value - below, value + above, min(target.level, base.level))


def mean_of(found: Sequence[Estimate | None]) -> Estimate | None:
    """Return the mean of independent, equally good figures; null if one of them is."""
    values, halves = [], []
    for each in found:
        if each is None or each.high is None:
            return None
        values.append(each.value)
        halves.append(each.high - each.value)
    value, half = sum(values) / len(values), math.hypot(*halves) / len(halves)
    return Estimate(value, value - half, value + half)


def divide(above: Estimate, below: Estimate) -> Estimate:
    """Return the quotient of two independent positive figures, from their logarithms."""
    if not (above.value > 0 and below.value > 0):
        return Estimate(math.nan)
    return _mapped(subtract(_mapped(above, _log), _mapped(below, _log)), math.exp)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def scale(estimate: Estimate, factor: float) -> Estimate:
    """Return the same figure in another unit; `factor` is above zero."""
    return _mapped(estimate, lambda value: value * factor)


def negate(estimate: Estimate) -> Estimate:
    """Return the figure in the other direction."""
    turned = _mapped(estimate, lambda value: -value)
    return dataclasses.replace(turned, low=turned.high, high=turned.low)


def _mapped(estimate: Estimate, function: Callable[[float], float]) -> Estimate:
    if estimate.low is None or estimate.high is None:
        return Estimate(function(estimate.value))
    low, high = function(estimate.low), function(estimate.high)
    return Estimate(function(estimate.value), low, high, estimate.level)


def binomial_bound(hits: float, misses: float, chance: float) -> float:
    """Return what the probability of so many hits or more is at most, by Chernoff's bound."""
    count = hits + misses
    share = hits / count
    if share <= chance:
        return 1.0
    exponent = share * math.log(share / chance)
    if share < 1:
        exponent += (1 - share) * math.log((1 - share) / (1 - chance))
    return math.exp(-count * exponent)
