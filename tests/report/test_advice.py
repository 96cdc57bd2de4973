"""What a report says to try first: it follows from the largest loss, and from nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.losses import Loss, Losses
from profkit.analysis.overview import Overview, build_overview
from profkit.explain.named import LATE_RANK
from profkit.explain.predict.prediction import WITHOUT
from profkit.frame.device_times import PhaseClock
from profkit.frame.estimate import Estimate
from profkit.frame.selection import EPOCH_START
from profkit.report.advice import advice
from profkit.report.overview_document import find_answers, overview
from profkit.show import brief, html, json, markdown, text
from profkit.testing import synthetic_trace
from profkit.trace import Trace

RECORDED = Path(__file__).parents[2] / "traces"
MS = 1_000_000

Lost = Callable[..., Overview]


@pytest.fixture
def lost(tmp_path: Path) -> Lost:
    """Return a run whose largest loss is of a kind."""
    view = build_overview(Trace.open(synthetic_trace(tmp_path / "run", ranks=1)))

    def run(kind: str, share: float = 0.2, **config: Any) -> Overview:
        found = Loss(kind, Estimate(20.0 * MS), share, "")
        config = {**view.config, **config}
        return dataclasses.replace(view, losses=Losses((found,)), config=config)

    return run


def test_a_loss_has_its_remedy(lost: Lost) -> None:
    assert "num_workers" in advice(lost("data"), ()) or "workers" in advice(lost("data"), ())
    assert "pin_memory=True" in advice(lost("h2d", pin=False), ())
    assert "pin_memory" not in advice(lost("h2d", pin=True), ())
    assert "persistent_workers=True" in advice(lost(EPOCH_START), ())
    assert "evaluate and save less often" in advice(lost("other"), ())
    assert "loss, clipping" in advice(lost("unknown"), ())


def test_nothing_is_proposed_where_little_is_lost_or_known(lost: Lost) -> None:
    assert advice(lost("data", share=0.04), ()) == ""
    assert advice(lost("a phase of a plug-in"), ()) == ""
    assert advice(dataclasses.replace(lost("data"), losses=Losses()), ()) == ""
    assert advice(dataclasses.replace(lost("data"), clock=PhaseClock.LAUNCH), ()) == ""
    assert advice(dataclasses.replace(lost("data"), changed=("rank 0, steps",)), ()) == ""


def test_workers_that_hide_the_loader_are_named_with_their_effect() -> None:
    trace = Trace.open(RECORDED / "recorded-resnet50-workers-0")
    words = advice(build_overview(trace), find_answers(trace))
    assert words.startswith("try: 1 loader worker per rank instead of 0 (a batch takes 55.4 ms")
    assert "about 1.14 times the throughput" in words


def test_a_late_rank_is_named_with_what_it_does_longer() -> None:
    trace = Trace.open(RECORDED / "recorded-resnet50-2-ranks")
    view, answers = build_overview(trace), find_answers(trace)
    words = advice(view, answers)
    assert words.startswith("try: see what only rank 1 does: it is late; its backward takes 8.56")
    assert words.endswith("5.63 ms longer than the others'.")
    without = dataclasses.replace(answers[0].question, kind=WITHOUT, cause=LATE_RANK)
    answer = dataclasses.replace(answers[0], question=without)
    assert "if it were as fast as the others" in advice(view, [answer])


def test_launches_that_come_late_leave_the_device_idle() -> None:
    view = build_overview(Trace.open(RECORDED / "recorded-h200-images-kernels"))
    assert "launch less" in advice(view, ())


def test_all_formats_say_it_behind_the_answer() -> None:
    document = overview(build_overview(Trace.open(RECORDED / "recorded-h200-images-pageable")))
    words = "try: pin the batches (pin_memory=True) and copy them with non_blocking=True."
    assert document.advice == words
    for shown in (text.document(document), brief.document(document)):
        assert shown.splitlines()[2] == f"  {words}"
    assert f'<p class="advice">{words}</p>' in html.document(document, "1")
    assert words in markdown.document(document).replace("\\", "")
    assert json.document(document)["advice"] == words
