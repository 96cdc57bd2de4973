"""Limits that a change must keep, and what a ledger says of each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from profkit.analysis.estimate import Estimate
from profkit.errors import ExitCode, UsageError
from profkit.explain.ledger import INDECISIVE, TOTAL, Ledger, why_not_at_all
from profkit.text import did_you_mean, duration, percent, safe_text

_LIMIT = re.compile(r"(?:(?P<row>[a-z0-9]+)=)?(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|ms|us|s)")
_NS = {"s": 1e9, "ms": 1e6, "us": 1e3}
_NAMES = {"data": "input"}


class Outcome(str, Enum):
    """What a gate does."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Gate:
    """A limit on one row or the total: a share of the base's whole time, or ns in a step of the base's size."""

    row: str
    share: float | None
    step_ns: float | None

    @classmethod
    def parse(cls, word: str) -> Gate:
        """From `3%`, `4ms`, `input=2%` or `allreduce=4ms`."""
        match = _LIMIT.fullmatch(word.strip())
        if not match:
            raise UsageError(
                f"'{safe_text(word)}' is no limit; write --gate 3%, or --gate allreduce=4ms"
            )
        row = _NAMES.get(match["row"] or TOTAL, match["row"] or TOTAL)
        number = float(match["number"])
        return (
            cls(row, number / 100, None)
            if match["unit"] == "%"
            else cls(row, None, number * _NS[match["unit"]])
        )

    def __str__(self) -> str:
        return f"{self.row} within {percent(self.share) if self.share is not None else duration(self.step_ns or 0.0) + ' a step'}"


@dataclass(frozen=True)
class Judgement:
    """What became of a gate, and why."""

    gate: Gate
    outcome: Outcome
    why: str


def apply_gates(ledger: Ledger, gates: Sequence[Gate]) -> tuple[Judgement, ...]:
    return tuple(_judgements(ledger, gates))


def exit_code(judgements: Sequence[Judgement]) -> ExitCode:
    """A regression counts more than a gate that could not be judged."""
    outcomes = {each.outcome for each in judgements}
    if Outcome.FAILED in outcomes:
        return ExitCode.REGRESSION
    return ExitCode.NOT_JUDGED if Outcome.NOT_JUDGED in outcomes else ExitCode.DONE


def _judgements(ledger: Ledger, gates: Sequence[Gate]) -> Iterator[Judgement]:
    for gate in gates:
        reason = why_not_at_all(ledger)
        row = ledger.total if gate.row == TOTAL else ledger.find(gate.row)
        if row is None:
            names = [each.name for each in ledger.rows]
            yield Judgement(
                gate,
                Outcome.NOT_JUDGED,
                f"there is no row '{gate.row}' here{did_you_mean(gate.row, names)} (there are: {', '.join(names)})",
            )
        elif reason:
            yield Judgement(gate, Outcome.NOT_JUDGED, reason)
        else:
            yield _judge(gate, row.delta, _limit(ledger, gate), ledger.total.base.value)


def _limit(ledger: Ledger, gate: Gate) -> float:
    """The limit in ns per sample per GPU."""
    if gate.share is not None:
        return gate.share * ledger.total.base.value
    return (gate.step_ns or 0.0) / max(ledger.samples_per_step, 1e-9)


def _judge(gate: Gate, delta: Estimate, limit: float, base: float) -> Judgement:
    """A change above the limit fails where it is surely a loss; where it may as well be none or much, nobody can say."""
    if delta.low is None or delta.high is None or not math.isfinite(delta.value):
        return Judgement(gate, Outcome.NOT_JUDGED, "there is no interval")
    if delta.value <= limit:
        if delta.high > limit + INDECISIVE * base:
            return Judgement(
                gate,
                Outcome.NOT_JUDGED,
                "within the limit, but its interval reaches far beyond it: more steps are needed",
            )
        return Judgement(gate, Outcome.PASSED, "within the limit")
    if delta.low > 0:
        return Judgement(gate, Outcome.FAILED, "above the limit, and beyond its interval")
    return Judgement(
        gate,
        Outcome.NOT_JUDGED,
        "above the limit, but its interval holds zero: more steps are needed",
    )
