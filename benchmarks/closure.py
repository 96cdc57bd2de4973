"""Measure how much of a step no phase covers, for every reference system and framework.

    python benchmarks/closure.py [SYSTEM ...] [--steps 20] [--ranks 1 2]

The systems really train, on small images, alone and on two ranks. `unknown` is the wall time of
the steps minus all phases, as a share with its 95 % interval. It should stay within 2 % in both
directions. Prints one JSON object of rows; exits 1 if a row is certainly over.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profkit.analysis.overview import build_overview
from profkit.analysis.phases import UNKNOWN
from profkit.plugins import WORKLOADS
from profkit.trace import Trace
from profkit.trace.reader import find_runs

SIZES: Mapping[str, int] = {
    "resnet50": 64,
    "mask_rcnn": 96,
    "psenet": 64,
    "hrnet_w18": 64,
    "tsm": 32,
}
WARM_UP = 5
LIMIT = 0.02


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "systems",
        nargs="*",
        metavar="SYSTEM",
        choices=(*SIZES, []),
        help=f"of {', '.join(SIZES)} (default: all)",
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    plan = [
        (name, framework, ranks)
        for name in args.systems or SIZES
        for framework in WORKLOADS.load(name).frameworks
        for ranks in args.ranks
    ]
    rows = [measure(*each, args.steps) for each in plan]
    print(
        json.dumps(
            {"load_average": os.getloadavg()[0], "limit_share": LIMIT, "rows": rows}, indent=2
        )
    )
    return 0 if all(row["within_limit"] for row in rows) else 1


def measure(system: str, framework: str, ranks: int, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        options = (
            "--batch-size=2",
            "--workers=1",
            f"--image-size={SIZES[system]}",
            f"--steps={steps}",
            f"--warmup={WARM_UP}",
            f"--ranks={ranks}",
        )
        _trace(system, "--framework", framework, *options, "--output", folder)
        view = build_overview(Trace.open(find_runs(Path(folder))[-1]), with_kernels=False)
    (unknown,) = (part.share for part in view.phases if part.name == UNKNOWN)
    row = {
        "system": system,
        "framework": framework,
        "ranks": ranks,
        "step_ms": view.step_ns.value / 1e6,
    }
    row |= {
        "unknown_share": unknown.value,
        "low": unknown.low,
        "high": unknown.high,
        "within_limit": not _surely_over(unknown.low, unknown.high),
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def _surely_over(low: float | None, high: float | None) -> bool:
    """Return true if the share is over the limit, or has no interval."""
    return low is None or high is None or low > LIMIT or high < -LIMIT


def _trace(*options: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    subprocess.run(
        [sys.executable, "-m", "profkit", "trace", *options],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    sys.exit(main())
