"""A run compared with all runs that were a baseline, instead of with the last one alone.

Two runs of the same job differ by more than their steps show. The runs that were the baseline
before show by how much, and when the job itself changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from profkit.analysis.run_series import compare_newest, find_course
from profkit.analysis.views.history import History, build_history, from_records, read_past_run
from profkit.errors import ProfkitError
from profkit.explain.gate import Judgement, judge_change
from profkit.explain.ledger import TOTAL, Ledger, why_not_at_all
from profkit.frame.estimate import Estimate
from profkit.text import plural
from profkit.trace import Trace

MORE_RUNS = "more runs of the baseline are needed ('profkit explain --save-baseline')"


@dataclass(frozen=True)
class Past:
    """The earlier baselines of the target's setting, and the target compared with their level."""

    history: History
    """The earlier baselines, oldest first, and the target as the last run."""
    level: int
    """The earlier baselines since the job changed last."""
    change: Estimate | None
    """How much more time a sample takes than at that level, with a prediction interval.

    It is null if there are too few runs to know how runs differ, or if all of them are equal.
    """
    why_not: str = ""


def compare_with_past(records: Sequence[Any], targets: Sequence[Trace], last: int) -> Past | None:
    """Return the comparison with the `last` baselines, or `None` if none is comparable.

    Repeats of the target have intervals of their own, and are not compared. Neither is a target
    without a figure: why it has none is said where it is compared with the last baseline.
    """
    if not records or len(targets) > 1:
        return None
    try:
        newest = read_past_run(targets[0])
    except ProfkitError:
        return None
    kind = newest.setting, newest.per_sample
    earlier = []
    for run in from_records(records):
        is_target = (run.name, run.created_ns) == (newest.name, newest.created_ns)
        if (run.setting, run.per_sample) == kind and not is_target:
            earlier.append(run)
    earlier = earlier[-last:]
    if not earlier:
        return None
    ordered = build_history(earlier).runs
    course = find_course([run.ns for run in ordered])
    level = ordered[course.since :]
    change = compare_newest([*(run.ns for run in level), newest.ns])
    history = History(newest.setting, (*ordered, newest), course)
    why_not = ""
    if change is None:
        are_equal = len(level) > 1 and len({run.ns for run in level}) == 1
        equal = ", which do not differ at all" if are_equal else ""
        why_not = f"{plural(len(level), 'run')} at the present level{equal}; {MORE_RUNS}"
    return Past(history, len(level), change, why_not)


def judge_by_past(
    judgements: Sequence[Judgement], past: Past | None, ledger: Ledger
) -> tuple[Judgement, ...]:
    """Judge the gates of the total by all earlier baselines, if these show how runs differ."""
    found = []
    for judged in judgements:
        gate = judged.gate
        if past is None or past.change is None or gate.row != TOTAL or why_not_at_all(ledger):
            found.append(judged)
            continue
        step_ns = ledger.total.base.value * ledger.samples_per_step
        limit = gate.share if gate.share is not None else (gate.step_ns or 0.0) / step_ns
        outcome, why = judge_change(past.change, limit, 1.0, MORE_RUNS)
        why = f"{why} (against {plural(past.level, 'earlier baseline')})"
        found.append(dataclasses.replace(judged, outcome=outcome, why=why))
    return tuple(found)
