"""The ledger's rows add up to the gap, intervals hold the truth, and nothing is clamped."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.explain.ledger import Ledger, Verdict, compare, why_not
from profkit.explain.scaling import FACTORS, scaling_table
from profkit.frame.costs import (
    DATA,
    EVALUATION,
    OUTLIER,
    OWN,
    REST,
    RunCosts,
    cost_of_sums,
    exclude_outliers,
)
from profkit.frame.device_clock import exposed_spans
from profkit.frame.estimate import Estimate
from profkit.frame.exchange import expose
from profkit.frame.exposed import TRANSFER, WAITING, input_pieces, share_data
from profkit.frame.phases import UNKNOWN
from profkit.frame.rank_sums import sum_spans
from profkit.frame.run_frame import frame_of
from profkit.frame.selection import Selection
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from profkit.vocab import PHASES
from tests.analysis.tables import Span, Step, rows_table, spans_table, steps_table

MS = 1_000_000
_SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "interval_coverage.py"

Run = Callable[..., RunCosts]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Costs of a synthetic run."""
    folder = tmp_path_factory.mktemp("runs")

    def make(**options: Any) -> RunCosts:
        path = folder / str(len(list(folder.iterdir())))
        return frame_of(Trace.open(synthetic_trace(path, **options))).costs

    return make


@st.composite
def _costs(draw: st.DrawFn) -> RunCosts:
    """A run of any phases, which may cover more than the wall clock, on one to three ranks."""
    ranks, count = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    length = st.integers(0, 10**10)
    steps = [
        Step(
            rank,
            number,
            0,
            draw(st.integers(1, 10**10)),
            sample_count=draw(st.integers(1 if known else 0, 64)) if known else 0,
        )
        for known in [draw(st.booleans())]
        for rank in range(ranks)
        for number in range(count)
    ]
    phases = draw(st.sets(st.sampled_from(PHASES)))
    spans = [
        Span(row.rank, row.step, phase, 0, "MainThread", 0, draw(length))
        for row in steps
        for phase in sorted(phases)
    ]
    return _cost_tables(steps_table(steps), spans_table(spans), Selection(np.arange(count), {}))


def _cost_tables(steps: pa.Table, spans: pa.Table, selection: Selection) -> RunCosts:
    """Costs of the selected steps, of a run without collectives."""
    sums = sum_spans(spans, selection.steps)
    exposure = expose(rows_table("collectives", []), sums.windows, selection.steps)
    return cost_of_sums(steps, sums, exposure, selection)


@settings(max_examples=150, deadline=None)
@given(_costs(), _costs())
def test_the_rows_add_up_to_the_gap_exactly(base: RunCosts, target: RunCosts) -> None:
    found = compare(base, target)
    assert sum((row.exact for row in found.rows), Fraction(0)) == found.total.exact
    wall = [
        Fraction(int(side.wall_ns.sum()), int(side.samples.sum()))
        for side in (found.base, found.target)
    ]
    assert found.total.exact == wall[1] - wall[0]
    for side in (found.base, found.target):
        assert np.array_equal(sum(side.parts.values()), side.wall_ns)
    assert sum(row.delta.value for row in found.rows) == pytest.approx(
        found.total.delta.value, abs=1
    )


def test_what_phases_claim_too_much_is_a_negative_unknown() -> None:
    steps = [Step(0, number, number * 10, number * 10 + 10) for number in range(20)]
    spans = [
        Span(0, number, "forward", 0, "MainThread", number * 10, number * 10 + 13)
        for number in range(20)
    ]
    costs = _cost_tables(steps_table(steps), spans_table(spans), Selection(np.arange(20), {}))
    assert (costs.parts[UNKNOWN] == -3).all()


def test_a_planted_cause_is_the_row_that_grew(run: Run) -> None:
    found = compare(run(steps=300), run(steps=300, seed=1, phase_ns={"data": 6 * MS}))
    grown = found.find(DATA)
    assert grown
    assert found.verdict is Verdict.REGRESSION
    assert grown.delta.value * found.samples_per_step == pytest.approx(4 * MS, rel=0.1)
    assert grown.delta.low is not None
    assert grown.delta.high is not None
    assert grown.delta.low < 4 * MS / 32 < grown.delta.high
    assert (
        compare(run(steps=300, phase_ns={"data": 6 * MS}), run(steps=300, seed=1)).verdict
        is Verdict.IMPROVEMENT
    )


def test_runs_of_different_batches_compare_by_sample(run: Run) -> None:
    twice = {
        "forward": 24 * MS,
        "backward": 48 * MS,
        "data": 4 * MS,
        "h2d": MS,
        "optimizer": 8 * MS,
    }
    found = compare(run(steps=200), run(steps=200, seed=2, batch_size=64, phase_ns=twice))
    assert found.change.value == pytest.approx(0, abs=0.03)


