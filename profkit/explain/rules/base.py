"""What every rule is: `find(case)` gives at most one finding, whose kind is the rule's file name.

To add a rule, add a module here with such a function. A rule that sees nothing beyond the noise
says nothing. It names its cost, the numbers behind it, and one concrete thing to try.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from profkit.analysis.costs import INPUT
from profkit.analysis.estimate import Estimate, scale
from profkit.analysis.exchange import LateRank
from profkit.analysis.phases import UNKNOWN
from profkit.explain.evidence import Evidence
from profkit.explain.ledger import Ledger, Row, Verdict, judge, sum_rows
from profkit.text import duration
from profkit.trace import RunManifest

MATERIAL = 0.02
"""What costs less than this share of the base's step is no finding: two runs of one job differ by as much."""

CLEAR_OF_A_GAP, CLEAR_WITHOUT_A_GAP = 0.15, 1 / 3
"""An interval that begins below this part of the cost itself is too near to nothing: of the many things that are looked at, some look like a cause by chance.
Where the whole is not surely slower, more of them do."""

MOST_OF_IT = 0.5
"""A cause that explains at least this part of another's cost is that cost's cause."""

SETTING = "setting_changed"
"""That a setting differs is the cause of whatever has no better one."""


@dataclass(frozen=True)
class Case:
    """Two runs as a rule sees them: what they are, where their time goes, and what each recorded besides."""

    base_name: str
    target_name: str
    base: RunManifest
    target: RunManifest
    ledger: Ledger
    before: Evidence
    after: Evidence

    @property
    def late_rank(self) -> LateRank | None:
        """The target's."""
        return self.after.late_rank


@dataclass(frozen=True)
class Finding:
    """A cause. Its cost is in ns per step of the base's batch; `None` where it costs nothing.

    `cause` tells causes of one kind apart. `takes` says how much of other kinds' cost is this one's, in ns a
    step, so that nothing is told twice.
    """

    kind: str
    cost_ns: Estimate | None
    share_of_gap: float | None
    evidence: str
    remedy: str = ""
    cause: str = ""
    takes: Mapping[str, float] = field(default_factory=dict)


Rule: TypeAlias = Callable[[Case], "Finding | None"]


def find_all(case: Case, rules: Iterable[Rule]) -> tuple[Finding, ...]:
    """What the rules find, the costliest first."""
    found = [
        finding
        for rule in rules
        if (finding := rule(case)) is not None and is_certain(finding, case.ledger)
    ]
    return tuple(
        sorted(
            settle(found, case.ledger),
            key=lambda each: -each.cost_ns.value if each.cost_ns else 0.0,
        )
    )


def is_certain(finding: Finding, ledger: Ledger) -> bool:
    """Whether what it costs, if it costs anything, is sure; a cost without an interval is no estimate."""
    return (
        finding.cost_ns is None or finding.cost_ns.low is None or is_clear(finding.cost_ns, ledger)
    )


def is_clear(cost_ns: Estimate, ledger: Ledger) -> bool:
    """Whether a cost stays clear of nothing."""
    clear = CLEAR_OF_A_GAP if grew(ledger.total, ledger) else CLEAR_WITHOUT_A_GAP
    return cost_ns.low is not None and cost_ns.low > clear * cost_ns.value


def all_of(*kinds: str) -> Mapping[str, float]:
    """These kinds have no cost of their own beside the one that explains them."""
    return dict.fromkeys(kinds, math.inf)


def settle(found: Sequence[Finding], ledger: Ledger) -> Iterator[Finding]:
    """Each finding without what a more specific one explains; one that is mostly explained is not told."""
    for finding in found:
        owed = sum(_takes(each, finding) for each in found if each is not finding)
        if finding.cost_ns is None or not owed:
            yield finding
        elif owed < MOST_OF_IT * finding.cost_ns.value:
            left = finding.cost_ns.value - owed
            yield dataclasses.replace(
                finding, cost_ns=shift(finding.cost_ns, -owed), share_of_gap=share_of(left, ledger)
            )


