"""Check that the reference systems learn: a short run of each on its generated data.

The module of each workload says in CONVERGE how it is run, and below which share of the first
loss the mean of the last ten must fall.

    python benchmarks/converge.py [--workload psenet] [--framework paddle]

Prints one JSON object; exits 1 if a system does not reach its share.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from profkit.plugins import WORKLOADS
from profkit.trace import Trace
from profkit.trace.reader import find_runs

LAST = 10


def run(workload: str, framework: str, plan: dict[str, Any]) -> dict[str, Any]:
    """Train in a process of its own, and read the losses from its trace."""
    options = [
        f"--{name.replace('_', '-')}={value}" for name, value in plan.items() if name != "factor"
    ]
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "profkit",
            "trace",
            workload,
            f"--framework={framework}",
            f"--output={folder}",
            *options,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1], "reached": False}
        losses = pc.fill_null(
            Trace.open(find_runs(Path(folder))[-1]).steps.sort_by("step")["loss"], float("nan")
        ).to_pylist()
    share = sum(losses[-LAST:]) / LAST / losses[0]
    figures = {
        "first_loss": losses[0],
        "last_losses_mean": sum(losses[-LAST:]) / LAST,
        "share": round(share, 4),
    }
    return {
        **figures,
        "wanted_below": plan["factor"],
        "steps": len(losses),
        "seconds": round(time.monotonic() - began, 1),
        "reached": share < plan["factor"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=WORKLOADS.names())
    parser.add_argument("--framework", choices=("torch", "paddle"))
    args = parser.parse_args()
    found = {}
    for name in [args.workload] if args.workload else WORKLOADS.names():
        plan = importlib.import_module(f"profkit.workloads.{name}").CONVERGE
        for framework in WORKLOADS.load(name).frameworks:
            if args.framework in {None, framework}:
                found[f"{name} {framework}"] = run(name, framework, plan)
                print(f"{name} {framework}: {found[f'{name} {framework}']}", file=sys.stderr)
    print(json.dumps(found, indent=2))
    return 0 if all(result["reached"] for result in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
