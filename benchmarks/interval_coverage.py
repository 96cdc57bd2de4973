"""Measure how often the ledger's intervals contain the truth, over seeded synthetic pairs.

    python benchmarks/interval_coverage.py --pairs 200

Each pair has one of the `CAUSES`, correlated steps, and seeds of its own. The true value of a row
comes from very long runs of the same two kinds. The coverage of a row must lie between 90 and 99
%, and pairs of identical runs must be neutral in 95 % of the cases.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profkit.explain.ledger import Ledger, Row, Verdict, compare
from profkit.frame.costs import RunCosts
from profkit.frame.run_frame import frame_of
from profkit.testing import synthetic_trace
from profkit.trace import Trace

MS = 1_000_000
CAUSES: tuple[Mapping[str, Any], ...] = (
    {"phase_ns": {"data": 5 * MS}},
    {"phase_ns": {"forward": 15 * MS}},
    {"phase_ns": {"backward": 22 * MS, "optimizer": 5 * MS}},
    {"phase_ns": {"h2d": 2 * MS, "data": MS}},
    {"ranks": 2, "phase_ns": {"allreduce": 5 * MS}},
    {"ranks": 2, "rank_phase_ns": {1: {"forward": 16 * MS}}},
    {"ranks": 2, "rank_phase_ns": {0: {"data": 9 * MS}}},
    {"jitter": 0.1, "batch_size": 64},
)
_TRUTH_SEED = 1_000_000


def costs_of(folder: Path, **options: Any) -> RunCosts:
    """Return the costs of a synthetic run, and remove the run."""
    run = synthetic_trace(folder / "run", **options)
    costs = frame_of(Trace.open(run)).costs
    shutil.rmtree(run)
    return costs


def _pair(folder: Path, cause: Mapping[str, Any], seed: int, steps: int) -> Ledger:
    base = {"ranks": cause.get("ranks", 1), "jitter": cause.get("jitter", 0.05)}
    return compare(
        costs_of(folder, steps=steps, seed=seed, **base),
        costs_of(folder, steps=steps, seed=seed + 1, **cause),
    )


def measure(folder: Path, *, pairs: int, steps: int, truth_steps: int) -> dict[str, float]:
    """Return, per row, the share of pairs whose interval contains the true value."""
    truths = [
        {
            row.name: row.delta.value
            for row in _all_rows(_pair(folder, cause, _TRUTH_SEED, truth_steps))
        }
        for cause in CAUSES
    ]
    held: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for number, (cause, truth) in zip(
        range(pairs), itertools.cycle(zip(CAUSES, truths, strict=True)), strict=False
    ):
        for row in _all_rows(_pair(folder, cause, 2 * number, steps)):
            seen[row.name] += 1
            held[row.name] += (
                row.delta.low is not None
                and row.delta.high is not None
                and row.delta.low <= truth[row.name] <= row.delta.high
            )
    return {name: held[name] / seen[name] for name in seen}


def _all_rows(found: Ledger) -> list[Row]:
    return [found.total, *found.rows, *(part for row in found.rows for part in row.inside)]


def identical_pairs(folder: Path, *, pairs: int, steps: int) -> float:
    """Return the share of pairs of equal runs with different noise that are neutral."""
    verdicts = [_pair(folder, {}, 10_000 + 2 * number, steps).verdict for number in range(pairs)]
    return verdicts.count(Verdict.NEUTRAL) / pairs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--truth-steps", type=int, default=50_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        coverage = measure(
            Path(folder), pairs=options.pairs, steps=options.steps, truth_steps=options.truth_steps
        )
        neutral = identical_pairs(Path(folder), pairs=options.pairs, steps=options.steps)
    print(
        json.dumps(
            {
                "pairs": options.pairs,
                "coverage_share": coverage,
                "identical_pairs_neutral_share": neutral,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
