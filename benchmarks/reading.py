"""Measure the start of the command line, and how reading grows with steps, ranks and kernels.

    python benchmarks/reading.py [--repeats 3] [--largest 1.0] [--write]

Whole processes of `profkit --help`, `report` and `explain` alternate with the bare interpreter and
with a process that imports pyarrow and numpy. `--largest 0.1` skips sizes above a tenth of the
largest. Prints the medians as JSON; `--write` writes docs/results/reading.json. Exits 1 if the
start or the report of 32 ranks is over its limit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import results
from processes import Cost, bytecode_in, measure

SIZES: Mapping[str, tuple[int, ...]] = {
    "steps": (100, 1_000, 10_000, 100_000),
    "ranks": (1, 8, 32, 128),
    "kernels": (10_000, 100_000, 1_000_000),
}
FIXED: Mapping[str, int] = {"ranks": 1, "steps": 200, "kernels_per_step": 0}
LIMITED: Mapping[str, int] = {"ranks": 32, "steps": 1_000, "kernels_per_step": 0}
"""The run whose report has a limit."""

LIMIT_S, LIMIT_MB, LIMIT_START_S = 1.0, 250.0, 0.04
BARE, LIBRARIES = "python -c pass", "python -c 'import pyarrow, numpy'"
_BUILD = (
    "import json, pathlib, sys; from profkit.testing import synthetic_trace; "
    "synthetic_trace(pathlib.Path(sys.argv[1]), **json.loads(sys.argv[2]))"
)


def medians(
    commands: Mapping[str, Sequence[str]], environment: Mapping[str, str], repeats: int
) -> dict[str, dict[str, float]]:
    """Run the commands alternately after one warm-up, so that a noisy moment meets all of them."""
    seen: dict[str, list[Cost]] = {name: [] for name in commands}
    for turn in range(repeats + 1):
        for name, command in commands.items():
            cost = measure(command, environment)
            if turn:
                seen[name].append(cost)
    return {
        name: {
            "median_s": round(statistics.median(cost.wall_s for cost in costs), 3),
            "peak_mb": round(statistics.median(cost.peak_mb for cost in costs), 1),
        }
        for name, costs in seen.items()
    }


def measure_run(shape: Mapping[str, int], repeats: int) -> dict[str, Any]:
    """Return the cost of reading a synthetic run of this shape, and of explaining two."""
    profkit = [sys.executable, "-m", "profkit"]
    with tempfile.TemporaryDirectory() as folder:
        runs = [str(Path(folder) / name) for name in ("base", "target")]
        for seed, run in enumerate(runs):
            build = [sys.executable, "-c", _BUILD, run, json.dumps({**shape, "seed": seed})]
            subprocess.run(build, check=True)
        commands = {
            LIBRARIES: [sys.executable, "-c", "import pyarrow, numpy"],
            "report": [*profkit, "report", runs[0]],
            "explain": [*profkit, "explain", *runs],
        }
        return {**shape, **medians(commands, bytecode_in(Path(folder) / "bytecode"), repeats)}


def measure_start(repeats: int) -> dict[str, Any]:
    program = str(Path(sys.executable).with_name("profkit"))
    commands = {BARE: [sys.executable, "-c", "pass"], "profkit --help": [program, "--help"]}
    with tempfile.TemporaryDirectory() as folder:
        return dict(medians(commands, bytecode_in(Path(folder)), repeats))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--largest", type=float, default=1.0)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    start = measure_start(5 * options.repeats)
    limited = measure_run(LIMITED, options.repeats)
    rows = []
    for grows, sizes in SIZES.items():
        for size in sizes:
            shape = {**FIXED, grows: size}
            if grows == "kernels":
                shape = {**FIXED, "kernels_per_step": size // FIXED["steps"]}
            if size <= options.largest * sizes[-1]:
                rows.append({"grows": grows, "size": size, **measure_run(shape, options.repeats)})
    found = {"start": start, "limited": limited, "rows": rows}
    print(json.dumps(found, indent=2))
    if options.write:
        results.write("reading", found)
    started_s = start["profkit --help"]["median_s"] - start[BARE]["median_s"]
    report = limited["report"]
    is_quick = report["median_s"] <= LIMIT_S and report["peak_mb"] <= LIMIT_MB
    return 0 if is_quick and started_s <= LIMIT_START_S else 1


if __name__ == "__main__":
    sys.exit(main())
