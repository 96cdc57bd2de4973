"""The timeline and the overview mark the steps at which the step time changes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from profkit.cli import main
from profkit.testing.series import series_trace
from profkit.tui.screens.timeline import TimelineScreen
from tests.tui.driving import Driver, drive, shown

MS = 1_000_000
STEPS, AT = 300, 150
MARK, ABOVE = "\u25c6", "\u25bc"
"""The marks of the timeline, and above the overview's step times."""


def _run(folder: Path, *, more_ms: float) -> Path:
    forward = 50 * MS * np.exp(0.02 * np.random.default_rng(0).standard_normal(STEPS))
    forward[AT:] += more_ms * MS
    return series_trace(folder, {"data": np.full(STEPS, 5.0 * MS), "forward": forward}, ranks=2)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _run(tmp_path_factory.mktemp("runs") / "changed", more_ms=12)


def _screen(driver: Driver) -> TimelineScreen:
    screen = driver.app.screen
    assert isinstance(screen, TimelineScreen)
    return screen


def _words(driver: Driver) -> str:
    return _screen(driver).canvas.words


def test_the_timeline_marks_the_step_and_says_what_changed(changed: Path) -> None:
    async def steps(driver: Driver) -> None:
        ruler = driver.text.splitlines()[2:6]
        assert sum(line.count(MARK) for line in ruler) == 1, ruler
        assert "since step" not in _words(driver)
        await driver.press("home", "0", "c")
        assert _words(driver).startswith(f"since step {AT} ("), _words(driver)
        assert "forward +1" in driver.text
        (mark,) = _screen(driver).content()["changes"]
        assert mark["step"] == AT
        assert mark["words"] == _words(driver)
        await driver.press("c")
        assert "no change of the step time after here" in driver.text
        await driver.press("end", "C")
        assert _words(driver).startswith(f"since step {AT} (")

    drive(changed, steps, screen="timeline", size=(160, 40))


def test_the_cursor_on_the_mark_shows_the_sentence(changed: Path) -> None:
    async def steps(driver: Driver) -> None:
        screen = _screen(driver)
        (mark,) = screen.content()["changes"]
        screen.seen.point_at(mark["column"], None)
        screen.redraw()
        await driver.press("up")
        assert _words(driver) == mark["words"]
        await driver.press("shift+left")
        assert _words(driver) != mark["words"]

    drive(changed, steps, screen="timeline")


def test_the_twin_has_the_marks(changed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tui", str(changed), "--screen", "timeline", "--json"]) == 0
    (mark,) = json.loads(capsys.readouterr().out)["changes"]
    assert mark["step"] == AT


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
def test_the_overview_marks_the_step_above_its_times(changed: Path, size: tuple[int, int]) -> None:
    lines = shown(changed, size=size).splitlines()
    marked = [line for line in lines if ABOVE in line]
    if size[1] < 30 and not marked:
        return  # the step times are below the screen's end
    assert len(marked) == 1, lines


def test_a_run_without_changes_has_no_marks(tmp_path: Path) -> None:
    healthy = _run(tmp_path / "healthy", more_ms=0)

    async def steps(driver: Driver) -> None:
        assert _screen(driver).content()["changes"] == []
        assert MARK not in driver.text

    drive(healthy, steps, screen="timeline")
    assert ABOVE not in shown(healthy)
