"""Runs real jobs whose difference is known, and holds what `profkit explain` says of them against the jobs' own clocks.

    python benchmarks/real_runs.py [CASE ...] [--repeats 3] [--steps 60] [--keep FOLDER]

All cases are the ResNet50 system under `profkit trace`, timed from outside by `timed_trace.py`, whose figures profkit never sees:

- `workers`: two loader workers against none; the cost is what the loop waits longer for its batches;
- `dali`: JPEGs decoded by DALI's threads and by Pillow in the loop; likewise;
- `ranks`: one rank against two; the cost is what backward takes behind its last gradient, the exposed exchange;
- `late`: two ranks, one of which is held up for 30 % of a step before each forward; the cost is what its forward takes longer
  than the other's.

The sides are run in turns. Prints one JSON object; exit code 1 where a cause is not the expected one, or costs more than 10 %
more or less than the truth.
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
    """The options of one job, its ranks, and what it is told by its environment."""

    options: tuple[str, ...]
    ranks: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """Two sides, the cause that must stand first, and what it costs by the jobs' own clocks."""

    base: Side
    target: Side
    kind: str
    truth_ns: Callable[[Means, Means], float]


def longer(part: str) -> Callable[[Means, Means], float]:
    """What a part takes longer on the target, on average over the ranks."""
    return lambda base, target: (
        statistics.mean(each[part] for each in target)
        - statistics.mean(each[part] for each in base)
    )


def late_forward(base: Means, target: Means) -> float:
    """What the last rank's forward takes longer than the others', and did not in the base already."""
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
    """Both sides in turns, and what is said of all of them together."""
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
    """What the ranks' own clocks say, over all repeats, of the steps that profkit's figures are about."""
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
