"""Runs real jobs whose difference is known, and holds what `profkit explain` says of them against it.

    python benchmarks/real_runs.py [CASE ...] [--repeats 2]

- `workers`: ResNet50 that loads in the loop against two workers; held against what a job's own clock lost, which
  is the difference of the mean steps of both sides;
- `ranks`: one rank against two; likewise;
- `late`: two ranks, one of which takes 30 % longer for each forward: against the time that was slept;
- `dali`: JPEGs decoded by Pillow and by DALI; likewise.

Each side is run in turns, `--repeats` times. Prints one JSON object; exit code 1 where a cause is not the expected one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JOB = Path(__file__).with_name("late_job.py")
SMALL = ("--image-size=64", "--steps=60", "--warmup=10")
LATE_SHARE = 0.3
TOLERANCE = 0.1


@dataclass(frozen=True)
class Side:
    """One command, and what it is told by its environment."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Pair:
    """Two sides and what must stand first: one of these kinds."""

    base: Side
    target: Side
    kinds: tuple[str, ...]
    planted: bool = False
    """Whether the job itself says what was planted in it."""


def _trace(*options: str) -> Side:
    return Side(("trace", "resnet50", *SMALL, *options), {})


def _late(share: float) -> Side:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(JOB))
    return Side(("run", "--", sys.executable, *torchrun), {"LATE_SHARE": str(share)})


DECODING = ("--image-size=32", "--batch-size=32", "--workers=2")
PAIRS = {
    "workers": Pair(_trace("--workers=2"), _trace("--workers=0"), ("input_bound",)),
    "ranks": Pair(
        _trace("--ranks=1", "--workers=1"),
        _trace("--ranks=2", "--workers=1"),
        ("exposed_communication", "host_busy", "thread_oversubscription", "loader_contention"),
    ),
    "late": Pair(_late(0.0), _late(LATE_SHARE), ("late_rank",), planted=True),
    "dali": Pair(_trace(*DECODING, "--dali"), _trace(*DECODING), ("input_bound",)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", choices=(*PAIRS, []), help=f"of {', '.join(PAIRS)} (default: all)")
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {name: measure(PAIRS[name], Path(folder) / name, args.repeats) for name in args.cases or PAIRS}
    print(json.dumps({"load_average": os.getloadavg()[0], "repeats": args.repeats, "cases": found}, indent=2))
    return 0 if all(each["right_cause"] for each in found.values()) else 1


def measure(pair: Pair, folder: Path, repeats: int) -> dict[str, Any]:
    """Both sides in turns, and what is said of all of them together."""
    sides = {"base": pair.base, "target": pair.target}
    for _ in range(repeats):
        for name, side in sides.items():
            _run(side, folder / name, folder / f"{name}.planted")
    figures = json.loads(_profkit("explain", folder / "base", folder / "target", "--json"))
    first = next(iter(figures["findings"]), None)
    truth = _planted_ns(folder / "target.planted") if pair.planted else _lost_ns(figures)
    said = first and first["cost_ns_per_step"] and first["cost_ns_per_step"]["value"]
    return {
        "right_cause": first is not None and first["kind"] in pair.kinds,
        "first": first and first["kind"],
        "cost_ms": said and said / 1e6,
        "truth_ms": truth / 1e6,
        "truth": "planted" if pair.planted else "the whole gap",
        "error_share": said / truth - 1 if said else None,
        "within_tolerance": abs(said / truth - 1) <= TOLERANCE if said else False,
        "findings": {each["kind"]: (each["cost_ns_per_step"] or {}).get("value") for each in figures["findings"]},
        "evidence": first and first["evidence"],
        "gap_interval_ms": [(figures["total_ns"]["difference"][end] or 0) * (figures["samples_per_step_and_gpu"] or 1) / 1e6 for end in ("low", "high")],
    }


def _run(side: Side, output: Path, planted: Path) -> None:
    command, *options = side.command
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PLANTED": str(planted), **side.environment}
    subprocess.run([sys.executable, "-m", "profkit", command, "--output", str(output), *options], check=True, env=environment, stdout=subprocess.DEVNULL)


def _profkit(*arguments: object) -> str:
    return subprocess.run([sys.executable, "-m", "profkit", *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True).stdout


def _lost_ns(figures: Mapping[str, Any]) -> float:
    """What a step of the base's batch takes longer."""
    return float(figures["total_ns"]["difference"]["value"]) * (figures["samples_per_step_and_gpu"] or 1.0)


def _planted_ns(path: Path) -> float:
    """What the job slept a step, by its own clock, over all repeats."""
    slept: Sequence[float] = [float(line) for line in path.read_text().split()]
    return 1e9 * statistics.mean(slept)


if __name__ == "__main__":
    sys.exit(main())
