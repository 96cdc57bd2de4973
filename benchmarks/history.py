"""Measure how well profkit finds changes in synthetic histories of runs.

    python benchmarks/history.py [--histories 1000] [--write]

A history is 30 runs whose times per sample differ by 1 %. A false alarm is a history without a
change for which one is reported. Power is the share of histories with one change of 3 %, at any run
with 5 to 25 runs before it, for which exactly one change is reported. A change that was undone
lasts 6 to 10 runs, with 5 or more on either side; it is found if exactly two changes are reported.
`--write` writes docs/results/history.json.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import results

from profkit.analysis.run_series import find_course

Floats = npt.NDArray[np.float64]

RUNS, SPREAD, STEP = 30, 0.01, 0.03
NEAR = 2
"""A change is placed if it is reported at most so many runs away."""


def normal(random: np.random.Generator) -> Floats:
    return random.normal(0, SPREAD, RUNS)


def heavy_tails(random: np.random.Generator) -> Floats:
    """Student's t with 3 degrees of freedom, scaled to the same standard deviation."""
    return random.standard_t(3, RUNS) * SPREAD / 3**0.5


def outliers(random: np.random.Generator) -> Floats:
    """Every twentieth run met a busy machine, and took 10 % longer."""
    return random.normal(0, SPREAD, RUNS) + 0.1 * (random.random(RUNS) < 0.05)


def one_sided(random: np.random.Generator) -> Floats:
    """A machine is often a little slower and never faster: an exponential distribution."""
    return random.exponential(SPREAD, RUNS)


def drifting(random: np.random.Generator) -> Floats:
    """Successive runs resemble each other: an autoregression with 0.3."""
    noise = random.normal(0, SPREAD * (1 - 0.3**2) ** 0.5, RUNS)
    noise[0] /= (1 - 0.3**2) ** 0.5
    for place in range(1, RUNS):
        noise[place] += 0.3 * noise[place - 1]
    return noise


NOISES: Mapping[str, Callable[[np.random.Generator], Floats]] = {
    "normal": normal,
    "heavy tails": heavy_tails,
    "outliers of 10 %": outliers,
    "one-sided": one_sided,
    "drifting (autocorrelation 0.3)": drifting,
}


def find(values: Floats) -> list[int]:
    return [change.at for change in find_course(values.tolist()).changes]


def judge_one(noise: str, step: float, seed: int) -> tuple[bool, bool]:
    """Report a false alarm without a change; with one, if it is found, and if it is placed."""
    random = np.random.default_rng([seed, sorted(NOISES).index(noise)])
    logs = NOISES[noise](random)
    place = int(random.integers(5, RUNS - 5 + 1))
    logs[place:] += np.log1p(step)
    found = find(100e6 * np.exp(logs))
    if not step:
        return bool(found), False
    is_found = len(found) == 1
    return is_found, is_found and abs(found[0] - place) <= NEAR


def judge_undone(noise: str, step: float, seed: int) -> tuple[bool, bool]:
    """Report if a change that was undone is found, and if both of its ends are placed."""
    random = np.random.default_rng([seed, sorted(NOISES).index(noise), 1])
    logs = NOISES[noise](random)
    first = int(random.integers(5, 15 + 1))
    ends = first, first + int(random.integers(6, 10 + 1))
    logs[slice(*ends)] += np.log1p(step)
    found = find(100e6 * np.exp(logs))
    if len(found) != len(ends):
        return False, False
    return True, all(abs(at - end) <= NEAR for at, end in zip(found, ends, strict=True))


def measure(histories: int) -> list[dict[str, Any]]:
    """Return the figures by the kind of noise."""
    rows = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for noise in NOISES:
            hits = []
            for judge, step in ((judge_one, 0.0), (judge_one, STEP), (judge_undone, STEP)):
                judged = pool.map(partial(judge, noise, step), range(histories), chunksize=25)
                hits.append([sum(each) for each in zip(*judged, strict=True)])
            row: dict[str, Any] = {"noise": noise, "histories": histories}
            row |= {"false_alarms": hits[0][0], "found": hits[1][0], "placed": hits[1][1]}
            rows.append({**row, "undone_found": hits[2][0]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rows = measure(args.histories)
    print(json.dumps(rows, indent=1))
    if args.write:
        results.write("history", rows)


if __name__ == "__main__":
    main()
