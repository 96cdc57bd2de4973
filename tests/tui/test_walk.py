"""A user's way from the list of runs to the cause of a slow one, and the common keys."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from profkit import plugins
from profkit.testing import synthetic_trace
from profkit.tui.app import ProfkitApp, load_screens
from profkit.tui.screens.runs import RunsScreen
from profkit.tui.widgets.ask import Prompt
from profkit.tui.widgets.table import VirtualTable
from tests.tui.driving import Driver, drive


def _table(driver: Driver, name: str = "") -> VirtualTable:
    screen: Any = driver.app.screen
    found = screen.query_one(f"#{name}", VirtualTable) if name else screen.main_table()
    assert isinstance(found, VirtualTable)
    return found


def _texts(table: VirtualTable, row: int) -> list[str]:
    return [column.text(row) for column in table.columns]


def _cell(driver: Driver) -> str:
    table = _table(driver)
    assert table.row is not None
    return _texts(table, table.row)[0].strip()


async def _mark(driver: Driver, name: str) -> None:
    _table(driver).select(
        next(key for key in _table(driver)._keys if isinstance(key, Path) and key.name == name)
    )
    await driver.press("space")


def test_from_two_runs_to_the_kernels_behind_their_difference(folder: Path) -> None:
    """Mark two runs, explain them, follow the largest row to a kernel, and go back."""

    async def walk(driver: Driver) -> None:
        assert driver.screen == "RunsScreen"
        await _mark(driver, "two")
        await _mark(driver, "slow")
        assert "2 runs marked" in driver.text
        await driver.press("d")
        assert driver.screen == "ExplainScreen"
        assert "Regression: a sample takes" in driver.text
        _table(driver, "rows").sort_by("difference", descending=True)
        await driver.press("home", "down")
        assert _cell(driver) == "backward"
        await driver.press("enter")
        assert driver.screen == "KernelsScreen"
        name = _cell(driver)
        await driver.press("enter")
        if driver.screen == "KernelsScreen":  # the calls of the kernel, in a list of their own
            await driver.press("enter")
        assert driver.screen == "TimelineScreen"
        assert name[:12] in driver.text
        while driver.screen != "RunsScreen":
            await driver.press("escape")

    drive(folder, walk)


def test_the_base_is_the_older_run_unless_they_are_swapped(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        assert "improvement:" in driver.text
        assert driver.app.run_path == folder / "two"
        await driver.press("s")
        assert "regression:" in driver.text
        assert driver.app.run_path == folder / "slow"

    drive(folder / "two", walk, bases=[folder / "slow"], screen="explain")


def test_more_runs_are_compared_pair_by_pair(series: Path) -> None:
    """Four runs with one repeat are three sides; a key goes through their pairs."""

    async def walk(driver: Driver) -> None:
        for name in ("again", "four", "one", "two"):
            await _mark(driver, name)
        await driver.press("d")
        assert [_texts(_table(driver, "scaling"), row)[:2] for row in range(3)] == [
            ["one", "1"],
            ["two and 1 repeat", "2"],
            ["four", "4"],
        ]
        assert "rank 2 is last in" not in driver.text
        assert "From one to two and 1 repeat" in driver.text
        await driver.press("p")
        assert "From one to four" in driver.text
        assert "rank 2 is last in" in driver.text
        assert driver.app.run_path == series / "four"
        await driver.press("p", "s")
        assert "From four to two and 1 repeat" in driver.text
        assert driver.app.run_path in {series / "two", series / "again"}
        await driver.press("p")
        assert "From one to two and 1 repeat" in driver.text
        _table(driver, "scaling").focus()
        await driver.press("end", "enter")
        assert "From one to four" in driver.text
        await driver.press("e", "j")
        assert "wrote" in driver.text

    drive(series, walk, size=(160, 60))
    (written,) = Path.cwd().glob("*.json")
    exported = json.loads(written.read_text())
    assert [pair["target"] for pair in exported["pairs"]] == ["four"]


def test_the_row_under_the_cursor_is_in_sight_on_a_small_screen(series: Path) -> None:
    async def walk(driver: Driver) -> None:
        for _ in range(7):
            await driver.press("down")
            assert _cell(driver) in driver.text
        await driver.press("end")
        assert _cell(driver)[:20] in driver.text

    drive(
        series / "four",
        walk,
        size=(80, 24),
        bases=[series / "one", series / "two"],
        screen="explain",
    )


def test_the_kernels_below_are_those_of_the_row_under_the_cursor(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        rows = _table(driver, "rows")
        assert "Kernels in the captured steps" in driver.text
        rows.select(("row", 0, "backward"))
        await driver.press("y")
        assert "Kernels of backward in the captured steps" in driver.text
        assert {
            _texts(_table(driver, "kernels"), row)[1]
            for row in range(_table(driver, "kernels").count)
        } == {"backward"}
        await driver.press("home")
        assert "Kernels in the captured steps" in driver.text

    drive(folder / "slow", walk, size=(160, 80), bases=[folder / "two"], screen="explain")


def test_the_filter_is_of_the_table_that_is_shown(folder: Path) -> None:
    """Two runs have no table of scaling, so that the first table of the screen is hidden."""

    async def walk(driver: Driver) -> None:
        await driver.press("slash")
        await driver.type("backward")
        assert "filter 'backward': " in driver.text
        assert _table(driver, "rows").pattern == "backward"
        assert not _table(driver, "scaling").pattern
        await driver.press("enter")
        assert driver.app.focused is _table(driver, "rows")
        await driver.press("escape")
        assert not _table(driver, "rows").pattern

    drive(folder / "slow", walk, bases=[folder / "two"], screen="explain")


def test_the_filter_is_of_the_table_with_the_focus(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        _table(driver, "kernels").focus()
        await driver.press("slash")
        await driver.type("gemm")
        assert _table(driver, "kernels").pattern == "gemm"
        assert not _table(driver, "rows").pattern
        await driver.press("enter")
        assert driver.app.focused is _table(driver, "kernels")
        await driver.press("slash", "escape")
        assert not _table(driver, "kernels").pattern
        assert driver.app.focused is _table(driver, "kernels")

    drive(folder / "slow", walk, size=(160, 80), bases=[folder / "two"], screen="explain")


def test_esc_ends_the_filter_of_another_table_before_it_leaves_the_screen(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        _table(driver, "kernels").focus()
        await driver.press("slash")
        await driver.type("gemm")
        await driver.press("enter")
        _table(driver, "rows").focus()
        await driver.press("escape")
        assert driver.screen == "ExplainScreen"
        assert not _table(driver, "kernels").pattern
        assert driver.app.focused is _table(driver, "rows")
        await driver.press("escape")
        assert driver.screen != "ExplainScreen"

    drive(folder / "slow", walk, size=(160, 80), bases=[folder / "two"], screen="explain")


def test_esc_ends_the_filter_that_is_typed_even_if_another_table_was_clicked(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        _table(driver, "kernels").focus()
        await driver.press("slash")
        await driver.type("gemm")
        _table(driver, "rows").focus()
        await driver.press("escape")
        assert driver.screen == "ExplainScreen"
        assert not _table(driver, "kernels").pattern
        assert not driver.app.screen.query_one(Prompt).display

    drive(folder / "slow", walk, size=(160, 80), bases=[folder / "two"], screen="explain")


def test_n_moves_between_the_matches_of_the_filter(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        await driver.press("n")
        assert "nothing to look for: press / to enter a filter" in driver.text
        assert _table(driver).cursor == 0
        await driver.press("slash")
        await driver.type("w")
        await driver.press("enter", "home")
        first = _cell(driver)
        await driver.press("n")
        assert {first, _cell(driver)} == {"two", "slow"}
        await driver.press("n")
        assert "no further match" in driver.text
        await driver.press("N")
        assert _cell(driver) == first

    drive(folder, walk)


def test_two_runs_are_asked_for_where_there_is_one(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        await driver.press("7")
        assert "press d, then Space and d on another one" in driver.text
        await driver.press("d")
        assert driver.screen == "RunsScreen"
        assert len(_table(driver).marked) == 1

    drive(folder / "one", walk)


def test_every_digit_opens_its_screen(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        for tab in driver.app.tabs:
            await driver.press(tab.key)
            assert tab.title == driver.app.screen.TITLE

    drive(folder / "two", walk)


def test_the_list_is_filtered_sorted_and_grouped(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        await driver.press("slash")
        await driver.type("slo")
        assert "filter 'slo': 1 of 3" in driver.text
        await driver.press("enter", "escape")
        assert len(_table(driver).order) == 3
        await driver.press("slash")
        await driver.type("re:^t")
        await driver.press("enter")
        assert _cell(driver) == "two"
        await driver.press("escape", "slash")
        await driver.type("re:(")
        assert "not a regular expression" in driver.text
        await driver.press("escape", "s", "s")
        assert _table(driver).sort_title == "samples/s"
        await driver.press("home")
        assert _cell(driver) == "two"
        await driver.press("comma")
        assert _table(driver).sort_title == "recorded"
        await driver.press("g")
        screen = driver.app.screen
        assert isinstance(screen, RunsScreen)
        assert screen._rows[0].head.name == "one"
        await driver.press("n", "N", "y")
        assert "copied the row" in driver.text

    drive(folder, walk)


def test_what_is_copied_stands_in_a_file(folder: Path, tmp_path: Path) -> None:
    async def walk(driver: Driver) -> None:
        await driver.press("y")
        copied = (tmp_path / "cache" / "copied.txt").read_text()
        assert copied.split("\t")[0] == _cell(driver)
        assert driver.app.clipboard == copied.rstrip("\n")
        await driver.press("Y")
        assert len((tmp_path / "cache" / "copied.txt").read_text().splitlines()) == 4

    drive(folder, walk)


@pytest.mark.parametrize(("key", "suffix"), [("c", "csv"), ("j", "json"), ("s", "svg")])
def test_what_is_shown_is_exported(folder: Path, key: str, suffix: str) -> None:
    async def walk(driver: Driver) -> None:
        await driver.press("e", key)
        assert "wrote" in driver.text

    drive(folder / "two", walk)
    (written,) = Path.cwd().glob(f"two-overview*.{suffix}")
    text = written.read_text()
    if suffix == "json":
        assert json.loads(text)["parts"][0]["name"] == "data"
    assert {"csv": "part,", "json": "{", "svg": "<svg"}[suffix] in text


def test_help_shows_the_keys_of_the_screen(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        await driver.press("question_mark")
        assert "Keys of Explain" in driver.text
        assert "swap base and target" in driver.text
        await driver.press("escape")
        assert driver.screen == "ExplainScreen"

    drive(folder / "two", walk, bases=[folder / "one"], screen="explain")


def test_t_goes_through_the_themes_and_ctrl_s_takes_a_picture(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        seen = [driver.app.theme]
        for _ in range(3):
            await driver.press("t")
            seen.append(driver.app.theme)
        assert seen == ["dark", "light", "ansi", "colour-blind"]
        await driver.press("ctrl+s")
        assert "wrote" in driver.text

    drive(folder / "one", walk)
    assert list(Path.cwd().glob("one-overview*.svg"))


def test_the_palette_of_commands_opens(folder: Path) -> None:
    async def walk(driver: Driver) -> None:
        await driver.press("ctrl+p")
        assert driver.screen == "CommandPalette"
        await driver.press("escape")
        assert driver.screen == "OverviewScreen"

    drive(folder / "one", walk)


def test_a_run_that_cannot_be_read_leaves_the_others(folder: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    synthetic_trace(runs / "good", steps=20)
    (runs / "bad").mkdir()
    (runs / "bad" / "run.json").write_text("{")
    (runs / "bare").mkdir()
    (runs / "bare" / "run.json").write_text((runs / "good" / "run.json").read_text())

    async def walk(driver: Driver) -> None:
        assert "unreadable" in driver.text
        await _open(driver, "bad")
        assert "not valid JSON" in driver.text
        assert "cannot be shown" in driver.text
        await driver.press("escape")
        await _open(driver, "bare")
        assert "holds no steps" in driver.text
        await driver.press("escape")
        await _open(driver, "good")
        assert "samples/s" in driver.text

    drive(runs, walk)


async def _open(driver: Driver, name: str) -> None:
    _table(driver).select(
        next(key for key in _table(driver)._keys if isinstance(key, Path) and key.name == name)
    )
    await driver.press("enter")


def test_a_new_run_appears_in_the_list(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    synthetic_trace(runs / "first", steps=20)

    async def walk(driver: Driver) -> None:
        assert _table(driver).count == 1
        synthetic_trace(runs / "second", steps=20)
        driver.app.screen._look()  # type: ignore[attr-defined]  # what its timer does
        await driver.press("home")
        assert _table(driver).count == 2
        assert "samples/s" in driver.text

    drive(runs, walk)


def test_an_empty_folder_says_how_to_fill_it(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()

    async def walk(driver: Driver) -> None:
        assert "make one with 'profkit run -- COMMAND'" in driver.text

    drive(tmp_path / "none", walk)


def test_a_screen_that_cannot_be_loaded_leaves_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = plugins.SCREENS.load_all()[0]
    kept = {name: kind for name, kind in loaded.items() if name != "kernels"}
    monkeypatch.setattr(
        plugins.Seam, "load_all", lambda seam: (kept, {"kernels": ImportError("no such module")})
    )

    async def walk(driver: Driver) -> None:
        assert driver.screen == "OverviewScreen"
        assert [tab.name for tab in driver.app.tabs] == [
            name for name in load_screens() if name != "kernels"
        ]

    drive(folder / "one", walk)


def test_leaving_while_figures_are_read_is_no_crash(folder: Path) -> None:
    async def run() -> int | None:
        app = ProfkitApp(folder)
        async with app.run_test() as pilot:
            await pilot.press("enter", "3", "q")
        return app.return_code

    assert not asyncio.run(run())
