"""Score pairs in both directions: the target is the slower run, or the faster one.

A pair of the second suite is right in a direction if the first cause is the injected one and goes
in that direction. A healthy pair is right if profkit reports no verdict and no cause. Next to
other processes, `host_busy` is the truth and no false alarm.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault import Fault
from pairs import BASE, DONE, TARGET, done_at, folder_of
from scoring import NOTHING, Said, true_cost_ms
from second_plants import NAMED, OTHER
from variants import HELD_OUT_2, faults_of

from profkit.explain.explained import explain
from profkit.report.ledger_json import explained
from profkit.trace import Trace
from profkit.trace.reader import find_runs

SLOWER, FASTER = "target slower", "target faster"
DIRECTIONS = (SLOWER, FASTER)
VERDICTS = {SLOWER: "regression", FASTER: "improvement"}
TRUE_IN_NOISE = "host_busy"
FIRST_SCORE = Path(__file__).with_name("second_first_score.json")


@dataclass(frozen=True)
class Outcome:
    """The report on a pair in one direction.

    `place` is the rank of the injected cause among the reported ones, from 0, or `None`.
    `explained` is the share of the gap that the causes explain, if the report states one.
    """

    direction: str
    verdict: str
    causes: tuple[Said, ...]
    place: int | None
    explained: float | None
    rest: str
    """The row with most of the gap that no cause explains."""
    command: str

    @property
    def first(self) -> str:
        return self.causes[0].kind if self.causes else NOTHING

    @property
    def named_ms(self) -> float | None:
        return None if self.place is None else self.causes[self.place].cost_ms

    @property
    def has_verdict(self) -> bool:
        return self.verdict in VERDICTS.values()


@dataclass(frozen=True)
class PairScore:
    """One trial of a pair in both directions."""

    fault: Fault
    trial: int
    outcomes: tuple[Outcome, ...]
    true_ms: float | None
    at: str

    def cost_error(self, outcome: Outcome) -> float | None:
        """Return how far the named cost is from the true one, as a share of the true one."""
        if outcome.named_ms is None or not self.true_ms:
            return None
        return abs(abs(outcome.named_ms) - abs(self.true_ms)) / abs(self.true_ms)

    def false_alarms(self, outcome: Outcome) -> tuple[str, ...]:
        """Return the causes of a healthy pair that are not true."""
        return tuple(
            each.kind
            for each in outcome.causes
            if not (self.fault.noise and each.kind == TRUE_IN_NOISE)
        )


def score_both_ways(work: Path, names: Sequence[str] = ()) -> list[PairScore]:
    """Return the scores of the pairs that were run with their present options."""
    known = {fault.name: fault for fault in faults_of(HELD_OUT_2)}
    scores = []
    for path in sorted((work / HELD_OUT_2).glob(f"*/*/{DONE}")):
        fault, trial = known.get(path.parent.name), int(path.parent.parent.name)
        if fault is None or (names and fault.name not in names):
            continue
        at = done_at(work, fault, HELD_OUT_2, trial)
        if at is None:
            print(f"{path.parent}: excluded, its options have changed", file=sys.stderr)
            continue
        scores.append(score_pair(folder_of(work, HELD_OUT_2, trial, fault), fault, trial, at))
    return scores


def score_pair(folder: Path, fault: Fault, trial: int, at: str) -> PairScore:
    base, target = (find_runs(folder / side)[-1] for side in (BASE, TARGET))
    outcomes = (
        _outcome(SLOWER, base, target, fault),
        _outcome(FASTER, target, base, fault),
    )
    return PairScore(fault, trial, outcomes, true_cost_ms(folder, fault), at)


def _outcome(direction: str, base: Path, target: Path, fault: Fault) -> Outcome:
    report = explained(explain(Trace.open(base), Trace.open(target)))
    causes = tuple(map(_said, report["findings"]))
    coverage = report["explained"] or {}
    return Outcome(
        direction,
        report["verdict"],
        causes,
        next(right_places(causes, fault, is_gain=direction == FASTER), None),
        coverage.get("share_of_gap"),
        coverage.get("row_without_cause") or "",
        f"profkit explain {base} {target}",
    )


def _said(finding: dict[str, Any]) -> Said:
    cost = finding["cost_ns_per_step"]
    return Said(
        finding["kind"],
        cost["value"] / 1e6 if cost else None,
        f"{finding['cause'] or ''}: {finding['evidence']}",
        finding["is_gain"],
    )


def right_places(causes: Sequence[Said], fault: Fault, *, is_gain: bool) -> Iterator[int]:
    """Yield the places of the causes that name the injected one."""
    kinds = fault.causes[0] if fault.causes else ()
    for place, each in enumerate(causes):
        told = f"{each.kind} {each.words}"
        is_kind = each.kind in kinds or (OTHER in kinds and each.kind not in NAMED)
        says_it = not fault.words or any(word in told for word in fault.words)
        goes_right = fault.truth is None or each.is_gain is is_gain
        if is_kind and says_it and goes_right and fault.must in told:
            yield place


# -- figures -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """The figures of one direction."""

    faults: int
    first: float
    verdicts: float
    cost_error: float | None
    costs: int
    explained: float | None
    healthy: int
    findings: float
    alarms: float
    shares: int | None = None
    """Number of faults for which a share of the gap was stated."""


def figures_of(scores: Sequence[PairScore], direction: str) -> Figures:
    """Return the figures of a direction."""
    found = [
        (score, outcome)
        for score in scores
        for outcome in score.outcomes
        if outcome.direction == direction
    ]
    faulty = [(score, outcome) for score, outcome in found if not score.fault.healthy]
    healthy = [(score, outcome) for score, outcome in found if score.fault.healthy]
    errors = [score.cost_error(outcome) for score, outcome in faulty if outcome.place == 0]
    known = [error for error in errors if error is not None]
    shares = [outcome.explained for _, outcome in faulty if outcome.explained is not None]
    return Figures(
        faults=len(faulty),
        first=_mean([outcome.place == 0 for _, outcome in faulty]),
        verdicts=_mean([outcome.verdict == VERDICTS[direction] for _, outcome in faulty]),
        cost_error=statistics.median(known) if known else None,
        costs=len(known),
        explained=statistics.median(shares) if shares else None,
        healthy=len(healthy),
        findings=_mean([bool(score.false_alarms(outcome)) for score, outcome in healthy]),
        alarms=_mean([outcome.has_verdict for _, outcome in healthy]),
        shares=len(shares),
    )


def _mean(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


def keep_first(scores: Sequence[PairScore]) -> None:
    """Keep the score of rules that nobody has changed in view of this suite."""
    figures = {
        direction: dataclasses.asdict(figures_of(scores, direction)) for direction in DIRECTIONS
    }
    FIRST_SCORE.write_text(json.dumps(figures, indent=1) + "\n")


def first_figures() -> dict[str, Figures]:
    """Return the first score of each direction, if it was kept."""
    if not FIRST_SCORE.exists():
        return {}
    kept = json.loads(FIRST_SCORE.read_text())
    return {direction: Figures(**figures) for direction, figures in kept.items()}


def misses(scores: Sequence[PairScore]) -> Iterator[tuple[PairScore, Outcome]]:
    """Yield each pair and direction in which the report is wrong."""
    for score in scores:
        for outcome in score.outcomes:
            if score.fault.healthy:
                is_wrong = bool(score.false_alarms(outcome)) or outcome.has_verdict
            else:
                is_wrong = outcome.place != 0
            if is_wrong:
                yield score, outcome
