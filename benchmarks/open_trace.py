"""Measure opening a trace of 32 ranks x 1,000 steps, next to importing its libraries.

    python benchmarks/open_trace.py [--ranks 32] [--steps 1000] [--repeats 5]

`profkit report RUN` alternates with its peer `python -c "import pyarrow, numpy"` in whole
processes. Prints medians of wall time and peak memory; exits 1 above 1 s or 250 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

LIMIT_S = 1.0
LIMIT_MB = 250.0
PEER = "python -c 'import pyarrow, numpy'"
OURS = "profkit report"

_BUILD = (
    "import sys; from pathlib import Path; from profkit.testing import synthetic_trace as "
    "build; build(Path(sys.argv[1]), ranks=int(sys.argv[2]), steps=int(sys.argv[3]))"
)


class Cost(NamedTuple):
    """Time and memory of one process."""

    wall_s: float
    peak_mb: float


def measure(command: Sequence[str], environment: Mapping[str, str]) -> Cost:
    """Run `command` to its end.

    This process stays small, because a child's peak includes its parent's memory at the fork.
    """
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(wall_s, usage.ru_maxrss * 1024 / 1e6)


def medians(
    commands: Mapping[str, Sequence[str]], environment: Mapping[str, str], repeats: int
) -> dict[str, Cost]:
    """Run the commands alternately, `repeats` times after one warm-up.

    A noisy moment then affects all of them.
    """
    seen: dict[str, list[Cost]] = {name: [] for name in commands}
    for turn in range(repeats + 1):
        for name, command in commands.items():
            cost = measure(command, environment)
            if turn:
                seen[name].append(cost)
    return {
        name: Cost(*map(statistics.median, zip(*costs, strict=True)))
        for name, costs in seen.items()
    }


def bytecode_in(folder: Path) -> dict[str, str]:
    """Return an environment with bytecode in a folder of its own, like an installed program."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPYCACHEPREFIX": str(folder),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        subprocess.run(
            [sys.executable, "-c", _BUILD, str(run), str(arguments.ranks), str(arguments.steps)],
            check=True,
        )
        commands = {
            PEER: [sys.executable, "-c", "import pyarrow, numpy"],
            OURS: [sys.executable, "-m", "profkit", "report", str(run)],
        }
        found = medians(commands, bytecode_in(Path(folder) / "bytecode"), arguments.repeats)
    print(json.dumps(_rows(found, arguments.ranks, arguments.steps), indent=2))
    return 0 if found[OURS].wall_s <= LIMIT_S and found[OURS].peak_mb <= LIMIT_MB else 1


def _rows(found: Mapping[str, Cost], ranks: int, steps: int) -> dict[str, object]:
    costs = {
        name: {"median_s": round(cost.wall_s, 3), "peak_mb": round(cost.peak_mb, 1)}
        for name, cost in found.items()
    }
    ratio = {
        "wall": round(found[OURS].wall_s / found[PEER].wall_s, 2),
        "peak": round(found[OURS].peak_mb / found[PEER].peak_mb, 2),
    }
    return {
        "ranks": ranks,
        "steps": steps,
        **costs,
        "ratio_to_peer": ratio,
        "limits": {"s": LIMIT_S, "mb": LIMIT_MB},
    }


if __name__ == "__main__":
    sys.exit(main())