def test_few_steps_are_judged_by_an_exact_test(run: Run) -> None:
    few = {"steps_per_epoch": 0, "config": {"warmup": 10}}
    base = run(steps=200)
    found = compare(base, run(steps=16, **few))
    assert found.verdict is Verdict.NEUTRAL
    assert found.total.delta.level >= 0.95
    slow = run(steps=16, phase_ns={"forward": 40 * MS}, **few)
    assert compare(base, slow).verdict is Verdict.REGRESSION
    assert compare(slow, base).verdict is Verdict.IMPROVEMENT


def test_two_steps_are_a_plain_before_and_after(run: Run) -> None:
    few = run(steps=12, steps_per_epoch=0, config={"warmup": 10})
    found = compare(run(steps=200), few)
    assert found.verdict is Verdict.CANNOT_JUDGE
    assert "the target has 2 used steps of " in why_not(found)
    assert "a plain before and after: a test takes 3 steps on each side" in why_not(found)


def test_exposed_exchange_opens_into_waiting_and_transfer(run: Run) -> None:
    slow = {1: {"forward": 20 * MS}}
    found = compare(
        run(ranks=2, steps=200, buckets=1),
        run(ranks=2, steps=200, seed=4, buckets=1, rank_phase_ns=slow),
    )
    row = found.find("allreduce")
    assert row
    inside = {part.name: part for part in row.inside}
    assert sum(part.exact for part in row.inside) == row.exact
    assert inside[WAITING].delta.value * found.samples_per_step == pytest.approx(
        4 * MS, rel=0.15
    ), "8 ms on one of two ranks"
    assert abs(inside[TRANSFER].delta.value) < 0.2 * MS


def test_a_side_without_phases_leaves_input_and_rest(run: Run) -> None:
    base, log = (
        run(steps=100),
        run(steps=100, phase_ns=dict.fromkeys(["h2d", "forward", "backward", "optimizer"], 0)),
    )
    assert [row.name for row in compare(base, log).rows] == [DATA, REST]
    bare = run(steps=100, phase_ns=dict.fromkeys(["data", "forward", "backward", "optimizer"], 0))
    assert [row.name for row in compare(base, bare).rows] == [REST]


def test_sides_that_know_their_communication_alone_show_it(run: Run) -> None:
    bare = dict.fromkeys(["data", "h2d", "forward", "backward", "optimizer"], 0)
    sides = [run(steps=60, ranks=2, seed=seed, phase_ns=bare) for seed in (0, 3)]
    found = compare(*sides)
    assert [row.name for row in found.rows] == ["allreduce", REST]
    assert sum(row.exact for row in found.rows) == found.total.exact
    untimed = replace(sides[1], exchange_timed=False)
    assert [row.name for row in compare(sides[0], untimed).rows] == [REST]


def test_the_factors_multiply_out_to_the_efficiency(run: Run) -> None:
    runs = [
        ("one", 1, run(steps=150)),
        ("two", 2, run(steps=150, ranks=2, seed=5, phase_ns={"data": 5 * MS})),
    ]
    for row in scaling_table(runs):
        assert float(np.prod([row.factors[name].value for name in FACTORS])) == pytest.approx(
            row.efficiency.value, rel=1e-12
        )
    assert row.speed_up.value == pytest.approx(2 * row.efficiency.value)
    assert row.factors["data"].value < 0.95 < row.factors["computation"].value


def _with_pauses(pauses: dict[int, tuple[int, str]]) -> RunCosts:
    """Steps of 10 ms with the given pauses in some, in a phase or outside of all."""
    steps, spans, at = [], [], 0
    for number in range(200):
        pause, phase = pauses.get(number, (0, ""))
        end = at + 10 * MS + pause
        steps.append(Step(0, number, at, end))
        spans.append(Span(0, number, "forward", 0, "MainThread", at, at + 10 * MS))
        if phase:
            spans.append(Span(0, number, phase, 0, "MainThread", at + 10 * MS, end))
        at = end
    tables = steps_table(steps), spans_table(spans)
    sums = sum_spans(tables[1], np.arange(200))
    selection = exclude_outliers(tables[0], sums, Selection(np.arange(200), {}))
    return _cost_tables(*tables, selection)


def test_rare_long_steps_stand_apart_with_what_they_would_add() -> None:
    costs = _with_pauses({50: (400 * MS, ""), 100: (800 * MS, "other")})
    assert {each.reason: (each.steps, each.excess_ns) for each in costs.apart} == {
        OUTLIER: (1, 2 * MS),
        EVALUATION: (1, 4 * MS),
    }
    assert costs.steps == 198


def test_frequent_long_steps_are_how_the_job_runs() -> None:
    assert _with_pauses(dict.fromkeys(range(0, 200, 20), (400 * MS, ""))).steps == 200


def _on_device(rows: list[tuple[str, int, int, int | None, int | None]]) -> pa.Table:
    names = ("phase", "start_ns", "end_ns", "device_start_ns", "device_end_ns")
    common = {"rank": 0, "step": 0, "depth": 0, "thread": "MainThread"}
    return rows_table(
        "spans", [{**common, **dict(zip(names, row, strict=True)), "name": row[0]} for row in rows]
    )


