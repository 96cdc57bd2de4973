"""Run jobs with a known difference, and compare `profkit explain` with their own clocks.

    python benchmarks/real_runs.py [CASE ...] [--repeats 3] [--steps 60] [--keep FOLDER]

All cases run the ResNet50 system under `profkit trace`. `timed_trace.py` times it from outside,
and profkit never sees its figures.

    workers  two loader workers against none; the cost is the longer wait for batches
    dali     JPEGs decoded by DALI's threads or by Pillow in the loop; the same cost
    ranks    one rank against two; the cost is the backward after its last gradient
    late     two ranks, one delayed by 30 % of a step before each forward; the cost is its delay

The sides alternate. Prints one JSON object; exits 1 if a cause is not the expected one, or if its
cost differs from the truth by more than 10 %.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

JOB = Path(__file__).with_name("timed_trace.py")
WARM_UP = 10
LATE_SHARE = 0.3
TOLERANCE = 0.1

Means: TypeAlias = Sequence[Mapping[str, float]]
"""By rank, what each part of a step takes on average, in ns."""


@dataclass(frozen=True)
class Side:
    """The options, ranks and environment of one job."""

    options: tuple[str, ...]
    ranks: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """Two sides, the cause that must come first, and its cost by the jobs' own clocks."""

    base: Side
    target: Side
    kind: str
    truth_ns: Callable[[Means, Means], float]


def longer(part: str) -> Callable[[Means, Means], float]:
    """Return how much longer a part takes on the target, on the mean of the ranks."""
    return lambda base, target: (
        statistics.mean(each[part] for each in target)
        - statistics.mean(each[part] for each in base)
    )


def late_forward(base: Means, target: Means) -> float:
    """Return how much later the last rank's forward is than the others', beyond the base."""
    before, after = (
        side[-1]["forward"] - statistics.mean(each["forward"] for each in side[:-1])
        for side in (base, target)
    )
    return after - max(0.0, before)


SMALL = ("--image-size=64", "--batch-size=4", "--workers=1")
DECODING = ("--image-size=32", "--batch-size=32")
"""Crops so small that reading decides."""

PAIRS = {
    "workers": Pair(
        Side((*DECODING, "--workers=2")),
        Side((*DECODING, "--workers=0")),
        "input_bound",
        longer("input"),
    ),
    "dali": Pair(
        Side((*DECODING, "--workers=0", "--dali")),
        Side((*DECODING, "--workers=0")),
        "input_bound",
        longer("input"),
    ),
    "ranks": Pair(Side(SMALL), Side(SMALL, ranks=2), "exposed_communication", longer("exchange")),
    "late": Pair(
        Side(SMALL, ranks=2),
        Side(SMALL, ranks=2, environment={"LATE_SHARE": str(LATE_SHARE)}),
        "late_rank",
        late_forward,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "cases",
        nargs="*",
        metavar="CASE",
        choices=(*PAIRS, []),
        help=f"of {', '.join(PAIRS)} (default: all)",
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="where the runs stay (default: nowhere)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {
            name: measure(PAIRS[name], (args.keep or Path(folder)) / name, args.repeats, args.steps)
            for name in args.cases or PAIRS
        }
    print(
        json.dumps(
            {
                "load_average": os.getloadavg()[0],
                "repeats": args.repeats,
                "steps": args.steps,
                "cases": found,
            },
            indent=2,
        )
    )
    return (
        0 if all(each["right_cause"] and each["within_tolerance"] for each in found.values()) else 1
    )


def measure(pair: Pair, folder: Path, repeats: int, steps: int) -> dict[str, Any]:
    """Run both sides alternately, and return what is reported for all of them together."""
    sides = {"base": pair.base, "target": pair.target}
    for number in range(repeats):
        for name, side in sides.items():
            _run(side, folder / name, folder / f"own-{name}-{number}", steps)
    figures = json.loads(_profkit("explain", folder / "base", folder / "target", "--json"))
    truth_ns = pair.truth_ns(
        *(_own_means(folder, name, side.ranks) for name, side in sides.items())
    )
    first: dict[str, Any] = next(iter(figures["findings"]), {})
    said_ns = (first.get("cost_ns_per_step") or {}).get("value")
    return {
        "right_cause": first.get("kind") == pair.kind,
        "expected": pair.kind,
        "first": first.get("kind"),
        "cost_ms": said_ns and said_ns / 1e6,
        "truth_ms": truth_ns / 1e6,
        "error_share": said_ns and said_ns / truth_ns - 1,
        "within_tolerance": said_ns is not None and abs(said_ns / truth_ns - 1) <= TOLERANCE,
        "findings_ms": {
            each["kind"]: each["cost_ns_per_step"] and each["cost_ns_per_step"]["value"] / 1e6
            for each in figures["findings"]
        },
        "evidence": first.get("evidence"),
    }


def _run(side: Side, output: Path, own: Path, steps: int) -> None:
    output.mkdir(parents=True, exist_ok=True)
    launcher = (
        ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={side.ranks}")
        if side.ranks > 1
        else ()
    )
    command = [
        sys.executable,
        *launcher,
        str(JOB),
        "resnet50",
        *side.options,
        f"--steps={steps}",
        f"--warmup={WARM_UP}",
        "--output",
        str(output),
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "OWN_CLOCK": str(own),
        **side.environment,
    }
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def _profkit(*arguments: object) -> str:
    return subprocess.run(
        [sys.executable, "-m", "profkit", *map(str, arguments)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def _own_means(folder: Path, side: str, ranks: int) -> Means:
    """Return the ranks' own clocks over all repeats, for the steps that profkit uses."""
    return [
        _rank_means(
            [
                json.loads(path.read_text())
                for path in sorted(folder.glob(f"own-{side}-*.{rank}.json"))
            ]
        )
        for rank in range(ranks)
    ]


def _rank_means(runs: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
    steps = [step for run in runs for step in run[WARM_UP:] if "starts_epoch" not in step]
    return {
        part: 1e9 * statistics.mean(step[part] for step in steps)
        for part in ("input", "forward", "exchange", "step")
    }


if __name__ == "__main__":
    sys.exit(main())
