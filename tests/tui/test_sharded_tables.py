"""The exchange by dimension and the stages of a pipeline on the screen of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.overview import build_overview
from profkit.report.words import run_meanings
from profkit.trace import Trace
from profkit.tui import headless
from profkit.tui.widgets.table import VirtualTable
from tests.rules.test_sharded_rules import fsdp, parts, pipeline
from tests.sharded_runs import Action, Begin, sharded_run
from tests.tui.driving import Driver, drive, shown
from tests.tui.figures import body_of, figures_of, unknown_figures


def write(folder: Path, job: Any, **options: Any) -> Path:
    return sharded_run(folder, lambda rank: list(job(rank)), **options)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline of two ranks, of which the run says the schedule."""
    return write(tmp_path_factory.mktemp("pp") / "run", pipeline, config=parts("a", "b"))


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FSDP on two ranks, of which the second is late."""
    folder = tmp_path_factory.mktemp("fsdp") / "run"
    return sharded_run(folder, lambda rank: list(fsdp(rank, late={1: 6.0})))


def test_stages_have_the_parts_of_their_waits(staged: Path) -> None:
    async def look(driver: Driver) -> None:
        screen: Any = driver.app.screen
        assert "Pipeline, per step" in driver.text
        assert "ScheduleGPipe, microbatches per step: 4." in driver.text
        table = screen.query_one("#stages", VirtualTable)
        stages = screen.view.sharded.pipeline.stages
        assert table.titles == [
            "rank", "stages", "computes", "waits", "imbalance", "bubble", "rest"
        ]  # fmt: skip
        assert [column.values for column in table.columns[2:]] == [
            [getattr(stage, f"{name}_ns") for stage in stages]
            for name in ("compute", "exposed", "imbalance", "bubble", "rest")
        ]
        table.focus()
        await driver.press("down", "enter")
        assert driver.screen == "TimelineScreen"

    drive(staged, look, screen="ranks", size=(200, 60))


def test_only_in_a_pipeline_may_other_be_its_schedule(staged: Path, late: Path) -> None:
    for folder, is_said in ((staged, True), (late, False)):
        meanings = run_meanings(build_overview(Trace.open(folder)))
        assert (meanings.get("other", "").startswith("the pipeline's schedule")) is is_said


def test_the_late_rank_of_a_dimension_is_named(late: Path) -> None:
    text = shown(late, screen="ranks", size=(200, 60))
    assert "Exchange by dimension, per step and rank" in text
    assert "In fsdp, rank 1 is late" in text
    assert "Pipeline, per step" not in text


def test_parts_that_were_not_measured_have_no_figures(tmp_path: Path) -> None:
    def job(rank: int) -> Iterator[Action]:
        yield from fsdp(rank)
        if rank:
            yield Begin("alone", "all_gather", (0, 1), 1.0, "fsdp", "m")

    async def look(driver: Driver) -> None:
        table = driver.app.screen.query_one("#dimensions", VirtualTable)
        for column in table.columns:
            if column.title in ("waiting", "transfer"):
                assert {column.text(row) for row in range(table.count)} == {"-"}
        assert "were not seen on all of their ranks" in driver.text
        assert "record all ranks" not in driver.text, "they were"

    drive(write(tmp_path / "run", job), look, screen="ranks", size=(200, 60))


@pytest.mark.parametrize("kind", ["staged", "late"])
def test_every_figure_is_in_the_json(kind: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(kind)
    text = body_of(shown(run, screen="ranks", size=(200, 80)))
    assert len(figures_of(text)) > 20
    assert unknown_figures(text, headless.twin(run, "ranks")) == set()


@pytest.mark.parametrize("size", [(20, 6), (80, 24)])
def test_the_tables_fit_any_terminal(staged: Path, size: tuple[int, int]) -> None:
    lines = shown(staged, screen="ranks", size=size, plain=True).splitlines()
    assert all(len(line) <= size[0] for line in lines)


def test_a_job_that_is_not_sharded_has_no_such_tables(folder: Path) -> None:
    assert "Exchange by dimension" not in shown(folder / "two", screen="ranks", size=(200, 60))
