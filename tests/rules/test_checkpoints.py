"""What a loop does behind a checkpoint, such as flushing the file, is a part of its cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profkit.explain.causes import find_all
from profkit.explain.evidence import Evidence
from profkit.explain.rules import checkpoint_in_training
from profkit.explain.rules.base import Case
from profkit.plugins import RULES
from tests.rules.test_outside_phases import ADDED_NS, MS, Compare, compare

__all__ = ["compare"]

WRITTEN_NS = 6 * MS


def _case(compare: Compare, after: str, *, checkpoints_ns: float = WRITTEN_NS) -> Case:
    """Return two runs; the second writes checkpoints, and takes longer after this phase."""
    view = compare(after, ranks=1, phase_ns={"other": WRITTEN_NS})
    sides = [Evidence(each.trace, each.costs) for each in (view.case.before, view.case.after)]
    for side, ns in zip(sides, (0.0, checkpoints_ns), strict=True):
        vars(side)["other_ns"] = {"checkpoint": ns, "logging": WRITTEN_NS - checkpoints_ns}
    return replace(view.case, before=sides[0], after=sides[1])


def test_time_behind_a_checkpoint_is_counted_with_it(compare: Compare) -> None:
    case = _case(compare, "other")
    cause = checkpoint_in_training.find(case)
    assert cause is not None
    assert cause.rows == ("other", "unknown")
    assert cause.cost_ns is not None
    assert cause.cost_ns.value == pytest.approx(WRITTEN_NS + ADDED_NS, rel=0.05)
    assert "the time behind them, outside all phases, is 12" in cause.evidence
    found = find_all(case, [RULES.load(each) for each in RULES.names()])
    assert [each.kind for each in found if each.cost_ns] == ["checkpoint_in_training"]


def test_time_elsewhere_is_no_part_of_a_checkpoint(compare: Compare) -> None:
    case = _case(compare, "backward")
    cause = checkpoint_in_training.find(case)
    assert cause is not None
    assert cause.rows == ("other",)
    assert cause.cost_ns is not None
    assert cause.cost_ns.value == pytest.approx(WRITTEN_NS, rel=0.1)
    assert "behind" not in cause.evidence
    found = find_all(case, [RULES.load(each) for each in RULES.names()])
    kinds = [each.kind for each in found if each.cost_ns]
    assert kinds == ["time_outside_phases", "checkpoint_in_training"]


def test_time_behind_other_work_of_the_phase_is_not_counted(compare: Compare) -> None:
    """The place is behind the phase `other`, in which hardly any checkpoint was written."""
    cause = checkpoint_in_training.find(_case(compare, "other", checkpoints_ns=0.3 * WRITTEN_NS))
    assert cause is not None
    assert cause.rows == ("other",)
