"""The table: its order, its filter, and the text of its cells on the screen."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import numpy as np
import pytest
from textual.app import App, ComposeResult

from profkit.errors import UsageError
from profkit.text import duration
from profkit.tui.themes import PALETTES
from profkit.tui.widgets.columns import Column
from profkit.tui.widgets.draw import bar, fit, level, stacked
from profkit.tui.widgets.row_order import compile_filter
from profkit.tui.widgets.table import VirtualTable
from tests.hostile import INJECTIONS, UNSAFE
from tests.tui.driving import screen_lines

ROWS = 1_000_000


class _Alone(App[None]):
    """An app with nothing but a table."""

    def compose(self) -> ComposeResult:
        yield VirtualTable()


def _screen(
    columns: list[Column],
    act: Callable[[VirtualTable], object] = lambda _: None,
    *,
    size: tuple[int, int] = (80, 24),
    plain: bool = False,
) -> list[str]:
    """Return the lines of a table of these columns, after an action on it."""

    async def run() -> list[str]:
        app = _Alone()
        async with app.run_test(size=size) as pilot:
            table = app.query_one(VirtualTable)
            table.set_look(PALETTES["dark"], plain=plain)
            table.show_rows(columns, keys=list(columns[0].values))
            table.focus()
            act(table)
            await pilot.pause()
            return screen_lines(app.export_screenshot())

    return asyncio.run(run())


@pytest.mark.parametrize(("plain", "ellipsis"), [(False, "…"), (True, "~")])
def test_a_figure_that_the_window_cuts_is_marked(plain: bool, ellipsis: str) -> None:
    """Half a figure would be another figure, at either side."""

    def scroll(table: VirtualTable) -> None:
        table.scroll_to(x=14, animate=False, force=True)

    columns = [
        Column("time", [123_456_789.0], duration, right=True),
        Column("interval", ["+12.34 ms to +56.78 ms"]),
        Column("verdict", ["regression"]),
    ]
    whole = _screen(columns, size=(60, 4), plain=plain)
    assert "123 ms" in whole[1]
    assert "+56.78 ms  regression" in whole[1]
    assert ellipsis not in whole[1]
    cut = _screen(columns, size=(26, 4), plain=plain)
    assert cut[1].endswith(ellipsis)
    scrolled = _screen(
        columns, lambda table: table.call_after_refresh(scroll, table), size=(26, 4), plain=plain
    )
    assert scrolled[1].startswith(ellipsis)


def test_a_million_rows_are_sorted_filtered_and_drawn() -> None:
    values = np.random.default_rng(0).permutation(ROWS)

    def act(table: VirtualTable) -> None:
        table.sort_by("ns")
        assert table.order[0] == int(values.argmax())
        table.sort_by("ns")
        assert table.order[0] == int(values.argmin())
        table.filter_by("99999")
        assert sorted(values[table.order].tolist()) == [
            value for value in range(ROWS) if "99999" in str(value)
        ]

    lines = _screen(
        [
            Column("row", range(ROWS), searched=False),
            Column("ns", values, duration, right=True, searched=False),
            Column("name", values, str),
        ],
        act,
    )
    assert lines[1].split()[1:] == [*duration(99_999).split(), "99999"]


def test_rows_without_a_value_stand_last_in_both_directions() -> None:
    def act(table: VirtualTable) -> None:
        table.sort_by("ns")
        assert table.order.tolist()[:3] == [0, 4, 2]
        table.sort_by("ns")
        assert table.order.tolist()[:3] == [2, 4, 0]
        table.show_rows([Column("ns", np.array([3.0, math.nan, 1.0]), right=True)])
        table.sort_by("ns", descending=True)
        assert table.order.tolist() == [0, 2, 1]

    _screen(
        [Column("name", "abcde"), Column("ns", [3.0, None, 1.0, math.nan, 2.0], right=True)], act
    )


def test_the_cursor_and_the_marks_stay_on_their_rows_when_others_come() -> None:
    def act(table: VirtualTable) -> None:
        table.select("b")
        table.marked = {table.key}
        table.show_rows([Column("name", ["new", "a", "b", "c"])], keys=["new", "a", "b", "c"])
        assert table.key == "b"
        table.sort_by("name", descending=True)
        assert (table.key, table.marked) == ("b", {"b"})
        table.show_rows([Column("name", ["new"])], keys=["new"])
        assert table.row == 0

    _screen([Column("name", ["a", "b", "c"])], act)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [("CONV", "a conv", True), ("re:^b", "ab", False), ("re:b$", "aB", True), ("[", "a[b", True)],
)
def test_a_filter_is_a_part_of_a_name_or_a_pattern(pattern: str, text: str, found: bool) -> None:
    assert compile_filter(pattern)(text) is found


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "(" * 5000 + ")" * 5000])
def test_a_pattern_that_is_no_expression_is_an_error_of_use(pattern: str) -> None:
    with pytest.raises(UsageError, match="not a regular expression"):
        compile_filter(f"re:{pattern}")


@pytest.mark.parametrize("name", INJECTIONS)
def test_no_name_steers_the_screen(name: str) -> None:
    """A hostile name is neither a control character nor markup, and moves no other cell."""
    hostile = INJECTIONS[name]
    for plain in (False, True):
        lines = _screen(
            [Column("name", [hostile, "tame"], stretches=True), Column("n", [7, 8], right=True)],
            size=(60, 10),
            plain=plain,
        )
        assert not any(UNSAFE.search(line) for line in lines)
        assert lines[1].endswith("7")
        assert lines[2].split() == ["tame", "8"]


def test_wide_and_joined_characters_keep_the_columns_straight() -> None:
    lines = _screen(
        [
            Column(
                "name", ["日本語カーネル" * 9, "👩‍👩‍👧 family", "plain"], stretches=True, widest=20
            ),
            Column("n", [1, 2, 3], right=True),
        ],
        size=(40, 8),
    )
    assert [line.split()[-1] for line in lines[1:4]] == ["1", "2", "3"]


def test_a_cell_has_exactly_its_width() -> None:
    assert fit("kernel", 10) == "kernel    "
    assert fit("kernel", 10, right=True) == "    kernel"
    assert fit("kernel", 4) == "ker…"
    assert fit("kernel", 4, plain=True) == "ker~"
    assert fit("é", 2, plain=True) == "? "
    assert fit("日本", 3) == "日…"


def test_the_parts_of_a_bar_fill_it() -> None:
    cells = stacked([("a", 0.5), ("b", 0.333), ("c", 0.167), ("less than nothing", -0.2)], 10)
    assert cells == [("a", 5), ("b", 3), ("c", 2), ("less than nothing", 0)]
    assert stacked([("a", math.nan)], 10) == [("a", 0)]
    assert bar(0.5, 4) == "██"
    assert bar(0.5, 4, plain=True) == "##"
    assert bar(-1.0, 4) == bar(math.nan, 4) == ""
    assert [level(value, 0, 1) for value in (0.0, 1.0, math.nan)] == ["▁", "█", " "]
