"""Costs clearly above zero, single late ranks, and skipped steps without a report."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from profkit.explain.claims import is_certain, rank
from profkit.explain.evidence import Evidence
from profkit.explain.explained import explain
from profkit.explain.rules import bad_samples, garbage_pauses
from profkit.explain.rules._input import is_slow_on_all_ranks, making_ns
from profkit.explain.rules.base import Case, Cause, Specific
from profkit.explain.rules.skipped_amp_steps import share_of_lowered_scales
from profkit.frame.estimate import Estimate
from profkit.frame.selection import PARTIAL_BATCH, Selection
from profkit.report.cause_words import cause_cost
from profkit.testing import synthetic_trace
from profkit.trace import Trace

MS = 1_000_000


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A run of two ranks and its repeat."""
    folder = tmp_path_factory.mktemp("runs")
    base, again = (
        synthetic_trace(folder / str(seed), ranks=2, steps=120, seed=seed) for seed in (1, 2)
    )
    return explain(Trace.open(base), Trace.open(again)).case


@pytest.mark.parametrize(("low", "told"), [(0.1, False), (0.5, True), (None, True)])
def test_a_cost_is_told_where_its_interval_stays_clear_of_nothing(
    low: float | None, told: bool, quiet: Case
) -> None:
    cost = Estimate(MS, None if low is None else low * MS, None if low is None else 2.0 * MS)
    assert is_certain(Cause("input_bound", cost, None, ""), quiet.ledger) is told


@pytest.mark.parametrize(
    ("specific", "low", "told"),
    [
        (Specific.COUNT, 0.1, True),
        (Specific.COUNT, 0.0, False),
        (Specific.SETTING, 0.2, True),
        (Specific.SETTING, 0.1, False),
        (Specific.PLACE, 0.2, False),
    ],
)
def test_evidence_besides_times_makes_a_cost_surer(
    specific: Specific, low: float, told: bool, quiet: Case
) -> None:
    cost = Estimate(MS, low * MS, 2.0 * MS)
    assert is_certain(Cause("a", cost, None, "", specific=specific), quiet.ledger) is told


def test_a_cause_that_costs_nothing_is_told(quiet: Case) -> None:
    cause = Cause("overlapped_reader", None, None, "")
    assert is_certain(cause, quiet.ledger)
    assert cause_cost(cause, quiet.ledger) == "no cost measured"


