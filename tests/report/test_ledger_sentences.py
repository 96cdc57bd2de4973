"""The sentences of a comparison at the edges of what was measured."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from profkit.analysis.overview import build_overview
from profkit.explain.coverage import Coverage
from profkit.explain.explained import Explained, explain
from profkit.explain.ledger import Verdict
from profkit.explain.rules.base import Cause
from profkit.frame.compiling import Compiling
from profkit.frame.estimate import Estimate
from profkit.frame.exchange import LateRank
from profkit.frame.selection import CAPTURED
from profkit.instrument.rows import EventRow
from profkit.report import cause_words, ledger_words
from profkit.report.exchange_sections import COMPILED_WAITS, by_rank, say_late
from profkit.show.figures import reason_name
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from profkit.vocab import EventKind

MS = 1_000_000
SLOWER = {"forward": 30 * MS, "backward": 48 * MS}

Pair: TypeAlias = Callable[[dict[str, Any], dict[str, Any]], Explained]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    def run(base: dict[str, Any], target: dict[str, Any]) -> Explained:
        sides = []
        for name, seed, options in (("base", 1, base), ("target", 2, target)):
            made = {"steps": 60, "seed": seed, **options}
            sides.append(Trace.open(synthetic_trace(tmp_path / name, **made)))
        return explain(sides[0], sides[1])

    return run


def test_rows_that_surely_changed_are_not_called_noise(pair: Pair) -> None:
    view = pair({}, {"phase_ns": SLOWER})
    ledger = view.ledger
    assert not view.causes
    words = cause_words.no_cause_words(ledger)
    assert words == "No rule names what changed by more than the noise: forward, backward."
    assert cause_words.no_cause_words(ledger, Coverage(0.0, False, "forward", 0.5)) == ""
    equal = dataclasses.replace(ledger, rows=())
    assert cause_words.no_cause_words(equal) == "No cause stands out from the noise."


@pytest.mark.parametrize("is_base", [True, False])
def test_a_run_of_first_steps_alone_is_not_compared_with_a_steady_one(
    is_base: bool, pair: Pair
) -> None:
    short: dict[str, Any] = {"steps": 4, "steps_per_epoch": 0}
    view = pair(short, {}) if is_base else pair({}, short)
    assert view.ledger.verdict is Verdict.CANNOT_JUDGE
    words = ledger_words.verdict_words(view.ledger)
    assert f"the {'base' if is_base else 'target'}'s first steps, which are slower" in words


def test_two_runs_of_first_steps_are_compared(pair: Pair) -> None:
    short: dict[str, Any] = {"steps": 4, "steps_per_epoch": 0}
    assert not pair(short, short).ledger.unlike


def test_a_part_is_most_of_a_difference_only_if_it_is(pair: Pair) -> None:
    view = pair({"others": None}, {"phase_ns": SLOWER, "others": None})
    words = ledger_words.verdict_words(view.ledger)
    assert "; most of the difference is backward" in words
    spread = {"forward": 21 * MS, "backward": 33 * MS, "optimizer": 8 * MS}
    view = pair_again(view, spread)
    words = ledger_words.verdict_words(view.ledger)
    assert "the largest part of the difference is" in words


def pair_again(view: Explained, phases: dict[str, int]) -> Explained:
    """Compare the base of a pair with another target."""
    folder = view.case.after.trace.path.with_name("other")
    target = synthetic_trace(folder, steps=60, seed=2, phase_ns=phases, others=None)
    return explain(view.case.before.trace, Trace.open(target))


def test_profkits_cost_is_never_said_to_be_below_zero(pair: Pair) -> None:
    view = pair({}, {})
    noisy = Estimate(-0.9 * MS, -3.0 * MS, 1.2 * MS)
    sides = {
        name: dataclasses.replace(getattr(view.ledger, name), switched=cost)
        for name, cost in (("base", noisy), ("target", Estimate(2.0 * MS, 1.0 * MS, 3.0 * MS)))
    }
    words = ledger_words.switched_words(dataclasses.replace(view.ledger, **sides))
    assert "not above the noise (at most 1.20 ms) and 2.00 ms, spread over the rows" in words


def test_a_cost_is_the_whole_gap_if_its_interval_holds_the_gap(pair: Pair) -> None:
    ledger = pair({}, {"phase_ns": SLOWER}).ledger
    gap_ns = ledger.total.delta.value * ledger.samples_per_step
    for low, words in ((0.9, "within its interval"), (1.04, "that is more than the gap")):
        cost = Estimate(1.1 * gap_ns, low * gap_ns, 1.3 * gap_ns)
        said = cause_words.cause_cost(Cause("late_rank", cost, 1.1, ""), ledger)
        assert words in said
        assert "110 %" not in said


def test_no_row_has_more_than_the_gap(pair: Pair) -> None:
    row = Coverage(share=0.0, is_bound=False, row="input", row_share=2.25, settings=())
    assert "More than all of the gap is in input" in cause_words.coverage_words(row, is_gain=False)


def test_an_exchange_of_which_a_rank_is_missing_is_not_said_to_be_exposed(tmp_path: Path) -> None:
    """Nobody knows how much of it was hidden, so no zero is shown."""
    base = synthetic_trace(tmp_path / "base", steps=60, ranks=2, seed=1)
    target = synthetic_trace(tmp_path / "target", steps=60, ranks=2, seed=2)
    shutil.rmtree(target / "r00001")
    view = explain(Trace.open(base), Trace.open(target))
    assert not view.ledger.beside
    assert any("1 of 2 ranks left no steps" in caveat for caveat in view.caveats)


def test_what_is_not_measured_is_a_caveat_of_a_comparison(tmp_path: Path) -> None:
    sides = [Trace.open(synthetic_trace(tmp_path / name, steps=60)) for name in ("a", "b")]
    row = EventRow(None, 1, EventKind.UNMEASURED, "updates by others")
    schema = sides[1].events.schema
    vars(sides[1])["events"] = pa.Table.from_pylist([{"rank": 0, **row._asdict()}], schema=schema)
    assert any(
        "not measured: updates by others" in each for each in explain(sides[0], sides[1]).caveats
    )


def test_the_share_of_a_late_rank_is_of_the_waiting_of_all_ranks() -> None:
    """On two ranks, all of the other's wait is for it; it waits itself in some steps."""
    said = say_late(LateRank(1, share=0.77, waited_ns=10 * MS, phase="data", excess_ns=8 * MS))
    assert "the others wait 10.0 ms per step, and 77 % of the waiting of all ranks" in said
    assert "of it" not in said


def test_excluded_steps_are_not_called_lines() -> None:
    """Behind their number, `9 lines captured` would be nine lines, and not nine steps."""
    assert "lines" not in reason_name(CAPTURED)


def test_what_compiled_code_waits_for_may_be_called_hidden(tmp_path: Path) -> None:
    """It waits in C++ for the collectives of its graph, so that no wait is seen in the phase."""
    view = build_overview(Trace.open(synthetic_trace(tmp_path / "run", ranks=2)))
    assert view.exchange is not None
    hides = [dataclasses.replace(each, hidden_ns=5e6) for each in view.exchange.ranks]
    assert COMPILED_WAITS not in by_rank(view, hides).notes
    nothing = np.empty(0, np.int64)
    none = np.empty((0, 0))
    compiled = Compiling(nothing, (), none, none.astype(bool), 100, 1, 0.0, (), ())
    compiles = dataclasses.replace(view, compiling=compiled)
    assert COMPILED_WAITS in by_rank(compiles, hides).notes
    shown = [dataclasses.replace(each, hidden_ns=0.0) for each in view.exchange.ranks]
    assert COMPILED_WAITS not in by_rank(compiles, shown).notes
