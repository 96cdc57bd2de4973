"""A run that is being written: appended rows are read once, and the screen follows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.overview import build_overview
from profkit.analysis.views.live import build_live_view
from profkit.analysis.views.runs import read_head
from profkit.clock import Anchor
from profkit.hangs.status import FOLDER
from profkit.testing import synthetic_trace
from profkit.trace import RankManifest, RunManifest, Trace
from profkit.trace.files import RankFiles
from profkit.trace.tail import RunTail, StreamTail
from profkit.tui.headless import settle
from profkit.tui.screens.timeline import TimelineScreen
from profkit.vocab import RunState, rank_folder
from tests.documents import report_text
from tests.hangs.test_verdict import IN_CODE, calls, rank
from tests.tui.driving import Driver, drive

MS = 1_000_000


class _Job:
    """A run of one rank that grows: a step waits 2 ms, computes 8 ms and has ten samples."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.steps = 0
        self.files = RankFiles(run / rank_folder(0), 0)
        RankManifest(0, "here", 1, "cpu", Anchor(0, 1_000 * MS, 0)).write(self.files.folder)
        self.tell(RunState.RUNNING)

    def tell(self, state: RunState) -> None:
        RunManifest(workload="job", framework="torch", state=state, created_ns=1).write(self.run)

    def train(self, steps: int) -> None:
        numbers = list(range(self.steps, self.steps + steps))
        begins = [number * 10 * MS for number in numbers]
        ends = [begin + 10 * MS for begin in begins]
        self.files.write(
            "spans", self._spans(numbers, "data", begins, [begin + 2 * MS for begin in begins])
        )
        self.files.write(
            "spans", self._spans(numbers, "forward", [begin + 2 * MS for begin in begins], ends)
        )
        losses = [1 / (1 + number) for number in numbers]
        known: dict[str, list[Any]] = {
            "sample_count": [10] * steps,
            "loss": losses,
            "instrumented": [True] * steps,
        }
        self.files.write("steps", {"step": numbers, "start_ns": begins, "end_ns": ends, **known})
        self.steps += steps

    def _spans(
        self, steps: list[int], phase: str, begins: list[int], ends: list[int]
    ) -> dict[str, list[Any]]:
        words = [phase] * len(steps)
        return {
            "step": steps,
            "phase": words,
            "name": words,
            "depth": [0] * len(steps),
            "thread": ["main"] * len(steps),
            "start_ns": begins,
            "end_ns": ends,
        }


@pytest.fixture
def job(tmp_path: Path) -> _Job:
    return _Job(tmp_path / "runs" / "job")


def test_each_look_reads_what_is_new_and_nothing_twice(job: _Job) -> None:
    tail = RunTail(job.run)
    assert build_live_view("job", tail.look(), 0).newest_step is None
    for steps in (3, 1, 20):
        job.train(steps)
        assert tail.look().steps.num_rows == job.steps
        assert tail.look().steps.num_rows == job.steps


def test_the_latest_steps_are_reported(job: _Job) -> None:
    job.train(30)
    view = build_live_view("job", RunTail(job.run).look(), 1_000 * MS + 30 * 10 * MS + 7 * MS)
    assert view.newest_step == 29
    assert view.age_ns == 7 * MS
    assert view.throughput.value == pytest.approx(1_000)
    assert {part.name: part.share for part in view.parts} == pytest.approx(
        {"data": 0.2, "forward": 0.8, "unknown": 0.0}
    )
    assert view.loss == pytest.approx(1 / 30)
    assert not view.stalled
    assert build_live_view("job", RunTail(job.run).look(), 3_600_000 * MS).stalled


def test_an_open_run_is_described_by_its_ranks(job: _Job) -> None:
    """The launcher writes what only they know into `run.json` when the job ends."""
    job.train(30)
    known = {"precision": "bf16", "batch_size": 16}
    anchor = Anchor(0, 1_000 * MS, 0)
    mine = RankManifest(0, "here", 1, "cpu", anchor, world_size=2, framework="paddle", config=known)
    mine.write(job.files.folder)
    RunManifest(workload="job").write(job.run)
    head, live = read_head(job.run), build_live_view("job", RunTail(job.run).look(), 0)
    view = build_overview(Trace.open(job.run))
    assert (view.framework, view.world_size, view.config) == ("paddle", 2, known)
    assert (live.framework, live.world_size, live.world) == ("paddle", 2, "2 ranks")
    assert (head.framework, head.ranks, head.precision, head.batch_size) == (
        "paddle",
        2,
        "bf16",
        16,
    )
    assert "paddle · bf16 · 2 ranks · batch 16 per rank" in report_text(view)