@pytest.mark.parametrize(("lasts", "share"), [([9, 19], 0.0), ([8, 19], 1 / 19), ([4, 5], 0.1)])
def test_what_is_left_at_the_end_of_an_epoch_is_no_short_batch(
    lasts: list[int], share: float
) -> None:
    """As of a smaller last batch, or of a loader that is one batch ahead of its loop."""
    numbers = np.arange(20)
    steps = pa.table({"step": numbers, "epoch": pa.array((numbers // 10), pa.int32())})
    used = np.setdiff1d(numbers, lasts)
    short = {PARTIAL_BATCH: np.array(lasts)}
    costs = SimpleNamespace(steps=len(used), selection=Selection(used, {PARTIAL_BATCH: 2}, short))
    evidence = Evidence(cast("Any", SimpleNamespace(steps=steps)), cast("Any", costs))
    assert bad_samples.share_of_short_steps(evidence) == pytest.approx(share)


@pytest.mark.parametrize(("others", "shared"), [(2.0, False), (20.0, True)])
def test_an_input_is_slow_on_all_ranks_where_the_others_batches_are_no_quicker(
    others: float, shared: bool, quiet: Case
) -> None:
    before, after = (Evidence(side.trace, side.costs) for side in (quiet.before, quiet.after))
    before.figures[making_ns] = {0: 2.0 * MS, 1: 2.0 * MS}
    after.figures[making_ns] = {0: others * MS, 1: 22.0 * MS}
    case = cast("Any", SimpleNamespace(before=before, after=after, ledger=quiet.ledger))
    assert is_slow_on_all_ranks(case, 1) is shared


def test_a_scale_that_went_down_is_a_skipped_step() -> None:
    """On each rank by itself: another rank's first scale is not lower than this one's last."""
    scales = [8.0, 4.0, 4.0, None, 2.0, 8.0, 8.0, 4.0, 8.0, 8.0]
    steps = pa.table(
        {"rank": [0] * 5 + [1] * 5, "step": [*range(5), *range(5)], "grad_scale": scales}
    )
    assert share_of_lowered_scales(steps, 0) == 2 / steps.num_rows


def test_steps_that_came_short_count_for_what_a_sample_takes() -> None:
    """Five of ten steps wait 20 ms for samples that are not there."""
    ends = [step * 40 * MS + took * MS for step, took in enumerate([10, 30] * 5)]
    steps = pa.table(
        {
            "step": range(10),
            "start_ns": [step * 40 * MS for step in range(10)],
            "end_ns": ends,
            "sample_count": [8, 6] * 5,
        }
    )
    full = np.arange(0, 10, 2)
    costs = SimpleNamespace(
        steps=5,
        samples_known=True,
        wall_ns=np.full(5, 10 * MS),
        samples=np.full(5, 8),
        selection=Selection(full, {PARTIAL_BATCH: 5}, {PARTIAL_BATCH: full + 1}),
    )
    evidence = Evidence(cast("Any", SimpleNamespace(steps=steps)), cast("Any", costs))
    assert bad_samples.short_steps_add_ns(evidence) == pytest.approx(200 * MS / 70 - 10 * MS / 8)


@pytest.mark.parametrize("added_ns", [0.0, 5.0 * MS])
def test_bad_samples_cost_what_the_steps_that_came_short_took(added_ns: float, quiet: Case) -> None:
    """The steps that are left in the ledger are as quick as ever."""
    before, after = (Evidence(side.trace, side.costs) for side in (quiet.before, quiet.after))
    after.figures[bad_samples.share_of_short_steps] = 0.4
    after.figures[bad_samples.short_steps_add_ns] = added_ns / quiet.ledger.samples_per_step
    cause = bad_samples.find(dataclasses.replace(quiet, before=before, after=after))
    assert cause is not None
    assert (cause.cost_ns is None) is (added_ns == 0)
    assert cause.cost_ns is None or cause.cost_ns.value == pytest.approx(added_ns, abs=MS)


@pytest.mark.parametrize(("collections", "told"), [(0, None), (4, False), (36, True)])
def test_many_pauses_are_certain_in_a_run_too_short_for_readings_to_scatter(
    collections: int, told: bool | None, quiet: Case
) -> None:
    """Two readings of a counter are one rate; the number of pauses gives its interval."""
    trace = quiet.after.trace
    first, last = pc.min(trace.steps["start_ns"]).as_py(), pc.max(trace.steps["end_ns"]).as_py()
    gained = {"pause_seconds": 0.01 * collections, "collections_count": float(collections)}
    rows = [
        (metric, time, value)
        for metric, gain in gained.items()
        for time, value in ((last - (last - first) // 2, 1.0), (last, 1.0 + gain))
    ]
    metric, time_ns, value = map(list, zip(*rows, strict=True))
    dictionary = {"device": [None] * 4, "source": ["garbage"] * 4, "metric": metric}
    samples = pa.table(
        {
            "rank": [0] * 4,
            **{
                name: pa.array(words, pa.string()).dictionary_encode()
                for name, words in dictionary.items()
            },
        }
    )
    samples = samples.append_column("time_ns", pa.array(time_ns)).append_column(
        "value", pa.array(value)
    )
    recorded = cast("Any", SimpleNamespace(steps=trace.steps, samples=samples))
    pauses = garbage_pauses.garbage_ns(Evidence(recorded, quiet.after.costs))
    assert pauses is not None
    assert (None if pauses.low is None else pauses.low > 0) is told


def made_cause(kind: str, cost: float | None, without: float | None, **rest: Any) -> Cause:
    """Return a cause with a cost and a step without it, both in ms."""
    times = []
    for number in (cost, without):
        times.append(None if number is None else Estimate(number * MS))
    return Cause(kind, times[0], None, "", without_ns=times[1], **rest)


def test_the_cause_whose_removal_gives_most_is_first() -> None:
    hidden, plain = made_cause("late_rank", 9, 48), made_cause("input_bound", 6, 44)
    free = made_cause("graph_breaks", None, None)
    gain = made_cause("tiny_buckets", 20, None, is_gain=True)
    assert rank([gain, hidden, plain, free], falls=False) == [plain, hidden, gain, free]
    assert rank([hidden, plain, gain, free], falls=True) == [gain, plain, hidden, free]


def test_costs_decide_if_one_cause_was_not_replayed() -> None:
    costly, other = made_cause("late_rank", 9, 48), made_cause("input_bound", 6, 44)
    unknown = made_cause("drift", 7, None)
    by_cost = [costly, unknown, other]
    assert rank(by_cost, falls=False) == by_cost


def test_removals_that_give_the_same_stay_in_the_order_of_their_costs() -> None:
    by_cost = [made_cause("late_rank", 9, 44), made_cause("drift", 6, 44)]
    assert rank(by_cost, falls=False) == by_cost
