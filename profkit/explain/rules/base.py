"""The contract of a rule, and the helpers that rules share.

A rule is a module of this folder with a function `find(case)`, or a name in a module of several
(`tables` in `profkit/plugins.py`). It returns at most one cause (a `Cause`), whose kind is the name
of the rule, and `None` if it sees no more than noise. A cause states its cost, the numbers behind
it, one concrete thing to try, and how specific its evidence is. A cause with the cost `None` is
always reported. A rule knows no other rule: `explain/claims.py` gives each cell of the gap to the
most specific cause that covers it.

A rule reads rows of `case.ledger`, and facts of either run in `case.before` and `case.after` (see
`Evidence`). A figure of its own is `case.after.figure(function)`, as in `more_calls.py`.

A rule decides itself whether a cost is large enough (`grew`, `is_material`). `explain/claims.py`
drops causes with an uncertain cost. `tests/rules/test_rules.py` tests every rule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias, TypeVar

from profkit.analysis.config_join import COMPUTE, NOT_SAID, Difference
from profkit.errors import UnreadableError
from profkit.explain.cells import NO_CELLS, Cells
from profkit.explain.evidence import Evidence
from profkit.explain.ledger import Ledger, Row, Verdict, judge, sum_rows
from profkit.explain.policy import POLICY
from profkit.frame.costs import DATA
from profkit.frame.device_times import HOST
from profkit.frame.estimate import Estimate, scale
from profkit.frame.phases import UNKNOWN
from profkit.text import duration
from profkit.trace import RunManifest

Figure = TypeVar("Figure")

WORK = (*COMPUTE, UNKNOWN)
"""The rows in which kernels can run; those outside all phases are seen in kernel windows alone."""

FRAMEWORKS = {
    "torch": "pytorch",
    "pytorch": "pytorch",
    "paddle": "paddle",
    "paddlepaddle": "paddle",
    "tensorflow": "tensorflow",
    "mxnet": "mxnet",
}
"""The name of a framework, by the name that a run or a log gives it."""

EXCHANGE = ("backward", "allreduce")
"""The rows of the exchange: handing messages over is backward's, waiting for them allreduce's."""


@dataclass(frozen=True)
class Case:
    """The two runs that a rule judges: manifests, ledger, and what each recorded besides."""

    base_name: str
    target_name: str
    base: RunManifest
    target: RunManifest
    ledger: Ledger
    before: Evidence
    """The base."""
    after: Evidence
    """The target."""
    cells: Cells = NO_CELLS
    """The parts of the gap; those above zero are what the target takes longer."""


class Specific(IntEnum):
    """How much the evidence of a cause says: of two in one cell, the more specific one has it."""

    SETTING = 0
    """A setting differs that can affect the row: anything else says more."""
    TIME = 1
    """A row is longer: that alone says no more than the cell."""
    PLACE = 2
    """Single ranks, steps or lines are longer."""
    MACHINE = 3
    """Something else used the machine."""
    PROCESS = 4
    """The job's own threads or processes are in its way."""
    LOCK = 5
    """One of its threads holds the lock that the loop needs."""
    WORK = 6
    """The work on the device is of another kind, by its operators."""
    OPERATOR = 7
    """The operators that were added are known."""
    COUNT = 8
    """Something is done more often, or there is more of it."""
    PART = 9
    """A part of the model, or of the schedule, is known."""
    RANK = 10
    """The same, and on which rank."""


@dataclass(frozen=True)
class Cause:
    """A cause of the gap, with its cost in ns per step of the base's batch.

    The cost is `None` if it costs nothing. `cause` separates causes of one kind.
    """

    kind: str
    cost_ns: Estimate | None
    share_of_gap: float | None
    evidence: str
    remedy: str = ""
    detail: str = ""
    specific: Specific = Specific.TIME
    rows: tuple[str, ...] = ()
    """The rows of the ledger that hold the cost; empty if that is not known."""
    open_ns: float = 0.0
    """The part of the cost that any other cause in the same rows explains better."""
    ranks: tuple[int, ...] | None = None
    """The ranks that it is about, or `()` for what all of them lose; null for both."""
    needs_processor: bool = False
    """True if it makes work take longer: neither a sleep nor work that was added and counted."""
    is_steady: bool = False
    """True if it is about usual steps, not about those that are longer than others."""
    is_gain: bool = False
    """True if the target costs that much less, because the base has the cause."""
    without_ns: Estimate | None = None
    """What a step of the target would have taken without it, by a replay; null if unknown."""
    apart: str = ""
    """The steps that hold the cost, if the figures exclude them: no row includes it."""

    @classmethod
    def from_row(
        cls,
        kind: str,
        row: Row,
        ledger: Ledger,
        evidence: str,
        remedy: str,
        *,
        detail: str = "",
        specific: Specific = Specific.TIME,
    ) -> Cause:
        """Return a cause that costs what a row grew by."""
        return cls(
            kind,
            cost(row, ledger),
            share_of_gap(row, ledger),
            evidence,
            remedy,
            detail=detail,
            specific=specific,
            rows=row.sums or (row.name,),
        )


Rule: TypeAlias = Callable[[Case], "Cause | None"]


