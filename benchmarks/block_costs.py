"""Compare modes that alternated in blocks of steps: the added time and its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from beside import FEWEST_MEANS, Added, pool

from profkit.frame.estimate import student_95

WRITER = "its writer"


@dataclass(frozen=True)
class Took:
    """Milliseconds per step of one block: wall time, and CPU time of the training thread."""

    wall_ms: float
    processor_ms: float


Times = dict[str, list[Took]]
"""The times of each mode, turn by turn."""


@dataclass(frozen=True)
class Found:
    """The result of one case in one process."""

    times: Times
    beside: dict[str, Added]

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Found:
        times = {mode: [Took(**took) for took in values] for mode, values in told["times"].items()}
        return cls(times, {name: Added(**each) for name, each in told["beside"].items()})


def compare(*found: Found) -> dict[str, dict[str, float]]:
    """Return each mode compared with the bare block of its turn, and the cost of threads."""
    runs = [each.times for each in found]
    rows = {
        "bare": {
            "median_ms": round(
                statistics.median(took.wall_ms for run in runs for took in run["bare"]), 4
            )
        }
    }
    for name in runs[0].keys() - {"bare"}:
        wall, processor = (
            compare_two(name, "bare", runs, clock) for clock in ("wall_ms", "processor_ms")
        )
        rows[name] = wall | {
            f"processor_{key}": value for key, value in processor.items() if key.endswith("_ms")
        }
    for name in found[0].beside:
        rows[name] = _as_row(pool([each.beside[name] for each in found]))
    if WRITER in rows:
        rows["profkit"] = add_up(rows["profkit"], rows[WRITER], rows["bare"]["median_ms"])
    return rows


def _as_row(cost: Added) -> dict[str, float]:
    numbers = {
        "over_bare_ms": cost.mean_ms,
        "low_ms": cost.mean_ms - cost.half_ms,
        "high_ms": cost.mean_ms + cost.half_ms,
    }
    return {name: round(value, 4) for name, value in numbers.items()}


def add_up(hooks: dict[str, float], writer: dict[str, float], bare_ms: float) -> dict[str, float]:
    """Return the sum of two independent measurements."""
    mean = hooks["over_bare_ms"] + writer["over_bare_ms"]
    half = math.hypot(*((row["high_ms"] - row["low_ms"]) / 2 for row in (hooks, writer)))
    return hooks | {
        name: round(value, 4)
        for name, value in {
            "over_bare_ms": mean,
            "low_ms": mean - half,
            "high_ms": mean + half,
            "ratio_to_bare": 1 + mean / bare_ms,
        }.items()
    }


def compare_two(
    name: str, base: str, runs: Sequence[Times], clock: str = "wall_ms"
) -> dict[str, float]:
    """Return one mode compared with another of the same turn."""
    times = [
        tuple([getattr(took, clock) for took in run[mode]] for mode in (name, base)) for run in runs
    ]
    found = difference(*([value for run in times for value in run[place]] for place in (0, 1)))
    means = [difference(*run)["over_bare_ms"] for run in times]
    if len(means) < FEWEST_MEANS:
        return found
    half = student_95(len(means) - 1) * statistics.stdev(means) / math.sqrt(len(means))
    low, high = found["over_bare_ms"] - half, found["over_bare_ms"] + half
    return found | {
        "low_ms": round(min(low, found["low_ms"]), 4),
        "high_ms": round(max(high, found["high_ms"]), 4),
    }


def difference(values: list[float], bare: list[float]) -> dict[str, float]:
    """Return the mean over the middle of the differences.

    Blocks in which the machine did something else lie outside the middle.
    """
    differences = sorted(mine - other for mine, other in zip(values, bare, strict=True))
    cut = len(differences) // 6
    kept = differences[cut : len(differences) - cut]
    mean = statistics.fmean(kept)
    half = student_95(len(kept) - 1) * statistics.stdev(kept) / math.sqrt(len(kept))
    base = statistics.median(bare)
    numbers = {
        "median_ms": statistics.median(values),
        "over_bare_ms": mean,
        "low_ms": mean - half,
        "high_ms": mean + half,
        "ratio_to_bare": 1 + mean / base,
    }
    return {name: round(value, 4) for name, value in numbers.items()}