def test_half_a_message_waits_for_its_other_half(job: _Job, tmp_path: Path) -> None:
    job.train(5)
    job.train(5)
    whole = (job.run / rank_folder(0) / "steps.arrows").read_bytes()
    part = tmp_path / "steps.arrows"
    tail = StreamTail(part, "steps")
    rows = 0
    for size in range(0, len(whole) + 1, 7):
        part.write_bytes(whole[:size])
        rows += sum(batch.num_rows for batch in tail.read())
    part.write_bytes(whole)
    assert rows + sum(batch.num_rows for batch in tail.read()) == 10


def test_a_message_larger_than_a_look_is_read_in_the_end(
    job: _Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.train(400)
    tail = StreamTail(job.run / rank_folder(0) / "steps.arrows", "steps", _reach=64)
    monkeypatch.setattr("profkit.trace.tail.MOST_BYTES", 64)
    rows = 0
    for _ in range(20):
        rows += sum(batch.num_rows for batch in tail.read())
    assert rows == 400


@pytest.mark.parametrize("parts", [1.5, 2.5, 3.9])
def test_a_tail_is_behind_until_it_has_read_all(
    job: _Job, monkeypatch: pytest.MonkeyPatch, parts: float
) -> None:
    """Spans that lag behind the steps would be time that no phase covers."""
    for _ in range(60):
        job.train(4)
    spans = job.run / rank_folder(0) / "spans.arrows"
    most = round(spans.stat().st_size / parts)
    monkeypatch.setattr("profkit.trace.tail.MOST_BYTES", most)
    tail = StreamTail(spans, "spans", _reach=most)
    found, readings = tail.read(), 1
    while tail.behind:
        found += tail.read()
        readings += 1
    assert readings == math.ceil(parts)
    assert found[-1]["step"].to_numpy()[-1] == 239


def test_a_tail_agrees_with_the_reader(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", ranks=2, steps=40)
    latest, trace = RunTail(run).look(), Trace.open(run)
    for table in ("steps", "spans"):
        assert getattr(latest, table).to_pylist() == getattr(trace, table).to_pylist()


def test_the_screen_keeps_up_pauses_and_sees_the_end(job: _Job) -> None:
    job.train(10)

    async def watch(driver: Driver) -> None:
        assert driver.screen == "LiveScreen"
        assert "step 9" in driver.text
        await driver.press("space")
        assert "paused" in driver.text
        job.train(10)
        job.tell(RunState.COMPLETE)
        await driver.press("space")
        assert "step 19" in driver.text
        assert "complete" in driver.text

    drive(job.run, watch, follow=True)


def test_the_screen_says_why_a_job_stands_still(job: _Job) -> None:
    """The times of the fake job lie in 1970, so its last step is long ago."""
    job.train(10)
    folder = job.run / FOLDER
    folder.mkdir()
    for status in (rank(0), rank(1), rank(2), rank(3, stack=IN_CODE, calls=calls(55, done=True))):
        status.write(folder)

    async def watch(driver: Driver) -> None:
        assert "the job stood still, no step for 40.0 s: never entered" in driver.text

    drive(job.run, watch, follow=True)


def test_the_timeline_of_a_followed_run_grows_where_its_end_is_seen(job: _Job) -> None:
    job.train(10)

    async def grow(driver: Driver) -> None:
        job.train(10)
        driver.app._look_after = 0.0
        driver.app._keep_up()  # what its timer does
        await settle(driver.pilot)

    async def watch(driver: Driver) -> None:
        screen = driver.app.screen
        assert isinstance(screen, TimelineScreen)
        assert screen.seen.window.end_ns == 100 * MS
        await grow(driver)
        assert (screen.seen.window.start_ns, screen.seen.window.end_ns) == (0, 200 * MS)
        await driver.press("home")
        early = screen.seen.window
        assert "step 0: 10.0 ms" in driver.text
        await grow(driver)
        assert screen.seen.window == early
        assert "step 0: 10.0 ms" in driver.text
        await driver.press("end")
        assert "step 29" in driver.text

    drive(job.run, watch, follow=True, screen="timeline")
