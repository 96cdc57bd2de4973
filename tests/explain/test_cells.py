"""A gap is divided into cells that add up: row, ranks, steps, how and where."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from profkit.explain.cell_places import locate
from profkit.explain.cell_steps import When, find_pattern
from profkit.explain.cell_words import count_words, sentence
from profkit.explain.cells import Cell, divide_gap, refine
from profkit.explain.evidence_counters import Load
from profkit.explain.explained import Explained, explain
from profkit.frame.estimate import Estimate
from profkit.report.ledger_document import explained
from profkit.show import html, json, markdown, text
from profkit.testing.synthetic_timeline import OUTSIDE
from tests.explain.conftest import MS, Added, Make, plant, set_samples


def _compare(
    make: Make, phase: str, added: Added, ranks: int = 1, on: tuple[int, ...] = ()
) -> Explained:
    return explain(make(ranks), make(ranks, seed=2, longer=plant(phase, added, on)))


def _largest(view: Explained) -> Cell:
    return view.told_cells[0]


def _ms(view: Explained, cell: Cell) -> float:
    return cell.ns * view.ledger.samples_per_step / MS


@pytest.mark.parametrize("seed", range(12))
def test_the_cells_add_up_to_the_gap_exactly(seed: int, make: Make) -> None:
    """Whatever is planted on whatever ranks, with batches and ranks that differ."""
    random = np.random.default_rng(seed)
    ranks = int(random.integers(1, 5))
    phase = random.choice(["data", "forward", "optimizer", OUTSIDE])
    period, size = int(random.integers(1, 12)), float(random.uniform(-1, 60))
    on = tuple(random.choice(ranks, size=int(random.integers(0, ranks)), replace=False).tolist())

    def added(step: Any) -> Any:
        return np.maximum(0.0, size) * (step % period == 0)

    base = make(int(random.integers(1, 5)), steps=80)
    target = make(
        ranks, seed=seed, steps=80, batch_size=int(random.choice([32, 64])),
        longer=plant(str(phase), added, on),
    )  # fmt: skip
    view = explain(base, target)
    assert sum(cell.exact for cell in view.cells.all) == view.ledger.total.exact
    back = explain(target, base)
    assert (
        sum(cell.exact for cell in back.cells.all)
        == back.ledger.total.exact
        == -view.ledger.total.exact
    )


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_of_equal_jobs_no_cell_is_told(ranks: int, make: Make) -> None:
    view = explain(make(ranks), make(ranks, seed=2))
    assert view.told_cells == ()
    assert sum(cell.exact for cell in view.cells.all) == view.ledger.total.exact


def test_a_longer_phase_is_a_cell_of_every_step(make: Make) -> None:
    view = _compare(make, "forward", lambda step: 29.0 + 0 * step, ranks=2)
    cell = _largest(view)
    assert (cell.row, cell.ranks, cell.steps.when) == ("forward", (), When.ALL)
    assert _ms(view, cell) == pytest.approx(29, rel=0.05)


def test_what_one_rank_does_now_and_then_is_one_cell_with_the_others_waits(make: Make) -> None:
    view = _compare(make, OUTSIDE, lambda step: 100.0 * (step % 10 == 9), ranks=2, on=(0,))
    cell = _largest(view)
    assert (cell.row, cell.ranks) == ("unknown", (0,))
    assert (cell.steps.when, cell.steps.period) == (When.PERIODIC, 10)
    assert cell.where == "between optimizer and the step's end"
    assert _ms(view, cell) == pytest.approx(10, rel=0.15)
    assert cell.moved_ns == pytest.approx(cell.ns / 2, rel=0.3)
    assert sum(each.ns for each in view.cells.all if each.row == "allreduce") == pytest.approx(
        0, abs=0.1 * cell.ns
    )
    words = explained(view).headline
    assert "outside all phases on rank 0" in words
    assert "every 10th step" in words


def test_a_late_rank_has_the_waits_of_all_others(make: Make) -> None:
    view = _compare(make, "data", lambda step: 10.0 + 0 * step, ranks=4, on=(3,))
    cell = _largest(view)
    assert (cell.row, cell.ranks, cell.steps.when) == ("data", (3,), When.ALL)
    assert _ms(view, cell) == pytest.approx(10, rel=0.1)
    assert cell.moved_ns == pytest.approx(0.75 * cell.ns, rel=0.1)


def test_a_group_of_ranks_is_named_together(make: Make) -> None:
    view = _compare(make, "forward", lambda step: 20.0 + 0 * step, ranks=5, on=(1, 4))
    assert _largest(view).ranks == (1, 4)


def test_rare_long_waits_are_counted(make: Make) -> None:
    random = np.random.default_rng(5)
    is_slow = random.random(200) < 1 / 15
    view = _compare(make, "data", lambda step: 450.0 * is_slow[step])
    cell = _largest(view)
    assert (cell.row, cell.steps.when) == ("data", When.RARE)
    assert cell.steps.long == pytest.approx(is_slow[10:].sum(), abs=1)
    assert cell.is_sure
    assert f"in {cell.steps.long} of" in explained(view).headline


def test_a_change_of_level_has_its_step(make: Make) -> None:
    view = _compare(make, "optimizer", lambda step: 20.0 * (step >= 60), ranks=2, on=(1,))
    cell = _largest(view)
    assert (cell.row, cell.ranks) == ("optimizer", (1,))
    assert cell.steps.when is When.SINCE
    assert cell.steps.first == pytest.approx(60, abs=1)


def test_steps_that_grow_are_told_as_such(make: Make) -> None:
    cell = _largest(_compare(make, "forward", lambda step: 0.1 * step))
    assert (cell.row, cell.steps.when) == ("forward", When.GROWING)


def test_a_gain_is_divided_in_the_same_way(make: Make) -> None:
    slow = make(2, seed=2, longer=plant("data", lambda step: 50.0 * (step % 5 == 0), (1,)))
    view = explain(slow, make(2))
    cell = _largest(view)
    assert cell.ns < 0
    assert (cell.row, cell.ranks, cell.steps.period) == ("data", (1,), 5)


def _own(view: Explained, cores: float) -> Cell:
    """Return the largest cell, if the target's process used so many cores."""
    before, after = view.case.before, view.case.after
    vars(before)["load"] = Load(cores=8, own=1.0, workers=0.0, machine=2.0, switches_per_s=5.0)
    vars(after)["load"] = Load(cores=8, own=cores, workers=0.0, machine=2.0, switches_per_s=5.0)
    cells = divide_gap(view.ledger, [before], [after])
    return locate(cells, view.ledger, before, after).all[0]


