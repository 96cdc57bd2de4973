"""Run the same benchmarks in two checkouts of profkit alternately, and compare their figures.

    python benchmarks/versions.py --against FOLDER [--turns 4] [--only NAME ...]

FOLDER is a checkout of another version with its environment in `.venv`. In each turn both versions
run their own copy of a benchmark, in random order. For each figure that both print, the result is
the mean difference over the turns with its 95 % interval, in the unit of the figure. Exits 1 if a
figure has become larger for certain, by more than a tenth.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from profkit.analysis.estimate import student_95

HERE = Path(__file__).resolve().parents[1]
LIMIT = 1.10

BENCHMARKS: Mapping[str, tuple[str, ...]] = {
    "startup": ("--repeats", "10"),
    "tui": ("--runs", "30", "--ranks", "8", "--kernels", "200000", "--keys", "20"),
    "overhead": ("--turns", "10"),
}
"""What each is run with: short, as the turns are repeated."""

FIGURES: Mapping[str, tuple[str, ...]] = {
    "startup": ("median_ms",),
    "tui": ("first_frame_s", "first_view_s", "key_median_ms", "key_p95_ms"),
    "overhead": ("profkit.over_bare_ms", "profkit.processor_over_bare_ms"),
}
"""The ends of the names of the figures that are compared."""


def figures(benchmark: str, checkout: Path) -> dict[str, float]:
    """Run a checkout's benchmark; return its figures by their place in what it prints."""
    script = checkout / "benchmarks" / f"{benchmark}.py"
    command = [str(checkout / ".venv" / "bin" / "python"), str(script), *BENCHMARKS[benchmark]]
    # A benchmark that is over its limit exits with 1, and prints its figures all the same.
    done = subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, text=True, check=False)
    try:
        found = json.loads(done.stdout)
    except json.JSONDecodeError:
        sys.exit(f"{script} printed no figures and ended with exit code {done.returncode}")
    return {name: value for name, value in flat(found) if name.endswith(FIGURES[benchmark])}


def flat(found: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of nested objects with the names on the way to them."""
    if isinstance(found, Mapping):
        for name, value in found.items():
            yield from flat(value, f"{place}.{name}" if place else str(name))
    elif isinstance(found, (int, float)) and not isinstance(found, bool):
        yield place, float(found)


def compare(before: Sequence[float], now: Sequence[float]) -> dict[str, float]:
    differences = [ours - theirs for theirs, ours in zip(before, now, strict=True)]
    middle = statistics.fmean(differences)
    half = student_95(len(differences) - 1) * statistics.stdev(differences)
    half /= math.sqrt(len(differences))
    values = {
        "before": statistics.fmean(before),
        "now": statistics.fmean(now),
        "difference": middle,
        "low": middle - half,
        "high": middle + half,
    }
    return {name: round(value, 4) for name, value in values.items()}


def run_turns(benchmark: str, against: Path, turns: int) -> dict[str, dict[str, float]]:
    checkouts = {"before": against, "now": HERE}
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for turn in range(turns + 1):
        for name in random.sample(list(checkouts), 2):
            found = figures(benchmark, checkouts[name])
            if turn:  # the first one compiles, and fills the cache of files
                seen[name].append(found)
    shared = [name for name in seen["now"][0] if name in seen["before"][0]]
    rows = {}
    for figure in shared:
        before = [each[figure] for each in seen["before"]]
        rows[figure] = compare(before, [each[figure] for each in seen["now"]])
    return rows


def is_larger(found: Mapping[str, float]) -> bool:
    return found["low"] > (LIMIT - 1) * abs(found["before"])


def commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--turns", type=int, default=4, help="at least 2 (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS))
    options = parser.parse_args()
    against = options.against.resolve()
    if not (against / ".venv" / "bin" / "python").exists():
        parser.error(f"{against}/.venv has no Python; run 'uv sync --group test' in {against}")
    if options.turns < 2:
        parser.error("--turns: two at least, or there is no interval")
    found = {}
    for name in options.only:
        print(f"-- {name}", file=sys.stderr)
        found[name] = run_turns(name, against, options.turns)
    commits = {"before": commit_of(against), "now": commit_of(HERE)}
    print(json.dumps({**commits, "turns": options.turns, "figures": found}, indent=1))
    return int(any(is_larger(each) for rows in found.values() for each in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