def is_clear(cost_ns: Estimate, ledger: Ledger, *, is_recorded: bool = False) -> bool:
    """Return true if the interval of a cost begins far enough above zero.

    Chance makes no setting differ, so what `is_recorded` needs no gap.
    """
    clear = POLICY.clear_without_gap
    if is_recorded or grew(ledger.total, ledger):
        clear = POLICY.clear_with_gap
    return cost_ns.low is not None and cost_ns.low > clear * cost_ns.value


def shift(estimate: Estimate, by: float) -> Estimate:
    """Return the estimate and its interval, moved by a figure without uncertainty."""
    if estimate.low is None or estimate.high is None:
        return Estimate(estimate.value + by)
    return Estimate(estimate.value + by, estimate.low + by, estimate.high + by)


def grew(row: Row | None, ledger: Ledger) -> bool:
    """Return true if a row is surely longer, by more than runs of one job differ."""
    base = ledger.total.base.value
    return (
        row is not None
        and judge(row.delta, base) is Verdict.REGRESSION
        and row.delta.value >= POLICY.material_share * base
    )


def is_material(cost_ns: float, ledger: Ledger) -> bool:
    """Return true if a cost per step is worth reporting."""
    return cost_ns >= POLICY.material_share * ledger.total.base.value * ledger.samples_per_step


def significantly_more(before: Estimate | None, after: Estimate) -> bool:
    """Return true if a figure surely grew; one that the base does not have is zero."""
    if after.low is None:
        return False
    if before is None:
        return after.low > 0.0
    return after.low > (before.value if before.high is None else before.high)


def cost(row: Row, ledger: Ledger) -> Estimate:
    """Return the growth of a row in ns per step of the base's batch."""
    return scale(row.delta, ledger.samples_per_step)


def share_of_gap(row: Row, ledger: Ledger) -> float | None:
    """Return a row's share of the gap, or `None` if there is no gap beyond the noise."""
    return row.delta.value / ledger.total.delta.value if grew(ledger.total, ledger) else None


def share_of(cost_ns: float, ledger: Ledger) -> float | None:
    """Return the share of the gap that a cost per step is, or `None` if there is no gap."""
    if not grew(ledger.total, ledger):
        return None
    return cost_ns / (ledger.total.delta.value * ledger.samples_per_step)


def from_to(row: Row, ledger: Ledger) -> str:
    """Return a row's time per step in the order of time, as text."""
    first, then = in_time(ledger, row.base.value, row.target.value)
    factor = ledger.samples_per_step
    return f"{duration(first * factor)} to {duration(then * factor)}"


def in_time(ledger: Ledger, before: Figure, after: Figure) -> tuple[Figure, Figure]:
    """Return two figures of a case in the order of time, also if the runs changed places."""
    return (after, before) if ledger.turned else (before, after)


def here(ledger: Ledger) -> str:
    """Return the beginning of a sentence about the run with the cause, if it is the base."""
    return "in the base, " if ledger.turned else ""


def other_side(ledger: Ledger) -> str:
    """Return the name of the run without the cause."""
    return "target" if ledger.turned else "base"


def input_is_hidden(case: Case) -> bool:
    """Return true if the wait for data grew and the steps did not: the device still worked.

    Where the ranks' own processes train, nothing works during the wait.
    """
    ledger = case.ledger
    if trains_on_host(case):
        return False
    row, total = ledger.find(DATA), ledger.total.delta
    if row is None or not grew(row, ledger):
        return False
    may_show = total.high is not None and total.high > row.delta.value
    return total.value < POLICY.hidden_input_share * row.delta.value and not may_show


def trains_on_host(case: Case) -> bool:
    """Return true if ranks of the run train on the host's processors."""
    with contextlib.suppress(UnreadableError):
        return any(rank.manifest.device == HOST for rank in case.after.trace.ranks)
    return False


def stated_input_ns(run: RunManifest) -> float | None:
    """Return the wait for data per step that a log states for the whole run."""
    found = None
    for each in run.config.get("stated") or []:
        if isinstance(each, dict) and each.get("what") == "data time" and each.get("unit") == "s":
            value = each.get("value")
            if isinstance(value, int | float):
                found = 1e9 * float(value)
    return found


def compute_row(ledger: Ledger, names: Sequence[str] = COMPUTE) -> Row:
    """Return all that the ranks' own processes compute as one row.

    Time outside all phases is no part of it: the job may write, sleep or wait there.
    """
    return sum_rows(ledger, "computing", names)


def computing_factor(ledger: Ledger) -> float:
    """Return by which factor computing takes longer; 1 if it takes less time, or is not known."""
    row = compute_row(ledger)
    if row.base.value <= 0:
        return 1.0
    return max(1.0, row.target.value / row.base.value)


def knobs_for(case: Case, row: str) -> Iterator[str]:
    """Yield the settings that differ and can affect a row, in words."""
    for each in case.ledger.differences:
        if each.can_affect(row, on_host=trains_on_host(case)):
            yield describe_difference(each)


def differs(case: Case, name: str) -> bool:
    """Return true if a setting differs that both runs state."""
    for each in case.ledger.differences:
        if each.name == name and NOT_SAID not in {each.base, each.target}:
            return True
    return False


def describe_difference(each: Difference) -> str:
    return f"{each.name} {each.base} and {each.target}"
