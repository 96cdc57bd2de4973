"""Compare what profkit reports for each pair with the planted fault."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairs import BASE, DONE, TARGET, is_done
from plants import NAMED, OTHER, Fault

from profkit.explain.explained import explain
from profkit.report.ledger_document import explained
from profkit.show.json import document
from profkit.text import table
from profkit.trace import Trace
from profkit.trace.reader import find_runs

WARM_UP = 10
"""Steps of the job's own clock that are excluded, because profkit excludes them as well."""

PLANTED_TIME = "planted"
TRUE_IN_NOISE = "host_busy"
"""Next to other processes this cause is true, and no false alarm."""

CHANGES = ("regression", "improvement")


@dataclass(frozen=True)
class Said:
    """A reported cause, reduced to what a score needs."""

    kind: str
    cost_ms: float | None
    words: str
    is_gain: bool = False


@dataclass(frozen=True)
class Score:
    """One trial of a pair; `place` is that of the planted cause among the reported, from 0."""

    fault: Fault
    trial: int
    verdict: str
    causes: tuple[Said, ...]
    place: int | None
    true_ms: float | None

    @property
    def cost_error(self) -> float | None:
        """Return how far the named cost is from the true one, as a share of the true one."""
        named_ms = None if self.place is None else self.causes[self.place].cost_ms
        if named_ms is None or not self.true_ms:
            return None
        return abs(named_ms - self.true_ms) / abs(self.true_ms)

    @property
    def is_right(self) -> bool:
        """True if the first cause is the planted one; of a healthy pair, if nothing is reported."""
        if not self.fault.healthy:
            return self.place == 0
        false = [
            each for each in self.causes if not (self.fault.noise and each.kind == TRUE_IN_NOISE)
        ]
        return not false and self.verdict not in CHANGES


def score_all(work: Path, faults: Sequence[Fault]) -> list[Score]:
    """Return the score of every pair that was run with its present options."""
    known = {fault.name: fault for fault in faults}
    scores = []
    for done in sorted(work.glob(f"*/*/{DONE}")):
        fault, trial = known.get(done.parent.name), int(done.parent.parent.name)
        if fault is None:
            continue
        if is_done(work, fault, trial):
            scores.append(score_pair(done.parent, fault, trial))
        else:
            print(f"{done.parent}: excluded, its options have changed", file=sys.stderr)
    return scores


def score_pair(folder: Path, fault: Fault, trial: int) -> Score:
    base, target = (Trace.open(find_runs(folder / side)[-1]) for side in (BASE, TARGET))
    report = document(explained(explain(base, target)))
    causes = tuple(map(_said, report["causes"]))
    place = next(right_places(causes, fault), None)
    return Score(fault, trial, report["verdict"], causes, place, true_cost_ms(folder, fault))


def _said(finding: dict[str, Any]) -> Said:
    cost = finding["cost_ns_per_step"]
    return Said(
        finding["kind"],
        cost["value"] / 1e6 if cost else None,
        f"{finding['cause'] or ''}: {finding['evidence']}",
        finding["is_gain"],
    )


def right_places(causes: Sequence[Said], fault: Fault) -> Iterator[int]:
    """Yield the places of the causes that name the planted one."""
    for place, each in enumerate(causes):
        told = f"{each.kind} {each.words}"
        is_kind = each.kind in fault.kinds or (OTHER in fault.kinds and each.kind not in NAMED)
        says_it = not fault.words or any(word in told for word in fault.words)
        goes_right = fault.truth is None or not each.is_gain
        if is_kind and says_it and goes_right and fault.must in told:
            yield place


def true_cost_ms(folder: Path, fault: Fault) -> float | None:
    """Return the true cost per step by the job's own clock."""
    if fault.truth is None:
        return None
    ranks = range(fault.ranks)
    if fault.truth == PLANTED_TIME:
        return max(_mean_ms(folder / TARGET, rank, fault.truth) for rank in ranks)
    return statistics.mean(
        _mean_ms(folder / TARGET, rank, fault.truth) - _mean_ms(folder / BASE, rank, fault.truth)
        for rank in ranks
    )


def _mean_ms(side: Path, rank: int, truth: str) -> float:
    steps: list[dict[str, float]] = json.loads((side / f"own{rank}.json").read_text())
    return statistics.mean(
        sum(step.get(part, 0.0) for part in truth.split()) for step in steps[WARM_UP:]
    )


def summarize(scores: Sequence[Score]) -> dict[str, Any]:
    """Return the figures of all pairs."""
    faulty = [score for score in scores if not score.fault.healthy]
    healthy = [score for score in scores if score.fault.healthy]
    errors = [score.cost_error for score in faulty if score.cost_error is not None]
    return {
        "faults": len(faulty),
        "named_first": sum(score.place == 0 for score in faulty),
        "named_in_first_three": sum(score.place in range(3) for score in faulty),
        "called_a_regression": sum(score.verdict == CHANGES[0] for score in faulty),
        "median_cost_error": statistics.median(errors) if errors else None,
        "healthy": len(healthy),
        "quiet": sum(score.is_right for score in healthy),
    }


def rows(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Return a row per pair, for the results."""
    return [
        {
            "pair": score.fault.name,
            "trial": score.trial,
            "verdict": score.verdict,
            "right": score.is_right,
            "place": score.place,
            "true_ms": score.true_ms,
            "causes": [[each.kind, each.cost_ms] for each in score.causes],
        }
        for score in scores
    ]


def as_text(scores: Sequence[Score]) -> str:
    """Return a line per pair, then the figures."""
    lines = [["pair", "true ms", "right", "causes"]]
    for score in scores:
        said = ", ".join(f"{each.kind} {_ms(each.cost_ms)}" for each in score.causes)
        right = "yes" if score.is_right else "NO"
        lines.append([score.fault.name, _ms(score.true_ms), right, said or score.verdict])
    figures = [f"{name.replace('_', ' ')}: {value}" for name, value in summarize(scores).items()]
    return "\n".join([table(lines), "", *figures])


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
