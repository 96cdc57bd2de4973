"""Causes of the gap between two logs, and what a log cannot say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from profkit.explain.explained import Explained, explain, scale_runs
from profkit.explain.ledger import Verdict
from profkit.explain.rules.base import Cause
from profkit.importers.base import Target
from profkit.importers.training_log import IMPORTER
from profkit.report.ledger_document import explained
from profkit.report.scaling_document import scaling
from profkit.show import text as show_text
from profkit.trace import Trace

Explain = Callable[..., Explained]
STEPS_PER_LINE = 10


def paddleseg(
    cards: int, steps: Sequence[tuple[float, float]], epochs: Sequence[int] = (), head: str = ""
) -> str:
    """Return a log of one rank with these step times and waits for data, in seconds."""
    lines = [f"GPUs used: {cards}", "batch_size: 8", "fp16: false", head]
    for place, (step_s, data_s) in enumerate(steps):
        epoch = epochs[place] if epochs else 1
        lines.append(
            f"[TRAIN] epoch: {epoch}, iter: {STEPS_PER_LINE * (place + 1)}/{10 * len(steps)}, "
            f"loss: 1.0, lr: 0.1, batch_cost: {step_s:.5f}, reader_cost: {data_s:.5f}, "
            f"ips: {8 / step_s:.5f} samples/sec"
        )
    return "\n".join(lines) + "\n"


def even(step_s: float, data_s: float, count: int = 60) -> list[tuple[float, float]]:
    return [(step_s * (1 + 0.01 * (place * 37 % 5 - 2)), data_s) for place in range(count)]


@pytest.fixture
def compare(tmp_path: Path) -> Explain:
    def compare(base: str, target: str) -> Explained:
        sides = {}
        for name, text in (("before.log", base), ("after.log", target)):
            (tmp_path / name).write_text(text)
            (made,) = IMPORTER.read([tmp_path / name], Target(tmp_path / "runs"))
            sides[name] = Trace.open(made.run)
        return explain(sides["before.log"], sides["after.log"])

    return compare


def find(view: Explained, kind: str) -> Cause | None:
    return next((each for each in view.causes if each.kind == kind), None)


def page(view: Explained) -> str:
    return " ".join(show_text.document(explained(view)).split())


def test_an_exchange_never_costs_more_than_the_gap(compare: Explain) -> None:
    """The base's reader was hidden behind the device: 150 of 200 ms, and 1 ms in the target."""
    view = compare(paddleseg(1, even(0.2, 0.15)), paddleseg(8, even(0.24, 0.001)))
    exchange = find(view, "exposed_communication")
    assert exchange is not None
    assert exchange.cost_ns is not None
    gap_ns = view.ledger.total.delta.value * view.ledger.samples_per_step
    assert exchange.cost_ns.value == pytest.approx(gap_ns)
    assert exchange.share_of_gap == pytest.approx(1)
    assert "partly hidden in the base" in exchange.evidence
    for each in view.causes:
        assert each.share_of_gap is None or each.share_of_gap <= 1.05


def test_nothing_is_exchanged_between_ranks_that_no_log_counts(compare: Explain) -> None:
    base = paddleseg(1, even(0.2, 0.001)).replace("GPUs used: 1\n", "")
    assert find(compare(base, paddleseg(8, even(0.3, 0.001))), "exposed_communication") is None
    known = compare(paddleseg(1, even(0.2, 0.001)), paddleseg(8, even(0.3, 0.001)))
    assert find(known, "exposed_communication") is not None


def test_other_settings_share_the_blame_for_what_more_ranks_cost(compare: Explain) -> None:
    target = paddleseg(8, even(0.3, 0.001)).replace("batch_size: 8", "batch_size: 4")
    exchange = find(compare(paddleseg(1, even(0.2, 0.001)), target), "exposed_communication")
    assert exchange is not None
    assert "part of it can be what else differs: batch_size 8 and 4" in exchange.evidence


@pytest.mark.parametrize("swapped", [False, True])
def test_an_impossible_efficiency_is_no_improvement(compare: Explain, *, swapped: bool) -> None:
    sides = [paddleseg(1, even(0.3, 0.001)), paddleseg(8, even(0.2, 0.001))]
    if swapped:
        sides.reverse()
    view = compare(*sides)
    assert view.ledger.verdict is Verdict.CANNOT_JUDGE
    assert "an efficiency of 150 % from 1 to 8 ranks cannot be" in page(view)


def test_an_efficiency_with_a_reason_is_judged(compare: Explain) -> None:
    """Mixed precision makes each rank faster, and so does another batch."""
    mixed = paddleseg(8, even(0.2, 0.001)).replace("fp16: false", "fp16: true")
    view = compare(paddleseg(1, even(0.3, 0.001)), mixed)
    assert view.ledger.verdict is Verdict.IMPROVEMENT
    assert "ranks cannot be" not in page(view)
    view = compare(paddleseg(1, even(0.3, 0.001)), paddleseg(8, even(0.295, 0.001)))
    assert "ranks cannot be" not in page(view)


def test_the_steps_of_a_line_are_one_figure(compare: Explain) -> None:
    """Two lines of three steps are no six steps, of which any order would be unlikely."""
    texts = []
    for step_s in (0.2, 0.3):
        lines = [(step_s, 0.001), (step_s, 0.001), (1.01 * step_s, 0.001)]
        texts.append(
            paddleseg(8, lines).replace("iter: 10/", "iter: 3/").replace("iter: 20/", "iter: 6/")
        )
    view = compare(*(text.replace("iter: 30/30", "iter: 9/9") for text in texts))
    assert (view.ledger.base.steps, view.ledger.target.steps) == (6, 6)
    assert view.ledger.verdict is Verdict.CANNOT_JUDGE


