"""Show what profkit says of the jobs of record.py, next to the jobs' own clocks.

python benchmarks/gpu_jobs/score.py FOLDER
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from record import JOBS

from profkit.analysis.overview import build_overview
from profkit.explain.explained import explain
from profkit.trace import Trace

BASES = {"images": "images", "text": "text", "small": "small"}
"""The job without a fault, by the first part of a name."""


def find_run(work: Path, name: str, side: str) -> Trace | None:
    for run in (work / name / side).glob("*/run.json"):
        if (run.parent / "r00000" / "end.json").exists():
            return Trace.open(run.parent)
    return None


def step_rows(work: Path) -> Iterator[str]:
    """Yield the step of each recorded job by its own clock and by the report."""
    yield "| job | own clock | `profkit report` | difference |"
    yield "|---|---:|---:|---:|"
    for name in JOBS:
        own, trace = work / name / "recorded.json", find_run(work, name, "recorded")
        if trace is None or not own.exists():
            continue
        own_ms = json.loads(own.read_text())["step_ms"]
        step_ms = build_overview(trace).step_ns.value / 1e6
        off = step_ms / own_ms - 1
        yield f"| {name} | {own_ms:.2f} ms | {step_ms:.2f} ms | {100 * off:+.1f} % |"


def cause_rows(work: Path, side: str) -> Iterator[str]:
    """Yield the verdict and the first cause of each job against the one without a fault."""
    yield "| job | difference of the own clocks | verdict | first cause | its cost |"
    yield "|---|---:|---|---|---:|"
    for name in JOBS:
        base = BASES[name.split("_")[0]]
        before, after = (find_run(work, each, side) for each in (base, name))
        if name == base or before is None or after is None:
            continue
        clocks = [read_clock(work / each / f"{side}.json") for each in (base, name)]
        found = explain(before, after)
        first = found.causes[0] if found.causes else None
        kind = "none" if first is None else f"`{first.kind}`"
        cost = "-" if first is None or first.cost_ns is None else f"{first.cost_ns.value / 1e6:.2f}"
        yield (
            f"| {name} | {clocks[1] - clocks[0]:+.2f} ms | {found.ledger.verdict.value} | {kind} "
            f"| {cost} |"
        )


def read_clock(path: Path) -> float:
    return float(json.loads(path.read_text())["step_ms"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    args = parser.parse_args()
    for lines in (step_rows(args.work), cause_rows(args.work, "recorded"),
                  cause_rows(args.work, "kernels")):  # fmt: skip
        print("\n".join(lines), end="\n\n")


if __name__ == "__main__":
    main()
