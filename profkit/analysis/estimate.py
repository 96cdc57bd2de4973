"""Ratios of per-step sums with intervals that hold for autocorrelated steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FEWEST_STEPS = 8
"""With fewer steps no interval is given: the bootstrap would claim more than it knows."""

NEGLIGIBLE = 0.005
"""A change below this share of the base is neutral, however certain it is: no run repeats itself better."""

RESAMPLES = 1_000
_MOST_POINTS = 4_000
_FEWEST_BLOCKS = 3
"""A correlation that leaves fewer independent blocks than this in the series is not believed."""

Z_95 = 1.959964


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval; the interval is `None` where there are too few steps to judge."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def judged(self) -> bool:
        return self.low is not None and self.high is not None


@np.errstate(divide="ignore", invalid="ignore")
def estimate_ratios(numerators: Floats, denominators: Floats, *, seed: int = 0) -> list[Estimate]:
    """`sum(numerator) / sum(denominator)` over the steps, with intervals from a block bootstrap.

    Both are arrays of (quantity, step). Steps are resampled in circular blocks that are long enough
    to keep their autocorrelation, and in the same blocks for every quantity, so that parts of one
    whole vary together. The interval is widened for what blocks cannot hold: correlation across
    their borders, and the small number of independent ones.
    """
    values = numerators.sum(axis=1) / denominators.sum(axis=1)
    if numerators.shape[1] < FEWEST_STEPS or not np.isfinite(values).all():
        return [Estimate(float(value)) for value in values]
    stacked = _shorten(np.concatenate([numerators, denominators]))
    errors = _deviations(stacked, values)
    block = max(map(block_length, errors))
    sums = _resampled_sums(stacked, block, seed)
    ratios = sums[:, : len(values)] / sums[:, len(values) :]
    widening = _widening(errors, ratios.std(axis=0), block)
    low, high = (
        values + (np.quantile(ratios, tail, axis=0) - values) * widening for tail in (0.025, 0.975)
    )
    return [
        Estimate(float(value), _finite(least), _finite(most))
        for value, least, most in zip(values, low, high, strict=True)
    ]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _widening(errors: Floats, spread: Floats, block: int) -> Floats:
    """By how much each quantity's interval must be wider than the `spread` of its resamples.

    Blocks cut the correlation at their borders, and in short series it is itself seen too low, by
    about (1 + 4 r) / n. So the standard error of a first-order autoregression with the corrected
    correlation, and of a slow drift under noise, are the least that is believed, with Student's t
    for the independent steps in it.
    """
    count = errors.shape[1]
    variance = (errors**2).mean(axis=1)
    products = (errors[:, 1:] * errors[:, :-1]).sum(axis=1) / count
    seen = np.divide(products, variance, out=np.zeros_like(variance), where=variance > 0)
    largest = (count - _FEWEST_BLOCKS) / (count + _FEWEST_BLOCKS)
    correlation = np.clip(seen + (1 + 4 * seen) / count, 0, largest)
    remembered = np.array([_memory(_correlations(row), count) for row in errors])
    alike = np.minimum(
        np.maximum((1 + correlation) / (1 - correlation), remembered), count / _FEWEST_BLOCKS
    )
    least = np.sqrt(variance * alike / (count - alike))
    too_narrow = np.divide(least, spread, out=np.ones_like(least), where=spread > 0)
    student = np.array([student_95(count / max(steps, block) - 1) for steps in alike])
    return np.asarray(np.maximum(1, too_narrow) * student / Z_95)


def _memory(correlations: Floats, count: int) -> float:
    """How many steps count as one, where the correlation falls off geometrically.

    Noise on top of a slow drift hides the drift's memory from the first lag alone: the ratio of
    neighbouring lags still shows it. That ratio, too, is seen too low in short series.
    """
    seen = correlations[1 : _last_lag(correlations, count) + 1]
    if len(seen) < 2 or seen[0] <= 0:
        return 1.0
    ratio = (
        float(np.clip(seen[1:].sum() / seen[:-1].sum(), 0, 0.97)) if seen[:-1].sum() > 0 else 0.0
    )
    ratio = min(
        ratio + 2 * (1 + 3 * ratio) / count, (count - _FEWEST_BLOCKS) / (count + _FEWEST_BLOCKS)
    )
    return float(1 + 2 * min(1.0, float(seen[0]) / ratio) * ratio / (1 - ratio))


def _correlations(series: Floats) -> Floats:
    """The autocorrelation from lag 0 on, over as many lags as the series can tell."""
    count = len(series)
    centred = series - series.mean()
    lags = min(count - 1, max(5, math.isqrt(count)) + math.ceil(math.log10(count)) * 2)
    covariances = np.array(
        [float(centred[lag:] @ centred[: count - lag]) for lag in range(lags + 1)]
    )
    return np.asarray(covariances / covariances[0] if covariances[0] > 0 else np.zeros(lags + 1))


def _shorten(rows: Floats) -> Floats:
    """Neighbouring steps added up where there are very many: the ratios stay, the work is bounded."""
    group = math.ceil(rows.shape[1] / _MOST_POINTS)
    if group == 1:
        return rows
    return np.asarray(np.add.reduceat(rows, np.arange(0, rows.shape[1], group), axis=1))


def _deviations(stacked: Floats, values: Floats) -> Floats:
    """Per step, what each quantity adds to the ratio's error: the series whose autocorrelation matters."""
    half = len(values)
    return np.asarray(
        (stacked[:half] - values[:, None] * stacked[half:])
        / stacked[half:].mean(axis=1, keepdims=True)
    )