def test_a_wait_under_the_device_s_work_is_not_exposed() -> None:
    spans = _on_device(
        [("forward", 0, 10, 2, 50), ("data", 10, 40, None, None), ("forward", 40, 45, 50, 90)]
    )
    exposed = exposed_spans(spans).filter(pc.equal(exposed_spans(spans)["phase"], "data"))
    assert exposed["end_ns"][0].as_py() - exposed["start_ns"][0].as_py() == 0


def test_a_wait_is_exposed_from_where_the_device_ran_dry() -> None:
    spans = _on_device(
        [("forward", 0, 10, 2, 25), ("data", 10, 40, None, None), ("forward", 40, 45, 42, 90)]
    )
    exposed = exposed_spans(spans).filter(pc.equal(exposed_spans(spans)["phase"], "data"))
    assert (exposed["start_ns"][0].as_py(), exposed["end_ns"][0].as_py()) == (25, 40)


def test_the_wait_is_split_by_what_was_done_to_its_batch() -> None:
    common = {"rank": 0, "step": 0, "phase": "data"}
    wait = {
        **common,
        "name": "data",
        "depth": 0,
        "thread": "MainThread",
        "start_ns": 100,
        "end_ns": 200,
    }
    pieces = [("read", 0, 120), ("decode", 120, 170), ("collate", 170, 190), ("queue", 190, 200)]
    rows = [
        {
            **common,
            "name": name,
            "depth": 1,
            "thread": "loader worker 0",
            "start_ns": start,
            "end_ns": end,
        }
        for name, start, end in pieces
    ]
    spans = rows_table("spans", [wait, *rows])
    found = share_data(*input_pieces(spans, spans, np.array([0])))
    assert {name: int(ns[0]) for name, ns in found.items()} == {
        "read": 20,
        "decode": 50,
        "collate": 20,
        "queue": 10,
    }


def test_intervals_hold_the_truth(tmp_path: Path) -> None:
    """A small `benchmarks/interval_coverage.py`, with room for the noise of few pairs."""
    script = runpy.run_path(str(_SCRIPT))
    coverage = script["measure"](tmp_path, pairs=40, steps=120, truth_steps=6_000)
    assert all(0.8 <= share <= 1 for share in coverage.values()), coverage
    assert script["identical_pairs"](tmp_path, pairs=25, steps=120) >= 0.88


def _same(found: Ledger) -> bool:
    return found.verdict is Verdict.NEUTRAL


def test_a_run_against_itself_is_neutral(run: Run) -> None:
    costs = run(steps=200)
    assert _same(compare(costs, costs))


def test_what_profkit_counts_of_itself_is_carved_out_of_unknown(tmp_path: Path) -> None:
    """Each step of a rank times six phases at the run's price, and the parts still add up."""
    trace = Trace.open(synthetic_trace(tmp_path / "run", ranks=2, steps=60, seed=3))
    costs = frame_of(trace).costs
    phases = trace.spans.filter(pc.equal(trace.spans["depth"], 0)).num_rows / trace.steps.num_rows
    assert set(costs.parts[OWN].tolist()) == {round(450.0 * phases * 2)}
    assert np.array_equal(sum(costs.parts.values()), costs.wall_ns)
    assert np.array_equal(
        costs.without_own().parts[UNKNOWN], costs.parts[UNKNOWN] + costs.parts[OWN]
    )
    row = compare(costs, costs).find(OWN)
    assert row is not None
    assert (row.exact, row.delta.value) == (Fraction(0), 0.0)


def test_a_side_that_does_not_know_its_own_cost_takes_the_row_from_both(tmp_path: Path) -> None:
    known = frame_of(Trace.open(synthetic_trace(tmp_path / "run", steps=60, seed=3))).costs
    ledger = compare(known, known.without_own())
    assert ledger.find(OWN) is None
    assert sum(row.exact for row in ledger.rows) == ledger.total.exact
    assert all(row.exact == 0 for row in ledger.rows)


@pytest.mark.parametrize(
    ("base", "target"),
    [(Estimate(2e5, 1e5, 3e5), Estimate(5e5, 1e5, 9e5)), (None, Estimate(1e5, 0.0, 2e5))],
)
def test_what_switching_profkit_off_shows_stands_beside_the_rows(
    base: Estimate | None, target: Estimate, tmp_path: Path
) -> None:
    """It is in all parts, so it is none; without control steps on one side it is not reported."""
    costs = frame_of(
        Trace.open(synthetic_trace(tmp_path / "run", ranks=2, steps=60, batch_size=32, seed=3))
    ).costs
    ledger = compare(replace(costs, switched=base), replace(costs, switched=target))
    if base is None:
        assert ledger.switched is None
        return
    assert ledger.switched is not None
    assert ledger.switched.base.value * ledger.samples_per_step == pytest.approx(2e5)
    assert ledger.switched.delta.value * ledger.samples_per_step == pytest.approx(3e5)
    assert ledger.switched.name not in {row.name for row in ledger.beside}
