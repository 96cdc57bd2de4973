"""Plant changes in the middle of runs; count those found, the delay, and false alarms.

    python benchmarks/midrun.py synthetic [--steps 2000000] [--noise FOLDER] [--write]
    python benchmarks/midrun.py run --work FOLDER [--suite held-out] [--only "NAME;NAME"]
    python benchmarks/midrun.py score --work FOLDER [--write]

`synthetic` draws step times with autocorrelated and heavy-tailed noise. `run` records the jobs of
`midrun_suites.py`, one at a time, in 25 to 40 minutes; it skips what FOLDER has already.
`score` reads what `report`, `explain --at` and `profkit run` said of them. `--write` writes the
tables into docs/midrun.md. Misses and false alarms are in them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from midrun_recorded import record, score
from midrun_suites import SUITES
from page_sections import replace_section

from profkit.analysis.change_points import find_shifts
from profkit.analysis.run_changes import find_changes
from profkit.analysis.selection import steady_steps
from profkit.errors import ProfkitError
from profkit.trace import Trace
from profkit.trace.reader import find_runs

DOCUMENT = Path(__file__).parents[1] / "docs/midrun.md"
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


def on_shared_machine(folders: Sequence[Path]) -> str:
    """Count the changes in recorded runs; nobody knows which of them are real."""
    runs = steps = changes = 0
    for path in [run for folder in folders for run in find_runs(folder)]:
        try:
            trace = Trace.open(path)
            used = steady_steps(trace).steps
            changes += len(find_changes(trace, used))
        except (ProfkitError, OSError):
            continue
        runs, steps = runs + 1, steps + len(used)
    return (
        f"{runs} recorded runs of small jobs, most with steps of about 1 ms, on a machine with two "
        f"cores that other processes used at times: {changes} changes in {steps:,} steps. Nobody "
        "knows which of them are real.\n"
    )


def synthetic(steps: int) -> str:
    """Return the tables of false alarms and of power."""
    about = (
        f"Each row has {SEEDS} runs per size with a change after about {AT} of {STEPS} steps, and "
        "healthy runs of 20,000 steps. *Found*: within "
        f"{NEAR} steps of the planted place. *Delay*: the median number of steps until it is seen."
    )
    lines = [
        "## Synthetic step times",
        "",
        about,
        "",
        "| noise | healthy steps | false alarms | "
        + " | ".join(f"{rise:+.0%}: found, delay" for rise in RISES)
        + " | other alarms |",
        "|---|---|---|" + "---|" * (len(RISES) + 1),
    ]
    each, total, alarms = max(20_000, steps // len(NOISES) // 20_000 * 20_000), 0, 0
    for name, draw in NOISES.items():
        false = false_alarms(draw, each)
        total, alarms = total + each, alarms + false
        cells, others = [], 0
        for rise in RISES:
            found, delay, more = power(draw, rise)
            shown = "-" if np.isnan(delay) else f"{delay:.0f}"
            cells.append(f"{found} of {SEEDS}, {shown}")
            others += more
        lines.append(f"| {name} | {each:,} | {false} | {' | '.join(cells)} | {others} |")
    lines += ["", f"In all {alarms} false alarms in {total:,} healthy steps.", ""]
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("what", choices=("synthetic", "run", "score"))
    options.add_argument("--steps", type=int, default=2_000_000)
    options.add_argument("--work", type=Path)
    options.add_argument("--noise", type=Path, nargs="*", default=[], help="folders of runs")
    options.add_argument("--suite", choices=tuple(SUITES), default=None)
    options.add_argument("--only", default="", help="names of jobs, separated by semicolons")
    options.add_argument("--write", action="store_true")
    args = options.parse_args()
    if args.what == "synthetic":
        text = synthetic(args.steps)
        if args.noise:
            text += "\n" + on_shared_machine(args.noise)
    elif args.what == "run":
        for suite in [args.suite] if args.suite else SUITES:
            record(args.work, suite, [name for name in args.only.split(";") if name])
        return
    else:
        text = score(args.work)
    print(text)
    if args.write:
        page = DOCUMENT.read_text(encoding="utf-8")
        marks = f"<!-- {args.what} -->", f"<!-- end of {args.what} -->"
        DOCUMENT.write_text(replace_section(page, text, *marks), encoding="utf-8")


if __name__ == "__main__":
    main()
