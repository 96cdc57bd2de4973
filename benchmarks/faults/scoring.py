"""Compare what profkit reports for each pair with the injected fault."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fault import Fault
from pairs import BASE, DONE, TARGET, done_at, folder_of

from profkit.errors import UnreadableError
from profkit.explain.explained import explain
from profkit.explain.rules.base import Cause
from profkit.trace import Trace
from profkit.trace.reader import find_runs

WARM_UP = 10
"""Steps of the job's own clock that are excluded, because profkit excludes them as well."""

OVER_ALL = "all "
PLANTED_TIME = "planted"
TOP = 3
NOTHING = "nothing"
GOALS = {"top-1": 0.90, "top-3": 0.98, "cost error": 0.15, "quiet": 0.95}


@dataclass(frozen=True)
class Said:
    """A reported cause, reduced to what a score needs."""

    kind: str
    cost_ms: float | None
    words: str
    is_gain: bool = False


@dataclass(frozen=True)
class Score:
    """One trial of a pair.

    `places` holds the rank of each injected cause among the reported ones, from 0, or `None`.
    """

    fault: Fault
    variant: str
    trial: int
    causes: tuple[Said, ...]
    places: tuple[int | None, ...]
    true_ms: float | None
    at: str = ""
    """When it was run."""

    @property
    def first(self) -> str:
        return self.causes[0].kind if self.causes else NOTHING

    @property
    def top_1(self) -> bool:
        return 0 in self.places

    @property
    def top_3(self) -> bool:
        """Return true if all injected causes are among the first three."""
        return all(place is not None and place < TOP for place in self.places)

    @property
    def named_ms(self) -> float | None:
        """Return the cost that profkit states for a single injected cause, if it was found."""
        place = self.places[0] if len(self.places) == 1 else None
        return None if place is None else self.causes[place].cost_ms

    @property
    def cost_error(self) -> float | None:
        return (
            abs(self.named_ms - self.true_ms) / abs(self.true_ms)
            if self.named_ms is not None and self.true_ms
            else None
        )


def score_all(work: Path, faults: Sequence[Fault], variants: Sequence[str]) -> list[Score]:
    """Yield the score of every pair that was run with its present options."""
    known = {fault.name: fault for fault in faults}
    found = sorted(
        (work / variant, path.parent)
        for variant in variants
        for path in (work / variant).glob(f"*/*/{DONE}")
    )
    scores = (
        _score_or_say_why_not(work, known[folder.name], variant.name, int(folder.parent.name))
        for variant, folder in found
        if folder.name in known
    )
    return [score for score in scores if score is not None]


def _score_or_say_why_not(work: Path, fault: Fault, variant: str, trial: int) -> Score | None:
    folder = folder_of(work, variant, trial, fault)
    at = done_at(work, fault, variant, trial)
    try:
        if at is not None:
            return dataclasses.replace(score_pair(folder, fault, variant, trial), at=at)
    except (OSError, ValueError, IndexError, UnreadableError) as error:
        if (folder / DONE).exists():
            raise SystemExit(
                f"{folder}: cannot be scored ({error}); take it away and run it again"
            ) from error
    why = (
        "something else was planted when it was run; run it again"
        if (folder / DONE).exists()
        else "it is being run again"
    )
    print(f"{folder}: left out, {why}", file=sys.stderr)
    return None


def score_pair(folder: Path, fault: Fault, variant: str, trial: int) -> Score:
    base, target = (Trace.open(find_runs(folder / side)[-1]) for side in (BASE, TARGET))
    causes = tuple(_said(cause) for cause in explain(base, target).causes)
    places = tuple(_place(causes, kinds, fault.words) for kinds in fault.causes)
    return Score(fault, variant, trial, causes, places, true_cost_ms(folder, fault))


def _said(cause: Cause) -> Said:
    return Said(
        cause.kind,
        cause.cost_ns.value / 1e6 if cause.cost_ns else None,
        f"{cause.detail} {cause.evidence}",
        cause.is_gain,
    )


def _place(causes: Sequence[Said], kinds: Sequence[str], words: Sequence[str]) -> int | None:
    for number, each in enumerate(causes):
        is_kind = not each.is_gain and each.kind in kinds
        if is_kind and (not words or any(word in each.words for word in words)):
            return number
    return None


def true_cost_ms(folder: Path, fault: Fault) -> float | None:
    """Return the true cost per step by the job's own clock."""
    if fault.truth is None:
        return None
    ranks = range(fault.ranks)
    if fault.truth == PLANTED_TIME:
        return max(_mean_ms(folder / TARGET, rank, fault.truth) for rank in ranks)
    if fault.truth == "samples":
        return statistics.mean(_longer_for_as_many_samples(folder, rank) for rank in ranks)
    return statistics.mean(
        _mean_ms(folder / TARGET, rank, fault.truth) - _mean_ms(folder / BASE, rank, fault.truth)
        for rank in ranks
    )


def _mean_ms(side: Path, rank: int, truth: str) -> float:
    parts, of_all = truth.removeprefix(OVER_ALL).split(), truth.startswith(OVER_ALL)
    return statistics.mean(
        sum(step.get(part, 0.0) for part in parts)
        for step in _own_steps(side, rank)
        if of_all or not step["starts_epoch"]
    )


def _longer_for_as_many_samples(folder: Path, rank: int) -> float:
    (base_ms, base_samples), (target_ms, target_samples) = (
        [
            statistics.mean(step[part] for step in _own_steps(folder / side, rank))
            for part in ("step", "samples")
        ]
        for side in (BASE, TARGET)
    )
    return target_ms / target_samples * base_samples - base_ms


def _own_steps(side: Path, rank: int) -> list[dict[str, float]]:
    steps: list[dict[str, float]] = json.loads((side / f"own{rank}.json").read_text())
    return steps[WARM_UP:]
