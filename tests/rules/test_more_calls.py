"""A step that computes more often is told from one that only takes longer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from profkit.explain.evidence import Evidence
from profkit.explain.explained import explain
from profkit.explain.rules import more_calls
from profkit.explain.rules._calls import Calls, count_calls
from profkit.explain.rules.base import Case, Cause
from profkit.explain.turned import turn
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from profkit.vocab import ZERO_GRAD

MS = 1_000_000
TWICE = {"forward": 24 * MS, "backward": 48 * MS}


def _case(
    folder: Path, phases: Mapping[str, int], before: Calls, after: Calls, *, is_gain: bool = False
) -> Case:
    """Return a case whose slower side has `phases`; with `is_gain` that is the base, turned."""
    sides = []
    for name, seed, own in (("base", 1, {}), ("target", 2, phases)):
        path = synthetic_trace(folder / name, steps=60, seed=seed, phase_ns=own)
        sides.append(Trace.open(path))
    if is_gain:
        sides.reverse()
    case = explain(sides[0], sides[1]).case
    if is_gain:
        case = turn(case)
    for evidence, calls in ((case.before, before), (case.after, after)):
        evidence.figures[count_calls] = {"forward": calls, "backward": calls}
    return case


def _found(case: Case) -> Cause:
    cause = more_calls.find(case)
    assert cause is not None
    assert cause.cost_ns is not None
    return cause


def test_twice_the_iterations_cost_what_they_take_and_are_named_both_ways(tmp_path: Path) -> None:
    case = _case(tmp_path, TWICE, Calls(4, 0.0), Calls(8, 0.0))
    cause = _found(case)
    assert cause.cost_ns is not None
    assert cause.cost_ns.value == pytest.approx(36 * MS, rel=0.05)
    assert cause.rows == ("forward", "backward")
    words = "went in forward from 4 to 8 times, in backward from 4 to 8 times"
    assert words in cause.evidence
    folder = tmp_path / "gain"
    folder.mkdir()
    gain = _found(_case(folder, TWICE, Calls(4, 0.0), Calls(8, 0.0), is_gain=True))
    words = "went in forward from 8 to 4 times, in backward from 8 to 4 times"
    assert words in gain.evidence  # sentences keep the order of time


def test_what_more_calls_do_not_explain_is_no_cost_of_theirs(tmp_path: Path) -> None:
    cause = _found(_case(tmp_path, TWICE, Calls(4, 0.0), Calls(6, 0.0)))
    assert cause.cost_ns is not None
    assert cause.cost_ns.value == pytest.approx(18 * MS, rel=0.05)


@pytest.mark.parametrize(
    ("phases", "before", "after"),
    [
        (TWICE, Calls(4, 0.0), Calls(4, 0.0)),
        (TWICE, Calls(40, 9.0), Calls(60, 9.0)),
        ({"forward": 14 * MS, "backward": 28 * MS}, Calls(4, 0.0), Calls(12, 0.0)),
        ({}, Calls(4, 0.0), Calls(8, 0.0)),
    ],
    ids=["as often", "by chance", "shorter calls", "no longer"],
)
def test_nothing_is_said_without_more_calls_that_take_longer(
    phases: Mapping[str, int], before: Calls, after: Calls, tmp_path: Path
) -> None:
    assert more_calls.find(_case(tmp_path, phases, before, after)) is None


def test_resets_of_gradients_are_no_updates(tmp_path: Path) -> None:
    """A job that resets them twice as often does not call its optimizer more often."""
    trace = Trace.open(synthetic_trace(tmp_path / "run", steps=40, ranks=2))
    evidence = Evidence(trace, explain(trace, trace).case.before.costs)
    usual = count_calls(evidence)
    is_update = pc.equal(trace.spans["phase"].cast(pa.string()), "optimizer")
    updates = trace.spans.filter(is_update)
    column = trace.spans.schema.get_field_index("name")
    names = pa.array([ZERO_GRAD] * len(updates), pa.string())
    field = updates.schema.field(column)
    resets = updates.set_column(column, field, names.cast(field.type))
    vars(trace)["spans"] = pa.concat_tables([trace.spans, resets, resets])
    assert count_calls(evidence) == usual


def test_calls_are_counted_per_step_and_rank(tmp_path: Path) -> None:
    trace = Trace.open(synthetic_trace(tmp_path / "run", steps=40, ranks=2))
    counted = count_calls(Evidence(trace, explain(trace, trace).case.before.costs))
    assert {name: calls.mean for name, calls in counted.items()} == {
        "forward": 1.0,
        "backward": 1.0,
        "optimizer": 1.0,
    }
    assert all(calls.error == 0 for calls in counted.values())
