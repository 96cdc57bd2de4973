"""Lines that no machine makes so much longer are the job's, on a machine that is busy too."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from profkit.explain.explained import Explained, explain
from profkit.frame.estimate import Floats, Ints
from profkit.frame.run_frame import RunFrame
from profkit.report.ledger_document import explained
from profkit.trace import Trace
from tests.explain.conftest import MS, Make, Sample, plant, set_samples

STEP, EVALUATE, HOOK = 1, 2, 3
"""Places of samples in the script of the tests."""

USUAL_MS, ADDED_MS = 30.0, 30.0


def _sample(trace: Trace, shares: Mapping[int, float], waited: float = 0.0) -> Trace:
    """Sample the forward phase every 8 ms: places in turns by their shares of the time.

    The thread waits for a core for so much of its time.
    """
    places = np.repeat(list(shares), [round(20 * share) for share in shares.values()])
    order = np.random.default_rng(3).permutation(places)
    rows: list[Sample] = []
    for span in trace.spans.select(["phase", "start_ns", "end_ns"]).to_pylist():
        if span["phase"] == "forward":
            for at in range(span["start_ns"] + MS, span["end_ns"], 8 * MS):
                rows.append((at, int(order[len(rows) % len(order)]), "R", None))
    trace = set_samples(trace, rows)
    stacks = trace.stacks
    share = np.full(stacks.num_rows, waited)
    vars(trace)["stacks"] = stacks.append_column("waited_share", [share])
    return trace


def _compare(
    make: Make, base: Mapping[int, float], target: Mapping[int, float], added_ms: float = 0.0
) -> Explained:
    """Compare two runs whose forward phase differs by much from step to step."""
    chance = np.random.default_rng(1)

    def longer(step: Ints) -> Floats:
        return USUAL_MS + chance.normal(0, 40, len(step)).clip(-USUAL_MS, None)

    quick = make(1, seed=4, steps=60, longer=plant("forward", longer))
    slow = make(1, seed=2, steps=60, longer=plant("forward", lambda step: longer(step) + added_ms))
    return explain(_sample(quick, base), _sample(slow, target))


def test_a_new_function_is_the_jobs_although_the_steps_scatter(make: Make) -> None:
    view = _compare(make, {STEP: 1.0}, {STEP: 0.5, HOOK: 0.5}, added_ms=40.0)
    cell = view.told_cells[0]
    assert (cell.where, cell.is_beyond) == ("train.py:97 hook", True)
    assert "train.py:97 hook" in explained(view).headline
    assert sum(cell.exact for cell in view.cells.all) == view.ledger.total.exact


@pytest.mark.parametrize(
    ("base", "target"),
    [
        ({STEP: 1.0}, {STEP: 1.0}),
        ({STEP: 0.7, HOOK: 0.3}, {STEP: 0.4, HOOK: 0.6}),  # a slow machine may do that
        ({STEP: 0.4, EVALUATE: 0.6}, {STEP: 0.4, HOOK: 0.6}),  # another name for the same
        ({STEP: 1.0}, {STEP: 0.4, HOOK: 0.6}),  # a part of it is a function now
    ],
)
def test_what_a_slow_machine_or_a_new_name_makes_is_no_change(
    base: Mapping[int, float], target: Mapping[int, float], make: Make
) -> None:
    assert not any(cell.is_beyond for cell in _compare(make, base, target).cells.all)


def test_a_row_with_samples_and_no_time_names_no_line(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample may lie in a phase that takes no time by its spans."""
    monkeypatch.setattr(RunFrame, "means_of", lambda *_: {})
    assert not any(cell.is_beyond for cell in _compare(make, {STEP: 1.0}, {HOOK: 1.0}).cells.all)


def test_a_wait_for_a_core_is_at_no_line_of_the_job(make: Make) -> None:
    quick = make(1, seed=4, steps=60)
    slow = make(1, seed=2, steps=60, longer=plant("forward", lambda step: ADDED_MS + 0 * step))
    view = explain(_sample(quick, {STEP: 1.0}), _sample(slow, {STEP: 1.0}, waited=0.5))
    found = {cell.how: cell.where for cell in view.told_cells if cell.row == "forward"}
    assert found["waiting for a core"] == ""
    assert not any(
        cause.kind == "slow_line" and "waiting for a core" in cause.evidence
        for cause in view.causes
    )


def test_more_work_has_more_of_the_usual_waits_for_a_core(make: Make) -> None:
    quick = make(1, seed=4, steps=60)
    slow = make(1, seed=2, steps=60, longer=plant("forward", lambda step: ADDED_MS + 0 * step))
    view = explain(_sample(quick, {STEP: 1.0}, waited=0.5), _sample(slow, {STEP: 1.0}, waited=0.5))
    (cell,) = [cell for cell in view.told_cells if cell.row == "forward"]
    assert (cell.how, cell.where) == ("computing", "train.py:40 step")


def test_on_a_busier_machine_new_work_is_told_from_waits_of_the_old(make: Make) -> None:
    """The same work takes twice as long without a core, and a hook comes on top."""
    quick = make(1, seed=4, steps=60)
    forward_ms = RunFrame(quick).means_of(0, quick.steps["step"].to_numpy()[20:])["forward"] / MS
    added = plant("forward", lambda step: forward_ms + ADDED_MS + 0 * step)
    slow = make(1, seed=2, steps=60, longer=added)
    hook = ADDED_MS / (2 * forward_ms + ADDED_MS)
    view = explain(
        _sample(quick, {STEP: 1.0}, waited=0.2),
        _sample(slow, {STEP: 1 - hook, HOOK: hook}, waited=0.6),
    )
    found = {}
    for cell in view.told_cells:
        if cell.row == "forward":
            found[cell.how, cell.where] = cell.ns * view.cells.step / MS
    assert found["computing", "train.py:97 hook"] == pytest.approx(ADDED_MS, rel=0.3)
    assert found["waiting for a core", ""] == pytest.approx(forward_ms, rel=0.4)
