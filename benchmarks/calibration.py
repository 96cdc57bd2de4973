"""Compare verdicts with public repeats of jobs on clusters, and write docs/calibration.md.

    python benchmarks/calibration.py FILE [--write]

FILE holds the series of runs of MLPerf (`repeats.parquet`). Two runs of one organisation, system
and benchmark are healthy twins. The constant of the noise is chosen on all organisations but one,
and tried on that one.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from profkit.explain.noise import probability, spread_of_twins
from profkit.explain.policy import POLICY
from profkit.frame.estimate import Floats

PAGE = Path(__file__).parents[1] / "docs" / "calibration.md"
PLANTED = (0.015, 0.03)
FALSE_SHARE = 0.0125
"""The share of twins that the constant may call a change where it is chosen."""

BLOCKS, MOST_WARM_UP = 8, 10


class Pair(NamedTuple):
    """Two healthy runs of one job."""

    organisation: str
    change: float
    """The difference of their logarithms."""
    error: float
    """Its standard error by the scatter of the steps."""
    weight: float
    """Groups with many runs count as much as others."""


def read_pairs(path: Path) -> list[Pair]:
    """Return all pairs of repeats."""
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for run in pq.read_table(path).to_pylist():
        series = np.array(run["series"], dtype=np.float64)
        series = series[np.isfinite(series) & (series > 0)]
        series = series[min(MOST_WARM_UP, max(1, len(series) // 5)) :]
        names = ("organisation", "round", "system", "benchmark", "unit", "global_batch")
        job = tuple(str(run[name]) for name in names)
        groups[job].append((math.log(series.mean()), _error(series)))
    pairs = []
    for key, runs in groups.items():
        count = len(runs) * (len(runs) - 1) / 2
        for (one, first), (other, second) in itertools.combinations(runs, 2):
            pairs.append(Pair(key[0], abs(one - other), math.hypot(first, second), 1 / count))
    return pairs


def _error(series: Floats) -> float:
    """Return the standard error of the mean as a share, from blocks of neighbouring steps."""
    blocks = [part.mean() for part in np.array_split(series, min(BLOCKS, len(series) // 2))]
    if len(blocks) < 2:
        return math.inf
    return float(np.std(blocks, ddof=1) / math.sqrt(len(blocks)) / series.mean())


class Rates(NamedTuple):
    """Weighted shares of pairs."""

    false_certain: float
    false_probable: float
    found: dict[float, float]
    found_probable: dict[float, float]


def rate(pairs: Sequence[Pair], factor: float = 1.0) -> Rates:
    """Return how often healthy pairs are called a change, and planted ones are found.

    `factor` multiplies the constant of the noise model.
    """

    def share(planted: float, least: float) -> float:
        total = 0.0
        for pair in pairs:
            half = factor * spread_of_twins(pair.error)
            for sign in (1, -1):
                change = math.log1p(planted) + sign * pair.change
                is_found = probability(change, half) >= least and (change > 0 or not planted)
                total += pair.weight / 2 * is_found
        return total / sum(pair.weight for pair in pairs)

    return Rates(
        share(0.0, POLICY.certain),
        share(0.0, POLICY.probable),
        {size: share(size, POLICY.certain) for size in PLANTED},
        {size: share(size, POLICY.probable) for size in PLANTED},
    )


def leave_one_out(pairs: Sequence[Pair]) -> Iterator[tuple[str, float, Rates, float]]:
    """Yield each organisation with the constant that the others choose, and what it gives."""
    for name in sorted({pair.organisation for pair in pairs}):
        others = [pair for pair in pairs if pair.organisation != name]
        own = [pair for pair in pairs if pair.organisation == name]
        factor = choose(others)
        weight = sum(pair.weight for pair in own)
        yield name, factor * POLICY.twins_errors, rate(own, factor), weight


def choose(pairs: Sequence[Pair]) -> float:
    """Return the factor on the constant with which few twins are called a change."""
    needed = [(pair.change / spread_of_twins(pair.error), pair.weight) for pair in pairs]
    needed.sort()
    total, left = sum(weight for _, weight in needed), 0.0
    for value, weight in reversed(needed):
        left += weight
        if left > FALSE_SHARE * total:
            return value
    return 1.0


def joined(found: Sequence[tuple[str, float, Rates, float]]) -> Rates:
    """Return the mean over the organisations, by their groups."""
    total = sum(weight for *_, weight in found)

    def mean(values: Sequence[float]) -> float:
        weights = [weight for *_, weight in found]
        return sum(v * w for v, w in zip(values, weights, strict=True)) / total

    rates = [each for _, _, each, _ in found]
    return Rates(
        mean([each.false_certain for each in rates]),
        mean([each.false_probable for each in rates]),
        {size: mean([each.found[size] for each in rates]) for size in PLANTED},
        {size: mean([each.found_probable[size] for each in rates]) for size in PLANTED},
    )


def curve(pairs: Sequence[Pair]) -> Iterator[tuple[float, float]]:
    """Yield a probability, and the share of healthy pairs that reach it in either direction."""
    for least in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99):
        reached = sum(
            pair.weight
            for pair in pairs
            if probability(pair.change, spread_of_twins(pair.error)) >= least
        )
        yield least, reached / sum(pair.weight for pair in pairs)


def page(pairs: Sequence[Pair]) -> str:
    """Return the page."""
    found = list(leave_one_out(pairs))
    own, out = rate(pairs), joined(found)
    lines = [
        "# Calibration of verdicts",
        "",
        "`python benchmarks/calibration.py FILE --write` writes this page. FILE holds public",
        f"repeats of MLPerf: {len(pairs):,} pairs of healthy runs of {len(found)} organisations.",
        "",
        "Two healthy runs differ by the scatter of their steps, and by more. The half width of the",
        f"97.5 % interval is {POLICY.twins_errors} x hypot({POLICY.twins_floor:.1%}, error of the",
        f"steps, at most {POLICY.twins_most_error:.0%}). A change is *certain* from",
        f"a probability of {POLICY.certain:.1%} on, and *probable* from {POLICY.probable:.0%} on.",
        "",
        "| one pair of runs | shipped constant | constant chosen without the organisation |",
        "|---|---|---|",
        f"| healthy, called certain | {own.false_certain:.1%} | {out.false_certain:.1%} |",
        f"| healthy, called probable | {own.false_probable:.1%} | {out.false_probable:.1%} |",
    ]
    for size in PLANTED:
        lines.append(
            f"| {size:+.1%}, found as certain | {own.found[size]:.1%} | {out.found[size]:.1%} |"
        )
        lines.append(
            f"| {size:+.1%}, found as probable | {own.found_probable[size]:.1%} | "
            f"{out.found_probable[size]:.1%} |"
        )
    lines += ["", "| probability | healthy pairs that reach it |", "|---|---|"]
    lines += [f"| {least:.1%} | {reached:.1%} |" for least, reached in curve(pairs)]
    lines += [
        "",
        "On hosts without a device, what a machine can make is bounded instead: a change is",
        "certain beyond that bound, or if it is of a kind that no machine makes: a count, long",
        "steps with a period, a sleep.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    text = page(read_pairs(args.file))
    print(text)
    if args.write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
