"""Windows that open by themselves cost a thousandth of a job, and disturb nobody."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profkit.instrument.captures import Captures
from profkit.instrument.guard import Patches
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.rows import Row
from profkit.instrument.windows.automatic import (
    COMPARED,
    LARGEST_SHARE,
    LOOK_EVERY_S,
    OTHER_TOOLS,
    STEPS,
    AutomaticWindows,
    is_traced,
)
from profkit.instrument.windows.module_calls import ModuleCall
from profkit.instrument.windows.windows import Window, WindowCapture
from profkit.run.choosing import Choice
from profkit.run.collecting import Collecting
from profkit.testing import FakeClock, OpenStep
from profkit.vocab import WINDOW_BORDER

MS, S = 1_000_000, 1_000_000_000


class Profiler:
    """Takes time to start and to stop, and makes the steps between slower."""

    module_calls: Sequence[ModuleCall] = ()

    def __init__(self, clock: FakeClock, border_ns: int) -> None:
        self.clock, self.border_ns = clock, border_ns
        self.is_running = False

    def start(self) -> bool:
        self.clock.advance(self.border_ns)
        self.is_running = True
        return True

    def stop(self) -> Callable[[Path], None]:
        self.clock.advance(self.border_ns)
        self.is_running = False
        return lambda path: path.touch()


class Loop:
    """A job whose steps take `step_ns`, and in windows `slower` times as long."""

    def __init__(
        self, step_ns: int = 500 * MS, *, border_ns: int = 60 * MS, slower: float = 1.5
    ) -> None:
        self.clock, self.captures = FakeClock(), Captures()
        self.recorder = Recorder(MemorySink(), clock=self.clock, is_measured=self._is_measured)
        self.profiler = Profiler(self.clock, border_ns)
        self.step_ns, self.slower = step_ns, slower
        self.off: set[int] = set()
        self.may_open = True
        self.windows: list[Window] = []
        self.samples: list[Row] = []
        self.lost_ns = 0
        self.automatic = AutomaticWindows(
            self.recorder,
            self._make,
            lambda: self.may_open,
            clock=self.clock,
            captures=self.captures,
        )
        self.began = self.clock()
        self._looked = self.began

    def _is_measured(self, step: int) -> bool:
        return step not in getattr(self, "off", ())

    def _make(self, plan: Any) -> WindowCapture:
        return WindowCapture(
            self.recorder,
            plan,
            self.profiler,
            lambda row: None,
            self.samples.append,
            read_rows=self._read,
            clock=self.clock,
            is_called=False,
        )

    def _read(self, path: Path, window: Window) -> list[Row]:
        self.windows.append(window)
        return []

    def train(self, seconds: float) -> None:
        while self.clock() - self.began < seconds * S:
            length = round(self.step_ns * (self.slower if self.profiler.is_running else 1))
            self.lost_ns += length - self.step_ns
            with OpenStep(self.recorder, 1):
                self.clock.advance(length)
            reader = self.automatic._capture._reader
            if reader is not None:
                reader.join(60)
            if self.clock() - self._looked >= LOOK_EVERY_S * S:
                self._looked = self.clock()
                self.automatic.look()

    @property
    def spent_ns(self) -> float:
        borders = [float(row[4]) for row in self.samples if row[2] == WINDOW_BORDER]
        return self.lost_ns + sum(borders)


@pytest.mark.parametrize(
    ("step_ns", "border_ns", "slower"),
    [(500 * MS, 60 * MS, 1.5), (2 * S, 10 * MS, 1.1), (100 * MS, 2 * S, 4.0)],
)
def test_windows_take_a_thousandth_of_the_time(step_ns: int, border_ns: int, slower: float) -> None:
    loop = Loop(step_ns, border_ns=border_ns, slower=slower)
    loop.train(4 * 3_600)
    first = loop.windows[0]
    assert first.borders[0] - loop.began >= 600 * S
    assert all(len(window.borders) == STEPS + 1 for window in loop.windows)
    assert loop.automatic.spent_ns == pytest.approx(loop.spent_ns, rel=0.01)
    share = loop.spent_ns / (loop.clock() - loop.began)
    assert share <= LARGEST_SHARE
    assert len(loop.windows) < 6, "the kernels of a job of days must not fill its disk"


def test_the_next_window_waits_until_the_last_one_is_paid() -> None:
    loop = Loop(border_ns=5 * S)
    loop.train(3_600)
    assert len(loop.windows) == 1
    assert loop.automatic.due_ns >= 2 * loop.automatic.spent_ns / LARGEST_SHARE


def test_between_windows_nothing_is_called_between_steps() -> None:
    loop = Loop()
    loop.train(500)
    assert loop.recorder.at_border is None
    loop.train(660)
    assert len(loop.windows) == 1
    assert loop.recorder.at_border is None
    assert len(loop.samples) < 3 * STEPS + 4


def test_another_user_of_the_border_is_called_as_before() -> None:
    loop, called = Loop(), list[int]()
    loop.recorder.at_border = called.append
    loop.train(660)
    assert len(loop.windows) == 1
    assert called == list(range(1, len(called) + 1))


def test_no_window_opens_once_graphs_were_captured() -> None:
    loop = Loop()
    loop.captures.begin()
    loop.captures.end()
    loop.train(1_500)
    assert not loop.windows


def test_no_window_opens_if_a_graph_is_captured_just_before() -> None:
    loop = Loop()
    loop.train(600)
    loop.automatic.look()
    loop.captures.begin()
    loop.captures.end()
    loop.train(700)
    assert not loop.windows
    assert loop.recorder.at_border is None


def test_no_window_opens_while_it_would_disturb_anyone() -> None:
    loop = Loop()
    loop.may_open = False
    loop.train(1_000)
    assert not loop.windows
    loop.may_open = True
    loop.train(1_100)
    assert len(loop.windows) == 1


def test_a_window_has_steps_whose_phases_are_timed() -> None:
    loop = Loop()
    loop.train(600)
    loop.automatic.look()
    now = loop.recorder.step_index
    loop.off = {now + COMPARED, now + COMPARED + 2}
    loop.train(660)
    assert loop.windows[0].first_step == now + COMPARED + 3


def test_long_steps_are_not_captured() -> None:
    loop = Loop(4 * S)
    loop.train(3_600)
    assert not loop.windows


def test_a_window_that_is_open_at_the_end_is_closed_and_read() -> None:
    loop = Loop()
    loop.train(600)
    while not loop.profiler.is_running:
        loop.train((loop.clock() - loop.began) / S + 1)
    loop.automatic.finish()
    assert len(loop.windows) == 1
    assert loop.recorder.at_border is None


@pytest.mark.parametrize("name", OTHER_TOOLS)
def test_tools_that_use_cupti_are_known(name: str) -> None:
    assert is_traced({name: "1"})
    assert not is_traced({name: ""})
    assert not is_traced({})


def _choose(collect: str, windows: str) -> Choice:
    return Choice.parse(collect, windows, operators=False)


def test_they_are_on_by_default_and_off_when_another_choice_is_made() -> None:
    assert _choose("", "").rarely
    assert _choose("usual,nvml", "").rarely
    for collect, windows in [("", "off"), ("none", ""), ("host", ""), ("", "4:6"), ("kernels", "")]:
        assert not _choose(collect, windows).rarely
    assert _choose("", "off").windows is None
    assert _choose("kernels", "off").windows is None


def _drop(row: Row) -> None:
    pass


class Framework:
    """A framework on a device, with a profiler that leaves nothing behind."""

    name = "torch"

    def __init__(self, **profiler: Any) -> None:
        self.profiler = SimpleNamespace(**profiler)
        self.operators: list[bool] = []

    def kernel_profiler(self, patches: Patches, *, operators: bool) -> Any:
        self.operators.append(operators)
        return self.profiler


@pytest.mark.parametrize(
    ("device", "is_first", "variables", "windows", "opened"),
    [
        ("cuda:0", True, {}, "", True),
        ("cuda:0", False, {}, "", False),
        ("cpu", True, {}, "", False),
        ("cuda:0", True, {OTHER_TOOLS[0]: "libToolsInjection64.so"}, "", False),
        ("cuda:0", True, {}, "off", False),
    ],
)
def test_they_are_for_the_first_rank_on_a_device_that_nobody_traces(
    device: str,
    is_first: bool,
    variables: dict[str, str],
    windows: str,
    opened: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    framework: Any = Framework(leaves_nothing=lambda: True)
    choice = Choice.parse("", windows, operators=False, lines="off")
    recorder = Recorder(MemorySink())
    collecting = Collecting(
        choice, recorder, framework, _drop, _drop, device=device, is_first=is_first
    )
    assert framework.operators == [True] * opened, "operators lead to modules"
    assert recorder.at_border is None
    collecting.stop()


def test_a_profiler_that_may_leave_something_is_not_used() -> None:
    framework: Any = Framework()  # as Paddle's
    choice = Choice.parse("", "", operators=False, lines="off")
    recorder = Recorder(MemorySink())
    collecting = Collecting(choice, recorder, framework, _drop, _drop, device="gpu:0")
    assert collecting._automatic is None
    collecting.stop()


def test_torch_leaves_nothing_where_cupti_is_torn_down(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from profkit.instrument.frameworks.pytorch import windows

    monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)
    monkeypatch.setattr(windows, "CAPTURES", captures := Captures())
    kernels = windows.Kernels(operators=True)
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    assert not kernels.leaves_nothing(), "an older CUPTI harms CUDA graphs as it ends"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert kernels.leaves_nothing()
    monkeypatch.setenv("TEARDOWN_CUPTI", "0")
    assert not kernels.leaves_nothing(), "later launches would take longer"
    monkeypatch.delenv("TEARDOWN_CUPTI")
    captures.begin()
    assert not kernels.leaves_nothing()
    monkeypatch.setattr(windows, "CAPTURES", Captures())
    kernels.give_way()
    assert not kernels.leaves_nothing(), "the job profiles itself"
    assert json.dumps(kernels.is_shared) == "true"
