"""The screen of lines: it opens at the selected part, and draws the stacks of a phase."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.flames import Flame, FlameBox
from profkit.analysis.stack_samples import Place
from profkit.show import json as show_json
from profkit.tui import headless
from profkit.tui.themes import PALETTES
from profkit.tui.widgets.flame_draw import OTHER_MARK, OWN_MARK, PLAIN_OWN_MARK, flame_lines
from profkit.tui.widgets.table import VirtualTable
from tests.analysis.test_stacks import write_run
from tests.tui.driving import Driver, drive, shown
from tests.tui.figures import figures_of, unknown_figures

PALETTE = next(iter(PALETTES.values()))


def _table(driver: Driver, name: str) -> VirtualTable:
    screen: Any = driver.app.screen
    found = screen.query_one(f"#{name}", VirtualTable)
    assert isinstance(found, VirtualTable)
    return found


def _phase_under_cursor(driver: Driver) -> str:
    table = _table(driver, "lines")
    assert table.row is not None
    return table.columns[0].text(table.row)


def test_c_opens_the_lines_of_the_part_under_the_cursor(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        parts = _table(driver, "parts")
        keys = [key for key in parts._keys if key.parent == "forward"]
        parts.select(keys[0])
        await driver.press("c")
        assert driver.screen == "CodeScreen"
        assert _phase_under_cursor(driver) == "forward"
        assert "model.py:34 Net.forward" in driver.text
        assert "stacks of forward" in driver.text
        await driver.press("p")
        assert _phase_under_cursor(driver) != "forward"
        await driver.press("P")
        assert _phase_under_cursor(driver) == "forward"
        await driver.press("escape")
        assert driver.screen == "OverviewScreen"

    drive(folder / "slow", walk)


def test_c_opens_the_targets_lines_of_the_row_under_the_cursor(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        rows = _table(driver, "rows")
        rows.select(next(key for key in rows._keys if key[2] == "backward"))
        await driver.press("c")
        assert driver.screen == "CodeScreen"
        assert _phase_under_cursor(driver) == "backward"

    drive(folder / "slow", walk, screen="explain", bases=[folder / "two"])


def test_one_rank_alone(folder: Path) -> None:
    whole = headless.twin(folder / "slow", "code", ())["code"]["samples"]
    counts = []

    async def walk(driver: Driver) -> None:
        await driver.press("right_square_bracket")
        content = driver.app.screen.content()  # type: ignore[attr-defined]
        counts.append(json.loads(show_json.dumps(content)))

    drive(folder / "slow", walk, screen="code")
    assert counts[0]["rank"] == 0
    assert 0 < counts[0]["code"]["samples"] < whole


@pytest.mark.parametrize("run", ["one", "two"])
def test_without_stacks_it_says_how_to_get_some(folder: Path, run: str) -> None:
    assert "record with --lines on" in shown(folder / run, screen="code")


def test_a_flame_graph_has_a_line_for_each_depth_and_widths_of_the_shares() -> None:
    place = Place("a.py", 3, "outer")
    boxes = [FlameBox(0, 0.0, 1.0, Place("a.py", 1, "main"), True)]
    boxes += [FlameBox(1, 0.0, 0.75, place, True), FlameBox(1, 0.75, 0.25, place, False)]
    boxes.append(FlameBox(2, 0.75, 0.2, Place("b.py", 9, "\x1b[31minner"), False))
    flame = Flame("forward", 1e6, 100, tuple(boxes))
    drawn = [each.plain for each in flame_lines(flame, PALETTE, 80, plain=False)]
    assert len(drawn) == 3
    assert [drawn[1].index(mark) for mark in (OWN_MARK, OTHER_MARK)] == [0, 60]
    assert len(drawn[1]) == 80
    assert drawn[2].startswith(" " * 60 + OTHER_MARK)
    assert "\x1b" not in "".join(drawn)
    plain = [each.plain for each in flame_lines(flame, PALETTE, 80, plain=True)]
    assert plain[0].startswith(f"{PLAIN_OWN_MARK}main a.py:1")
    assert all(text.isascii() for text in plain)


def test_callers_that_hold_everything_are_left_out() -> None:
    boxes = [FlameBox(depth, 0.0, 1.0, Place("a.py", depth, "f"), True) for depth in range(30)]
    boxes.append(FlameBox(30, 0.0, 0.6, Place("a.py", 99, "slow"), True))
    boxes.append(FlameBox(30, 0.6, 0.4, Place("a.py", 98, "fast"), True))
    flame = Flame("forward", 1e6, 100, tuple(boxes))
    drawn = [each.plain for each in flame_lines(flame, PALETTE, 60, plain=False)]
    assert len(drawn) == 2
    assert "slow a.py:99" in drawn[1]


def test_explain_lists_the_lines_that_differ(tmp_path: Path) -> None:
    write_run(tmp_path / "base")
    write_run(tmp_path / "target", clip_ms=60)

    async def walk(driver: Driver) -> None:
        table = _table(driver, "lines")
        assert table.count == 1
        assert [column.text(0) for column in table.columns] == [
            "train.py:22 clip",
            "unknown",
            "30.0 ms",
            "60.0 ms",
            "+30.0 ms",
            "+29.1 ms to +30.9 ms",
        ]
        table.focus()
        await driver.press("enter")
        assert driver.screen == "CodeScreen"
        assert _phase_under_cursor(driver) == "unknown"

    drive(tmp_path / "target", walk, screen="explain", bases=[tmp_path / "base"])


def test_every_figure_is_in_the_twin(folder: Path) -> None:
    text = shown(folder / "slow", screen="code", size=(200, 50))
    body = "\n".join(text.splitlines()[1:-1]).replace("95 % interval", "")
    twin = json.loads(show_json.dumps(headless.twin(folder / "slow", "code", ())))
    assert len(figures_of(body)) > 8
    assert unknown_figures(body, twin) == set()
