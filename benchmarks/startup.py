"""Measure `profkit --help` next to the bare interpreter, alternating in one run.

python benchmarks/startup.py [--repeats 20]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from open_trace import bytecode_in

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "profkit --help": [str(Path(sys.executable).with_name("profkit")), "--help"],
    "profkit --version": [str(Path(sys.executable).with_name("profkit")), "--version"],
}
LIMIT_MS = 40.0


def time_ms(command: Sequence[str], environment: Mapping[str, str]) -> float:
    start = time.perf_counter_ns()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=dict(environment))
    return (time.perf_counter_ns() - start) / 1e6


def medians(repeats: int) -> dict[str, float]:
    """Run the commands alternately, `repeats` times after one warm-up.

    A noisy moment then affects all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        environment = bytecode_in(Path(folder))
        for turn in range(repeats + 1):
            for name, command in COMMANDS.items():
                took = time_ms(command, environment)
                if turn:
                    times[name].append(took)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    found = medians(parser.parse_args().repeats)
    bare = found["python -c pass"]
    rows = {
        name: {
            "median_ms": round(value, 2),
            "over_bare_ms": round(value - bare, 2),
            "ratio_to_bare": round(value / bare, 2),
        }
        for name, value in found.items()
    }
    print(json.dumps(rows, indent=2))
    return 0 if found["profkit --help"] - bare <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