def _takes(one: Finding, other: Finding) -> float:
    """How much of the other's cost is this one's: at most what this one costs, and nothing of a cause that costs nothing."""
    if one.cost_ns is None:
        return 0.0
    return min(
        one.cost_ns.value, math.inf if other.kind == SETTING else one.takes.get(other.kind, 0.0)
    )


def shift(estimate: Estimate, by: float) -> Estimate:
    return Estimate(
        estimate.value + by,
        None if estimate.low is None else estimate.low + by,
        None if estimate.high is None else estimate.high + by,
    )


def grew(row: Row | None, ledger: Ledger) -> bool:
    """Whether a row surely takes longer on the target, by more than runs of one job differ."""
    base = ledger.total.base.value
    return (
        row is not None
        and judge(row.delta, base) is Verdict.REGRESSION
        and row.delta.value >= MATERIAL * base
    )


def is_material(cost_ns: float, ledger: Ledger) -> bool:
    """Whether a cost a step is worth telling."""
    return cost_ns >= MATERIAL * ledger.total.base.value * ledger.samples_per_step


def significantly_more(before: Estimate | None, after: Estimate) -> bool:
    """Whether a figure surely grew; one that the base does not have is taken for none."""
    return after.low is not None and after.low > (
        (before.high if before.high is not None else before.value) if before is not None else 0.0
    )


def share_of(cost_ns: float, ledger: Ledger) -> float | None:
    """Which part of the gap a cost a step is; `None` where there is no gap beyond the noise."""
    return (
        cost_ns / (ledger.total.delta.value * ledger.samples_per_step)
        if grew(ledger.total, ledger)
        else None
    )


def cost(row: Row, ledger: Ledger) -> Estimate:
    return scale(row.delta, ledger.samples_per_step)


def share_of_gap(row: Row, ledger: Ledger) -> float | None:
    """Which part of the gap a row is; `None` where there is no gap beyond the noise."""
    return row.delta.value / ledger.total.delta.value if grew(ledger.total, ledger) else None


def from_to(row: Row, ledger: Ledger) -> str:
    return " to ".join(
        duration(side.value * ledger.samples_per_step) for side in (row.base, row.target)
    )


OVERLAPPED = 0.25
"""Where less than this part of a longer wait for input shows in the total, other work hid the wait."""


def input_is_hidden(ledger: Ledger) -> bool:
    """Whether the wait for input grew and the steps did not: the host waited while the device still worked."""
    row, total = ledger.find(INPUT), ledger.total.delta
    may_show = total.high is not None and row is not None and total.high > row.delta.value
    return (
        row is not None
        and grew(row, ledger)
        and total.value < OVERLAPPED * row.delta.value
        and not may_show
    )


def stated_input_ns(run: RunManifest) -> float | None:
    """The wait for input a step as a log states it for the whole run, where its lines do not have it."""
    stated = [
        each
        for each in run.config.get("stated") or []
        if isinstance(each, dict) and each.get("what") == "data time" and each.get("unit") == "s"
    ]
    values = [float(each["value"]) for each in stated if isinstance(each.get("value"), int | float)]
    return 1e9 * values[-1] if values else None


COMPUTE = ("forward", "backward", "optimizer")
WORK = (*COMPUTE, UNKNOWN)
"""The rows in which the ranks' own processes work; what belongs to no phase is theirs too."""


def compute_row(ledger: Ledger) -> Row:
    """All that the ranks' own processes compute, as one row."""
    return sum_rows(ledger, "computing", WORK)


def affected(rows: str) -> set[str]:
    """The rows that a difference's words name."""
    words = set(rows.replace(",", " ").split())
    return words | (set(COMPUTE) if "compute" in words else set())


def knobs_for(case: Case, row: str) -> Iterator[str]:
    """The settings that differ and can affect a row, in words."""
    for each in case.ledger.differences:
        if row in affected(each.rows):
            yield f"{each.name} {each.base} and {each.target}"