def _resampled_sums(rows: Floats, block: int, seed: int) -> Floats:
    """Sums of every row over each resample of circular blocks: an array of (resample, row)."""
    count = rows.shape[1]
    padded = np.concatenate(
        [
            np.zeros((len(rows), 1)),
            np.cumsum(np.concatenate([rows, rows[:, :block]], axis=1), axis=1),
        ],
        axis=1,
    )
    block_sums = (padded[:, block : block + count] - padded[:, :count]) / block
    drawn = max(1, round(count / block))
    starts = np.random.default_rng(seed).integers(0, count, size=(RESAMPLES, drawn))
    return np.asarray(
        np.concatenate([_sums_of_drawn(part, block_sums) for part in np.array_split(starts, 8)])
        / drawn
    )


def _sums_of_drawn(starts: Ints, block_sums: Floats) -> Floats:
    """For each resample the sum of its blocks in each row, by how often each block was drawn.

    By einsum, not `@`: that one starts threads, which cost more than they save beside a job.
    """
    count = block_sums.shape[1]
    flat = starts + np.arange(len(starts))[:, None] * count
    drawn = np.bincount(flat.ravel(), minlength=len(starts) * count).reshape(len(starts), count)
    return np.asarray(np.einsum("rb,qb->rq", drawn.astype(np.float64), block_sums))


def block_length(series: Floats) -> int:
    """The block length for a circular bootstrap of a series' mean, after Politis and White (2004).

    Lags count as long as their correlation stands out of the noise; a series without correlation
    gets blocks of one step. The length is kept so that at least five blocks remain.
    """
    count = len(series)
    centred = series - series.mean()
    variance = float(centred @ centred) / count
    if variance <= 0 or not math.isfinite(variance):
        return 1
    lags = min(count - 1, max(5, math.isqrt(count)) + math.ceil(math.log10(count)) * 2)
    covariances = np.array(
        [float(centred[lag:] @ centred[: count - lag]) / count for lag in range(lags + 1)]
    )
    reach = 2 * _last_lag(covariances / variance, count)
    if reach == 0:
        return 1
    lag = np.arange(min(reach, lags) + 1)
    weights = np.clip(2 * (1 - lag / reach), 0, 1) * np.where(lag == 0, 1, 2)
    spectrum = float(weights @ covariances[lag])
    slope = float((weights * lag) @ covariances[lag])
    if spectrum <= 0:
        return 1
    length = (1.5 * (slope / spectrum) ** 2 * count) ** (1 / 3)
    return int(min(max(1, round(length)), max(1, count // 5)))


def _last_lag(correlations: Floats, count: int) -> int:
    """The last lag before a run of lags that are all within the noise."""
    noise = 2 * math.sqrt(math.log10(count) / count)
    run = max(5, math.ceil(math.sqrt(math.log10(count))))
    quiet = np.abs(correlations[1:]) < noise
    for start in range(len(quiet)):
        if quiet[start : start + run].all():
            return start
    return len(quiet)


def student_95(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, by the Cornish-Fisher expansion (within 1 % from 3 degrees on)."""
    freedom = max(3.0, freedom)
    z = Z_95
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def as_floats(column: Any) -> Floats:
    """An Arrow column as floats; null becomes NaN."""
    return np.asarray(column.to_numpy(), dtype=np.float64)


def subtract(target: Estimate, base: Estimate) -> Estimate:
    """The difference of two independent figures, whose deviations add up as squares."""
    value = target.value - base.value
    if target.low is None or target.high is None or base.low is None or base.high is None:
        return Estimate(value)
    below = math.hypot(target.value - target.low, base.high - base.value)
    above = math.hypot(target.high - target.value, base.value - base.low)
    return Estimate(value, value - below, value + above)


def divide(above: Estimate, below: Estimate) -> Estimate:
    """The quotient of two independent positive figures: the difference of their logarithms."""
    if not (above.value > 0 and below.value > 0):
        return Estimate(math.nan)
    logs = subtract(_mapped(above, _log), _mapped(below, _log))
    return _mapped(logs, math.exp)


def scale(estimate: Estimate, factor: float) -> Estimate:
    """The same in another unit; `factor` is above zero."""
    return _mapped(estimate, lambda value: value * factor)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _mapped(estimate: Estimate, function: Callable[[float], float]) -> Estimate:
    if estimate.low is None or estimate.high is None:
        return Estimate(function(estimate.value))
    return Estimate(function(estimate.value), function(estimate.low), function(estimate.high))
