"""What a report says to try first: it follows from the largest loss, and from nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.losses import Loss, Losses
from profkit.analysis.overview import Overview, build_overview
from profkit.analysis.views.loader import Workers, WorkersModel
from profkit.explain.named import LATE_RANK
from profkit.explain.predict.prediction import WITHOUT
from profkit.frame.device_times import PhaseClock
from profkit.frame.estimate import Estimate
from profkit.frame.selection import EPOCH_START
from profkit.report.advice import Answers, advice, find_answers
from profkit.report.overview_document import overview
from profkit.show import brief, html, json, markdown, text
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from tests.explain.conftest import plant

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
    assert "--screen loader" in advice(lost("data"), Answers())
    assert "more workers" in advice(lost("data", imported_from="a log"), Answers())
    assert "pin_memory=True" in advice(lost("h2d", pin=False), Answers())
    assert "pin_memory" not in advice(lost("h2d", pin=True), Answers())
    assert "persistent_workers=True" in advice(lost(EPOCH_START), Answers())
    assert "evaluate and save less often" in advice(lost("other"), Answers())
    assert "loss, clipping" in advice(lost("unknown"), Answers())


def test_nothing_is_proposed_where_little_is_lost_or_known(lost: Lost) -> None:
    assert advice(lost("data", share=0.04), Answers()) == ""
    assert advice(lost("a phase of a plug-in"), Answers()) == ""
    assert advice(dataclasses.replace(lost("data"), losses=Losses()), Answers()) == ""
    assert advice(dataclasses.replace(lost("data"), clock=PhaseClock.LAUNCH), Answers()) == ""
    assert advice(dataclasses.replace(lost("data"), changed=("rank 0, steps",)), Answers()) == ""


def test_workers_that_hide_the_loader_are_named_with_their_effect() -> None:
    trace = Trace.open(RECORDED / "recorded-resnet50-workers-0")
    words = advice(build_overview(trace), find_answers(trace))
    assert words == (
        "try: 1 loader worker per rank: the loop makes a step's batches every 55.4 ms, most of it "
        "decoding, and the rest of a step takes 395 ms; without this loss, about 1.14 times the "
        "throughput (inconclusive)."
    )


def test_a_late_rank_is_named_with_what_it_does_longer(tmp_path: Path) -> None:
    late = plant("backward", lambda step: 30.0 + 0 * step, (1,))
    trace = Trace.open(synthetic_trace(tmp_path / "run", ranks=2, longer=late))
    view, answers = build_overview(trace), find_answers(trace)
    words = advice(view, answers)
    assert words.startswith("try: see what only rank 1 does: it is late; its backward takes ")
    assert "longer than the others'" in words
    without = dataclasses.replace(answers.predictions[0].question, kind=WITHOUT, cause=LATE_RANK)
    answer = dataclasses.replace(answers.predictions[0], question=without)
    assert "without this loss, about" in advice(view, Answers([answer]))


def test_launches_that_come_late_leave_the_device_idle() -> None:
    view = build_overview(Trace.open(RECORDED / "recorded-h200-images-kernels"))
    assert "launch less" in advice(view, Answers())


def test_all_formats_say_it_behind_the_answer() -> None:
    document = overview(build_overview(Trace.open(RECORDED / "recorded-h200-images-pageable")))
    words = "try: pin the batches (pin_memory=True) and copy them with non_blocking=True."
    assert document.advice == words
    for shown in (text.document(document), brief.document(document)):
        assert shown.splitlines()[2] == f"  {words}"
    assert f'<p class="advice">{words}</p>' in html.document(document, "1")
    assert words in markdown.document(document).replace("\\", "")
    assert json.document(document)["advice"] == words


@pytest.mark.parametrize(
    ("workers", "enough", "no_core", "words"),
    [
        (
            2,
            8,
            0.0,
            "try: 8 loader workers per rank: 2 workers make a step's batches every 80.0 ms",
        ),
        (
            2,
            30,
            0.0,
            "try: put the data on a faster disk or in memory, and use more loader workers",
        ),
        (2, 8, 0.4, "try: give the loader cores: 40 % of making a batch waits for one"),
    ],
)
def test_a_loader_is_hidden_or_made_faster(
    lost: Lost, workers: int, enough: int, no_core: float, words: str
) -> None:
    now = Workers(workers, 80.0 * MS, 100.0 * MS, 60.0 * MS, 1.0)
    model = WorkersModel(workers, 160.0 * MS, 20.0 * MS, no_core, enough, now, (now,))
    assert advice(lost("data"), Answers((), model, "read")).startswith(words)
