"""Plant changes in the middle of runs; count those found, the delay, and false alarms.

    python benchmarks/midrun.py synthetic [--steps 2000000] [--write]
    python benchmarks/midrun.py run --work FOLDER [--only "NAME;NAME"]
    python benchmarks/midrun.py score --work FOLDER [--write]

`synthetic` draws step times with autocorrelated and heavy-tailed noise. `run` records the jobs of
`midrun_suites.py`, one at a time; it skips what FOLDER has already. `score` reads what `report`,
`explain --at` and `profkit run` said of them. `--write` writes docs/results/midrun.json, or
midrun_synthetic.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import results
from midrun_recorded import record, score

from profkit.analysis.change_points import find_shifts

NEAR = 15
"""A change counts as found if it is reported within so many steps."""

AT, STEPS, SEEDS = 200, 500, 20

Floats = npt.NDArray[np.float64]
Random = np.random.Generator


def autocorrelated(correlation: float) -> Callable[[int, Random], Floats]:
    """Return noise of 3 % with innovations of Student's t with four degrees of freedom."""

    def draw(count: int, random: Random) -> Floats:
        innovations = random.standard_t(4, count) / np.sqrt(2)
        innovations *= 0.03 * np.sqrt(1 - correlation**2)
        noise = np.empty(count)
        last = 0.0
        for place, each in enumerate(innovations.tolist()):
            last = correlation * last + each
            noise[place] = last
        return noise

    return draw


def _heavy(count: int, random: Random) -> Floats:
    return np.asarray(0.03 * random.standard_t(3, count) / np.sqrt(3))


def _slow_steps(count: int, random: Random) -> Floats:
    slow = random.random(count) < 0.05
    return np.asarray(0.02 * random.standard_normal(count) + slow * random.exponential(0.5, count))


def _two_modes(count: int, random: Random) -> Floats:
    return 0.01 * random.standard_normal(count) + 0.1 * (random.random(count) < 0.3)


def _regular(count: int, random: Random) -> Floats:
    noise = 0.02 * random.standard_normal(count)
    noise[::20] += 0.5
    return noise


NOISES: Mapping[str, Callable[[int, Random], Floats]] = {
    "independent, 3 %": autocorrelated(0.0),
    "correlation 0.6, 3 %": autocorrelated(0.6),
    "correlation 0.8, 3 %": autocorrelated(0.8),
    "Student's t, 3 degrees": _heavy,
    "5 % of steps far slower": _slow_steps,
    "two modes, 10 % apart": _two_modes,
    "each 20th step slow": _regular,
}
RISES = (0.05, 0.1, 0.2, -0.1)


def false_alarms(draw: Callable[[int, Random], Floats], steps: int) -> int:
    """Return the changes that are found in healthy runs of 20,000 steps."""
    found = 0
    for seed in range(max(1, steps // 20_000)):
        found += len(find_shifts(8e7 * np.exp(draw(20_000, np.random.default_rng([1, seed])))))
    return found


def power(draw: Callable[[int, Random], Floats], rise: float) -> tuple[int, float, int]:
    """Return how many of the changes are found, the median delay in steps, and other alarms."""
    delays, others = [], 0
    for seed in range(SEEDS):
        logs = draw(STEPS, np.random.default_rng([2, seed]))
        logs[AT + seed :] += np.log1p(rise)
        shifts = find_shifts(8e7 * np.exp(logs))
        near = [shift for shift in shifts if abs(shift.at - AT - seed) <= NEAR]
        others += len(shifts) - len(near[:1])
        delays += [shift.seen - AT - seed + 1 for shift in near[:1]]
    return len(delays), float(np.median(delays)) if delays else float("nan"), others


def synthetic(steps: int) -> list[dict[str, Any]]:
    """Return a row per noise: false alarms, and of each size of change how many are found."""
    rows = []
    each = max(20_000, steps // len(NOISES) // 20_000 * 20_000)
    for name, draw in NOISES.items():
        row: dict[str, Any] = {"noise": name, "healthy steps": each}
        row |= {"false alarms": false_alarms(draw, each), "runs per size": SEEDS}
        for rise in RISES:
            found, delay, others = power(draw, rise)
            row[f"{rise:+.0%}"] = {"found": found, "median delay": delay, "other alarms": others}
        rows.append(row)
    return rows


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("what", choices=("synthetic", "run", "score"))
    options.add_argument("--steps", type=int, default=2_000_000)
    options.add_argument("--work", type=Path, default=Path("/tmp/profkit-midrun"))
    options.add_argument("--only", default="", help="names of jobs, separated by semicolons")
    options.add_argument("--write", action="store_true")
    args = options.parse_args()
    if args.what == "run":
        record(args.work, [name for name in args.only.split(";") if name])
        return
    found = {"rows": synthetic(args.steps)} if args.what == "synthetic" else score(args.work)
    print(json.dumps(found, indent=1))
    if args.write:
        results.write("midrun" if args.what == "score" else "midrun_synthetic", found)


if __name__ == "__main__":
    main()
