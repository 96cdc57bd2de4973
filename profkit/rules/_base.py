"""What every rule is: `find(case)` gives at most one finding, whose kind is the rule's file name.

To add a rule, add a module here with such a function. A rule that sees nothing beyond the noise
says nothing. It names its cost, the numbers behind it, and one concrete thing to try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from profkit.analysis.costs import INPUT
from profkit.analysis.estimate import Estimate
from profkit.analysis.exchange import LateRank
from profkit.analysis.ledger import Ledger, Row, Verdict, judge, scale
from profkit.text import duration
from profkit.trace import RunManifest


@dataclass(frozen=True)
class Case:
    """Two runs as a rule sees them. `late_rank` is the target's."""

    base_name: str
    target_name: str
    base: RunManifest
    target: RunManifest
    ledger: Ledger
    late_rank: LateRank | None = None


@dataclass(frozen=True)
class Finding:
    """A cause. Its cost is in ns per step of the base's batch; `None` where it costs nothing."""

    kind: str
    cost_ns: Estimate | None
    share_of_gap: float | None
    evidence: str
    remedy: str = ""


Rule: TypeAlias = Callable[[Case], "Finding | None"]


def find_all(case: Case, rules: Iterable[Rule]) -> tuple[Finding, ...]:
    """What the rules find, the costliest first."""
    found = [finding for rule in rules if (finding := rule(case)) is not None]
    return tuple(sorted(found, key=lambda each: -each.cost_ns.value if each.cost_ns else 0.0))


def grew(row: Row | None, ledger: Ledger) -> bool:
    """Whether a row surely takes longer on the target, by more than next to nothing of the base's time."""
    return row is not None and judge(row.delta, ledger.total.base.value) is Verdict.REGRESSION


def cost(row: Row, ledger: Ledger) -> Estimate:
    return scale(row.delta, ledger.samples_per_step)


def share_of_gap(row: Row, ledger: Ledger) -> float | None:
    """Which part of the gap a row is; `None` where there is no gap beyond the noise."""
    return row.delta.value / ledger.total.delta.value if grew(ledger.total, ledger) else None


def from_to(row: Row, ledger: Ledger) -> str:
    return " to ".join(duration(side.value * ledger.samples_per_step) for side in (row.base, row.target))


OVERLAPPED = 0.25
"""Where less than this part of a longer wait for input shows in the total, other work hid the wait."""


def input_is_hidden(ledger: Ledger) -> bool:
    """Whether the wait for input grew and the steps did not: the host waited while the device still worked."""
    row = ledger.find(INPUT)
    return row is not None and grew(row, ledger) and ledger.total.delta.value < OVERLAPPED * row.delta.value


def stated_input_ns(run: RunManifest) -> float | None:
    """The wait for input a step as a log states it for the whole run, where its lines do not have it."""
    stated = [each for each in run.config.get("stated") or [] if isinstance(each, dict) and each.get("what") == "data time" and each.get("unit") == "s"]
    values = [float(each["value"]) for each in stated if isinstance(each.get("value"), int | float)]
    return 1e9 * values[-1] if values else None


COMPUTE = ("forward", "backward", "optimizer")


def affected(rows: str) -> set[str]:
    """The rows that a difference's words name."""
    words = set(rows.replace(",", " ").split())
    return words | (set(COMPUTE) if "compute" in words else set())


def knobs_for(case: Case, row: str) -> Iterator[str]:
    """The settings that differ and can affect a row, in words."""
    for each in case.ledger.differences:
        if row in affected(each.rows):
            yield f"{each.name} {each.base} and {each.target}"
