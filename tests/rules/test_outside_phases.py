"""Time that the loop spends between phases is named with its place, unless all is slower."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from profkit.explain.evidence_counters import Load
from profkit.explain.explained import Explained, explain
from profkit.explain.rules import garbage_pauses
from profkit.frame.estimate import Estimate
from profkit.testing import synthetic_trace
from profkit.trace import Trace

MS = 1_000_000
ADDED_NS = 12 * MS
IDLE = Load(cores=8, own=1.0, workers=1.0, machine=2.5, switches_per_s=5.0)

Compare = Callable[..., Explained]


def _delay(trace: Trace, ranks: tuple[int, ...], after: str, added_ns: int) -> Trace:
    """Add time after a phase of each step, on these ranks."""
    spans = trace.spans
    is_it = pc.and_(pc.equal(spans["phase"].cast("string"), after), pc.equal(spans["depth"], 0))
    for rank in ranks:
        rows = spans.filter(pc.and_(is_it, pc.equal(spans["rank"], rank)))
        ends = np.sort(rows["end_ns"].to_numpy())
        for name in ("spans", "steps", "collectives"):
            vars(trace)[name] = _shift(getattr(trace, name), rank, ends, added_ns)
    return trace


def _shift(table: pa.Table, rank: int, ends: Any, added_ns: int) -> pa.Table:
    for name in ("start_ns", "end_ns"):
        if name not in table.column_names:
            continue
        times = table[name].to_numpy()
        later = np.searchsorted(ends, times, side="left" if name == "end_ns" else "right")
        mine = table["rank"].to_numpy() == rank
        moved = np.where(mine, times + added_ns * later, times)
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(moved))
    return table


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    def compare(
        after: str = "backward",
        added_ns: int = ADDED_NS,
        late: tuple[int, ...] = (0, 1),
        ranks: int = 2,
        known_ns: int = 0,
        known: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Explained:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        base = Trace.open(
            synthetic_trace(folder / "base", ranks=ranks, steps=120, seed=1, config=known)
        )
        target = Trace.open(
            synthetic_trace(folder / "target", ranks=ranks, steps=120, seed=2, **options)
        )
        if known_ns:
            base = _delay(base, late[:ranks], after, known_ns)
        return explain(base, _delay(target, late[:ranks], after, added_ns))

    return compare


@pytest.mark.parametrize(
    ("after", "ranks", "place"),
    [
        ("backward", 1, "between backward and optimizer"),
        ("optimizer", 1, "between optimizer and the step's end"),
        ("data", 2, "between data and h2d"),
        ("forward", 2, "between forward and backward"),
    ],
)
def test_a_pause_between_phases_is_named_with_its_place(
    after: str, ranks: int, place: str, compare: Compare
) -> None:
    view = compare(after, ranks=ranks)
    cause = view.causes[0]
    assert (cause.kind, cause.detail, cause.rows) == ("time_outside_phases", place, ("unknown",))
    assert cause.cost_ns is not None
    assert cause.cost_ns.value == pytest.approx(ADDED_NS, rel=0.05)
    assert len([each for each in view.causes if each.cost_ns]) == 1
    assert place in cause.evidence


@pytest.mark.parametrize("sampled", [False, True])
def test_lines_that_were_sampled_need_no_further_run(sampled: bool, compare: Compare) -> None:
    view = compare(ranks=1, stacks=sampled)
    cause = view.causes[0]
    assert cause.kind == "time_outside_phases"
    assert ("--lines on" in cause.remedy) == (not sampled)


def test_a_pause_on_one_rank_is_a_late_rank(compare: Compare) -> None:
    view = compare("data", late=(1,))
    assert [each.kind for each in view.causes if each.cost_ns][:1] == ["late_rank"]
    assert "time_outside_phases" not in [each.kind for each in view.causes]


@pytest.mark.parametrize(
    "changed",
    [{"precision": "fp64"}, {"parameters_count": 9}, {"parameters_bytes": {"float64": 16}}],
)
def test_other_weights_take_the_loops_own_code_longer(
    changed: Mapping[str, Any], compare: Compare
) -> None:
    plain = {"precision": "fp32", "parameters_count": 2, "parameters_bytes": {"float32": 8}}
    view = compare(ranks=1, known=plain, config={**plain, **changed})
    assert (view.causes[0].kind, view.causes[0].rows) == ("setting_changed", ("unknown",))
    assert {each.kind for each in view.causes} <= {"setting_changed", "more_work"}


def test_little_time_is_no_cause(compare: Compare) -> None:
    assert [each for each in compare(added_ns=MS // 2).causes if each.cost_ns] == []


def test_pauses_of_the_collector_explain_it(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = compare(ranks=1)
    paused = {
        view.case.before.trace.path: Estimate(0.0, 0.0, 0.0),
        view.case.after.trace.path: Estimate(12.0 * MS, 11.0 * MS, 13.0 * MS),
    }
    monkeypatch.setattr(garbage_pauses, "garbage_ns", lambda evidence: paused[evidence.trace.path])
    again = explain(view.case.before.trace, view.case.after.trace)
    assert [each.kind for each in again.causes] == ["garbage_pauses"]