@pytest.mark.parametrize(("cores", "how"), [(0.62, "asleep or blocked"), (1.0, "computing")])
def test_how_follows_from_the_processor_time(cores: float, how: str, make: Make) -> None:
    view = _compare(make, "forward", lambda step: 29.0 + 0 * step)
    assert _own(view, cores).how == how


def test_the_line_of_a_cell_is_that_of_its_own_steps(make: Make) -> None:
    target = make(1, seed=2, longer=plant("forward", lambda step: 200.0 * (step % 10 == 9)))
    spans = target.spans
    rows = []
    for row in spans.select(["step", "phase", "start_ns", "end_ns"]).to_pylist():
        if row["phase"] == "forward":
            is_long = row["step"] % 10 == 9
            at = np.linspace(row["start_ns"], row["end_ns"], 12 if is_long else 3)[1:-1]
            rows += [(int(each), 2 if is_long else 1, "", None) for each in at]
    set_samples(target, rows)
    view = explain(make(1), target)
    cell = _largest(view)
    assert cell.where == "train.py:89 evaluate"
    assert "at train.py:89 evaluate" in sentence(cell, view.cells.step)


def test_a_cell_with_evidence_is_told_where_no_rule_names_it(make: Make) -> None:
    """All formats show the same sentence."""
    view = _compare(make, "forward", lambda step: 29.0 + 0 * step)
    assert not view.causes
    document = explained(view)
    words = sentence(_largest(view), view.cells.step)
    assert count_words(words) <= 30
    assert count_words(document.headline) <= 30
    for shown in (
        text.document(document),
        markdown.document(document),
        html.document(document, "1"),
    ):
        assert " ".join(words.split()[:4]) in " ".join(shown.replace("\\", "").split())
        assert "o cause" not in shown
    rows = json.document(document)["cells"]
    total = sum(row["ns_per_step"]["value"] for row in rows)
    assert total == pytest.approx(float(view.ledger.total.exact) * view.cells.step)


@pytest.mark.parametrize("period", [2, 3, 7, 25])
def test_a_period_is_found(period: int) -> None:
    numbers = np.arange(10, 210)
    ns = 10.0 + 0.2 * np.random.default_rng(1).standard_normal(200) + 9.0 * (numbers % period == 1)
    found = find_pattern(ns, numbers, 50.0, is_one_run=True)
    assert found is not None
    assert (found.steps.when, found.steps.period) == (When.PERIODIC, period)


def test_noise_has_no_pattern() -> None:
    found = 0
    for seed in range(200):
        noise = np.exp(0.1 * np.random.default_rng(seed).standard_normal(150))
        found += find_pattern(50.0 * noise, np.arange(150), 50.0, is_one_run=True) is not None
    assert found <= 2


def test_the_parts_of_a_refined_cell_add_up() -> None:
    cell = Cell("forward", Estimate(10.0, 9.0, 11.0), Fraction(10))
    assert sum(cell.exact for cell in refine(cell, 6.0, where="train.py:3 f")) == cell.exact
    assert len(refine(cell, 10.0, where="train.py:3 f")) == 1