def test_each_flag_is_printed_once(compare: Explain) -> None:
    steps = even(0.2, 0.001)
    steps[30] = (0.2, 0.9)
    view = compare(paddleseg(8, even(0.2, 0.001)), paddleseg(8, steps))
    flag = "1 x a wait for data longer than its step"
    assert flag in page(view)
    assert page(view).count(flag) == 1


def test_a_log_of_one_rank_misses_no_files(compare: Explain) -> None:
    view = compare(paddleseg(8, even(0.2, 0.001)), paddleseg(8, even(0.2, 0.001)))
    assert "no files" not in page(view)
    assert "left no steps" not in page(view)


def test_settings_that_logs_state_are_compared(compare: Explain) -> None:
    base, target = (
        paddleseg(8, even(0.2, 0.001), head=f"num_workers: {workers}") for workers in (8, 2)
    )
    found = {
        each.name: (each.base, each.target) for each in compare(base, target).ledger.differences
    }
    assert found == {"workers": ("8", "2")}


def test_a_wait_in_a_log_is_not_called_exposed(compare: Explain) -> None:
    view = compare(paddleseg(8, even(0.2, 0.001)), paddleseg(8, even(0.3, 0.1)))
    found = find(view, "input_bound")
    assert found is not None
    assert "the wait for data went from" in found.evidence
    assert "--workers" not in found.remedy
    assert "exposed" not in page(view).lower()
    assert "it may pass while the device works" in page(view)


def test_settings_that_can_affect_the_rest_are_named(compare: Explain) -> None:
    """Nothing divides the rest of a log: precision and the number of ranks are in it."""
    mixed = paddleseg(1, even(0.15, 0.001)).replace("fp16: false", "fp16: true")
    view = compare(paddleseg(1, even(0.2, 0.001)), mixed)
    assert "settings that differ and can affect it: precision fp32 -> amp" in page(view)
    assert "which is not divided any further" in page(view)
    view = compare(paddleseg(1, even(0.2, 0.001)), paddleseg(8, even(0.21, 0.011)))
    assert "global_batch_size" not in page(view).partition("Other differences")[0]


def test_one_checkpoint_has_no_interval(compare: Explain) -> None:
    """It is in one window of each log, so nobody knows how much such a window varies."""
    texts = []
    for cards, excess in ((1, 0.3), (8, 0.6)):
        lines = []
        for number in range(1, 13):
            step_s = (0.5 if cards == 1 else 0.6) * (1 + 0.002 * (number % 3))
            if number == 12:
                lines.append(
                    "2024-03-05 06:07:51,000 - mmseg - INFO - Saving checkpoint at 48 iterations"
                )
                step_s += excess
            lines.append(
                f"2024-03-05 06:07:{number:02},000 - mmseg - INFO - "
                f"Iter [{4 * number}/48]\tlr: 1e-03, "
                f"eta: 0:01:00, time: {step_s:.3f}, data_time: 0.010, memory: 1, loss: 1.0"
            )
        head = f"gpu_ids = range(0, {cards})\n    samples_per_gpu=8,\n"
        texts.append(head + "\n".join(lines) + "\n")
    view = compare(*texts)
    row = view.ledger.find("other")
    assert row is not None
    assert (row.delta.low, row.delta.high) == (None, None)
    assert "There is no interval for other: too few lines of a log contain it" in page(view)


def test_the_scaling_of_logs_says_which_efficiency_cannot_be(
    tmp_path: Path,
) -> None:
    traces = []
    for cards, step_s in ((1, 0.3), (2, 0.31), (8, 0.2)):
        (tmp_path / f"{cards}.log").write_text(paddleseg(cards, even(step_s, 0.001)))
        (made,) = IMPORTER.read([tmp_path / f"{cards}.log"], Target(tmp_path / "runs"))
        traces.append(Trace.open(made.run))
    rows = scale_runs(traces)
    assert [bool(row.doubt) for row in rows] == [False, False, True]
    assert "an efficiency of 150 % from 1 to 8 ranks cannot be" in show_text.document(scaling(rows))


def test_the_scaling_of_logs_has_no_factors_of_what_they_do_not_divide(tmp_path: Path) -> None:
    traces = []
    for cards, step_s in ((1, 0.2), (2, 0.24), (8, 0.3)):
        (tmp_path / f"{cards}.log").write_text(paddleseg(cards, even(step_s, 0.001)))
        (made,) = IMPORTER.read([tmp_path / f"{cards}.log"], Target(tmp_path / "runs"))
        traces.append(Trace.open(made.run))
    row = scale_runs(traces)[-1]
    assert row.efficiency.value == pytest.approx(2 / 3, rel=1e-3)
    assert row.largest_loss == ""
    assert "it has no factors: " in show_text.document(scaling([row, row]))


def test_a_setting_that_one_log_does_not_state_is_no_reason_for_an_efficiency(
    compare: Explain,
) -> None:
    base = paddleseg(1, even(0.3, 0.001), head="use_xla: True")
    view = compare(base, paddleseg(8, even(0.2, 0.001)))
    assert "an efficiency of 150 % from 1 to 8 ranks cannot be" in page(view)
