"""Limits that a change must keep, and the judgement of each."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from profkit.errors import ExitCode, UsageError
from profkit.explain.ledger import INDECISIVE, TOTAL, Ledger, Verdict, why_not_at_all
from profkit.frame.estimate import Estimate
from profkit.text import did_you_mean, duration, percent, safe_text

_LIMIT = re.compile(r"(?:(?P<row>[a-z0-9]+)=)?(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|ms|us|s)")
_NS = {"s": 1e9, "ms": 1e6, "us": 1e3}


class Outcome(str, Enum):
    """The outcome of a gate."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Gate:
    """A limit on one row or the total.

    It is a share of the base's whole time, or ns in a step of the base's size.
    """

    row: str
    share: float | None
    step_ns: float | None

    @classmethod
    def parse(cls, word: str) -> Gate:
        """Parse a limit such as `3%`, `4ms`, `data=2%` or `allreduce=4ms`."""
        match = _LIMIT.fullmatch(word.strip())
        if not match:
            raise UsageError(
                f"'{safe_text(word)}' is no limit; write --gate 3%, or --gate allreduce=4ms"
            )
        row = match["row"] or TOTAL
        number = float(match["number"])
        if match["unit"] == "%":
            return cls(row, number / 100, None)
        return cls(row, None, number * _NS[match["unit"]])

    def __str__(self) -> str:
        if self.share is not None:
            return f"{self.row} within {percent(self.share)}"
        return f"{self.row} within {duration(self.step_ns or 0.0)} per step"


@dataclass(frozen=True)
class Judgement:
    """The outcome of a gate, and the reason."""

    gate: Gate
    outcome: Outcome
    why: str


def apply_gates(ledger: Ledger, gates: Sequence[Gate]) -> tuple[Judgement, ...]:
    """Judge a ledger by every gate."""
    judgements = []
    for gate in gates:
        row = ledger.total if gate.row == TOTAL else ledger.find(gate.row)
        if row is None:
            names = [each.name for each in ledger.rows]
            why = (
                f"there is no row '{gate.row}' here{did_you_mean(gate.row, names)} "
                f"(there are: {', '.join(names)})"
            )
            judgements.append(Judgement(gate, Outcome.NOT_JUDGED, why))
        elif reason := why_not_at_all(ledger):
            judgements.append(Judgement(gate, Outcome.NOT_JUDGED, reason))
        else:
            base = ledger.total.base.value
            limit = (gate.step_ns or 0.0) / max(ledger.samples_per_step, 1e-9)
            if gate.share is not None:
                limit = gate.share * base
            outcome, why = judge_change(row.delta, limit, base, ledger.what_helps)
            evident = ledger.evident
            evident_ns = 0.0 if evident is None or evident.is_gain else evident.ns
            if evident_ns and row is ledger.total and max(row.delta.value, evident_ns) > limit:
                outcome, why = Outcome.FAILED, "above the limit, by what no machine makes"
            doubt = ledger.doubt
            if row.name in ledger.unsure_rows:
                doubt = "the machine may change it as much from run to run: repeats are needed"
            is_sure = outcome is Outcome.FAILED
            if is_sure and doubt and ledger.verdict_of(row) is Verdict.CANNOT_JUDGE:
                outcome, why = Outcome.NOT_JUDGED, f"above the limit, but {doubt}"
            judgements.append(Judgement(gate, outcome, why))
    return tuple(judgements)


def exit_code(judgements: Sequence[Judgement]) -> ExitCode:
    """Return the exit code: a regression outweighs a gate that could not be judged."""
    outcomes = {each.outcome for each in judgements}
    if Outcome.FAILED in outcomes:
        return ExitCode.REGRESSION
    return ExitCode.NOT_JUDGED if Outcome.NOT_JUDGED in outcomes else ExitCode.DONE


def judge_change(
    delta: Estimate, limit: float, base: float, what_helps: str
) -> tuple[Outcome, str]:
    """Judge a change by a limit in the same unit, such as ns per sample per GPU.

    A change above the limit fails if it is surely a loss. If it may be nothing or much, it is not
    judged.
    """
    if delta.low is None or delta.high is None or not math.isfinite(delta.value):
        return Outcome.NOT_JUDGED, "there is no interval"
    if delta.value > limit:
        if delta.low > 0:
            return Outcome.FAILED, "above the limit, and beyond its interval"
        why = f"above the limit, but its interval contains zero: {what_helps}"
        return Outcome.NOT_JUDGED, why
    if delta.high > limit + INDECISIVE * base:
        why = f"within the limit, but its interval reaches far beyond it: {what_helps}"
        return Outcome.NOT_JUDGED, why
    return Outcome.PASSED, "within the limit"
