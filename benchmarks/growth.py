"""Measure how the cost of reading grows with a run's steps, ranks and kernels.

    python benchmarks/growth.py [--repeats 3] [--largest 1.0]

Whole processes of `profkit report` and `explain` alternate with a process that imports pyarrow
and numpy. `--largest 0.1` skips sizes above a tenth of the largest. Prints one JSON object of
rows: what grows, its size, and the medians of each command.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from open_trace import Cost, bytecode_in, medians

SIZES: Mapping[str, tuple[int, ...]] = {
    "steps": (100, 1_000, 10_000, 100_000),
    "ranks": (1, 8, 32, 128),
    "kernels": (10_000, 100_000, 1_000_000),
}
FIXED: Mapping[str, int] = {"ranks": 1, "steps": 200, "kernels_per_step": 0}
PEER = "import pyarrow, numpy"
_BUILD = (
    "import json, pathlib, sys; from profkit.testing import synthetic_trace; "
    "synthetic_trace(pathlib.Path(sys.argv[1]), **json.loads(sys.argv[2]))"
)


def shape(grows: str, size: int) -> dict[str, int]:
    """Return a synthetic run in which `grows` has this size, and the rest is minimal."""
    if grows == "kernels":
        return {**FIXED, "kernels_per_step": size // FIXED["steps"]}
    return {**FIXED, grows: size}


def measure_size(grows: str, size: int, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / "base", Path(folder) / "target"]
        for seed, run in enumerate(runs):
            subprocess.run(
                [
                    sys.executable,
                    "-c",
                    _BUILD,
                    str(run),
                    json.dumps({**shape(grows, size), "seed": seed}),
                ],
                check=True,
            )
        base, target = map(str, runs)
        commands = {
            PEER: [sys.executable, "-c", PEER],
            "report": [sys.executable, "-m", "profkit", "report", base],
            "explain": [sys.executable, "-m", "profkit", "explain", base, target],
        }
        costs = medians(commands, bytecode_in(Path(folder) / "bytecode"), repeats)
    return {"grows": grows, "size": size, **{name: _row(cost) for name, cost in costs.items()}}


def _row(cost: Cost) -> dict[str, float]:
    return {"median_s": round(cost.wall_s, 3), "peak_mb": round(cost.peak_mb, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--largest", type=float, default=1.0)
    options = parser.parse_args()
    plan = [
        (grows, size)
        for grows, sizes in SIZES.items()
        for size in sizes
        if size <= options.largest * sizes[-1]
    ]
    rows = [measure_size(grows, size, options.repeats) for grows, size in plan]
    print(json.dumps({"repeats": options.repeats, "rows": rows}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
