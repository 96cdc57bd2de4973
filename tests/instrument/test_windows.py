"""Windows open and close as planned, cost no step, and lose only their own rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from profkit.errors import UsageError
from profkit.instrument.guard import FAILURES
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.rows import Row
from profkit.instrument.windows.module_calls import ModuleCall
from profkit.instrument.windows.windows import Window, WindowCapture, WindowPlan
from profkit.testing import FakeClock, OpenStep
from profkit.vocab import WINDOW_BORDER, WINDOW_READING, WINDOW_STEP


@pytest.mark.parametrize(
    ("text", "covered"),
    [
        ("20:23", [20, 21, 22]),
        ("0:2", [0, 1]),
        ("every:10", [10, 20]),
        ("every:10:3", [10, 11, 12, 20, 21, 22]),
    ],
)
def test_a_plan_covers_the_steps_that_it_says(text: str, covered: list[int]) -> None:
    plan = WindowPlan.parse(text)
    assert [step for step in range(25) if plan.covers(step)] == covered


@pytest.mark.parametrize(
    "text",
    [
        "",
        "20",
        "23:20",
        "5:5",
        "every:",
        "every:0",
        "every:1",
        "every:5:5",
        "every:5:0",
        "-1:3",
        "1:2:3",
        "a:b",
    ],
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--kernels"):
        WindowPlan.parse(text)


@dataclass
class FakeProfiler:
    """Takes a while to start and to stop."""

    clock: FakeClock
    calls: list[str] = field(default_factory=list)
    starts: bool = True
    start_error: Exception | None = None
    stop_error: Exception | None = None
    module_calls: Sequence[ModuleCall] = ()

    def start(self) -> bool:
        self.clock.advance(1_000)
        self.calls.append("start")
        if self.start_error is not None:
            raise self.start_error
        return self.starts

    def stop(self) -> Callable[[Path], None]:
        self.clock.advance(5_000)
        self.calls.append("stop")
        if self.stop_error is not None:
            raise self.stop_error
        return _save


def _save(path: Path) -> None:
    path.write_text("a capture")


class Loop:
    """A loop of steps of 100 ns, each a forward of 60 ns."""

    def __init__(self, plan: str, **profiler: object) -> None:
        self.clock = FakeClock()
        self.sink = MemorySink()
        self.recorder = Recorder(self.sink, clock=self.clock)
        self.profiler = FakeProfiler(self.clock, **profiler)  # type: ignore[arg-type]
        self.windows: list[Window] = []
        kernels, samples = self.sink.appender("kernels"), self.sink.appender("samples")
        self.capture = WindowCapture(
            self.recorder,
            WindowPlan.parse(plan),
            self.profiler,
            kernels,
            samples,
            read_rows=self._read,
            clock=self.clock,
        )

    def _read(self, path: Path, window: Window) -> list[Row]:
        assert path.read_text() == "a capture"
        self.windows.append(window)
        return [("cpu", 0)]

    def train(self, steps: int) -> None:
        for _ in range(steps):
            with OpenStep(self.recorder, 4):
                with self.recorder.phase("forward"):
                    self.clock.advance(60)
                self.clock.advance(40)
            if self.capture._reader is not None:
                self.capture._reader.join(120)
        self.capture.finish()

    def values(self, metric: str) -> list[float]:
        return [row[4] for row in self.sink.rows["samples"] if row[2] == metric]


def test_a_window_is_captured_and_costs_no_step() -> None:
    loop = Loop("2:4")
    loop.train(8)
    assert loop.profiler.calls == ["start", "stop"]
    assert [row[2] - row[1] for row in loop.sink.rows["steps"]] == [100] * 8
    assert loop.values(WINDOW_BORDER) == [1_000, 5_000]
    assert loop.values(WINDOW_STEP)[:2] == [2, 3]
    assert len(loop.values(WINDOW_READING)) == 1
    (window,) = loop.windows
    assert (window.first_step, window.borders) == (2, [1_200, 1_300, 1_400])
    assert [(row[0], row[1], row[5], row[6]) for row in window.spans] == [
        (2, "forward", 1_200, 1_260),
        (3, "forward", 1_300, 1_360),
    ]
    assert loop.sink.rows["kernels"] == [("cpu", 0)]


def test_a_window_that_comes_again_is_captured_again() -> None:
    loop = Loop("every:3:2")
    loop.train(10)
    assert [window.first_step for window in loop.windows] == [3, 6, 9]
    assert [len(window.borders) - 1 for window in loop.windows] == [
        2,
        2,
        1,
    ]  # the last step is not done


def test_a_window_that_is_open_at_the_end_is_closed_and_read() -> None:
    loop = Loop("2:100")
    loop.train(5)
    assert loop.profiler.calls == ["start", "stop"]
    assert len(loop.windows[0].borders) == 4


def test_where_the_job_profiles_itself_nothing_is_captured() -> None:
    loop = Loop("2:4", starts=False)
    loop.train(8)
    assert "stop" not in loop.profiler.calls
    assert loop.sink.rows["kernels"] == []
    assert loop.values(WINDOW_STEP) == []


@pytest.mark.parametrize("broken", ["start_error", "stop_error"])
def test_a_profiler_that_raises_costs_its_windows_and_no_step(broken: str) -> None:
    before = FAILURES["kernel windows"]
    loop = Loop("every:2", **{broken: RuntimeError("no more room")})
    loop.train(9)
    assert len(loop.sink.rows["steps"]) == 9
    assert loop.sink.rows["kernels"] == []
    assert FAILURES["kernel windows"] == before + 1
    assert loop.profiler.calls.count("start") == 1


def test_a_capture_that_cannot_be_read_is_counted() -> None:
    before = FAILURES["the reading of a kernel window"]
    loop = Loop("2:4")
    loop.capture._read_rows = lambda path, window: json.loads(path.read_text())
    loop.train(6)
    assert FAILURES["the reading of a kernel window"] == before + 1
    assert loop.sink.rows["kernels"] == []


def test_after_the_end_nothing_opens() -> None:
    loop = Loop("4:6")
    loop.train(2)
    with OpenStep(loop.recorder, 4):
        loop.clock.advance(10)
    loop.train(5)
    assert loop.profiler.calls == []
