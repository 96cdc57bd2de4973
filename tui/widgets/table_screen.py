"""The keys that all screens share: sort, find, copy and export what the screen shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

from textual.binding import Binding, BindingType

from profkit.errors import ProfkitError
from profkit.show import json as show_json
from profkit.tui.widgets import share
from profkit.tui.widgets.ask import Choose
from profkit.tui.widgets.frame import FrameScreen
from profkit.tui.widgets.table import VirtualTable

EXPORTS: Final = {"c": "CSV", "j": "JSON", "s": "SVG picture"}
"""The formats of exported files, each with the key that chooses it."""


class TableScreen(FrameScreen):
    """A screen whose keys sort, copy and export its main table."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "match(1)", "next match", show=False),
        Binding("N", "match(-1)", "previous match", show=False),
        Binding("s", "sort", "sort", show=False),
        Binding("comma", "sort_beside(-1)", "sort by previous column", show=False, key_display=","),
        Binding("full_stop", "sort_beside(1)", "sort by next column", show=False, key_display="."),
        Binding("y", "copy('row')", "copy row", show=False),
        Binding("Y", "copy('table')", "copy table", show=False),
        Binding("e", "export", "export", show=False),
    ]

    content: Callable[[], Any]
    """Returns what is shown as JSON values, or `None` before there is anything."""

    @property
    def table(self) -> VirtualTable:
        """The first table of the screen."""
        return self.query_one(VirtualTable)

    def row_text(self) -> str:
        """Return what `y` copies: the row under the cursor, or an empty string."""
        table = self.main_table()
        if table is None or table.row is None:
            return ""
        return share.as_tsv([[column.text(table.row) for column in table.columns]])

    def rows(self) -> Iterable[Sequence[str]]:
        """Yield the heading and the rows that are shown, which `Y` copies and `e` exports."""
        table = self.main_table()
        if table is not None and table.columns:
            yield [column.title for column in table.exported]
            for row in table.order.tolist():
                yield [column.text(row) for column in table.exported]

    def action_copy(self, kind: str) -> None:
        """Copy the row or the table to the clipboard and to a file."""
        text = self.row_text()
        if kind == "table":
            text = share.as_tsv(self.rows())
        if not text:
            self.tell("nothing to copy here")
            return
        self.app.copy_to_clipboard(text)
        words = f"copied the {kind} to the terminal's clipboard"
        file = share.keep_copied(text)
        if file is not None:
            words += f" and to {file}"
        self.tell(words)

    def action_export(self, choice: str | None = None) -> None:
        """Write what is shown to a new file; without a choice of its format, ask for it."""
        if choice is None:
            # The file is written after the next refresh, when the question is off the screen.
            self.app.push_screen(
                Choose("export what is shown as", EXPORTS),
                lambda choice: self.later(
                    self.call_after_refresh, self.action_export, choice or ""
                ),
            )
            return
        try:
            if choice == "c":
                file = share.export(share.as_csv(self.rows()), self.stem, "csv")
            elif choice == "j":
                file = share.export(show_json.dumps(self.content()) + "\n", self.stem, "json")
            elif choice == "s":
                file = share.export(share.picture_of(self.app), self.stem, "svg")
            else:
                return
        except ProfkitError as error:
            self.tell(str(error))
        else:
            self.tell(f"wrote {file}")

    def action_match(self, by: int) -> None:
        """Move the cursor to the next row that matches the filter: other rows are not shown."""
        table = self.main_table()
        if table is None or not table.pattern:
            self.tell("nothing to look for: press / to enter a filter")
            return
        before, words = table.cursor, ""
        table.action_step(by)
        if table.cursor == before:
            words = "no further match"
        self.tell(words)

    def action_sort(self) -> None:
        """Ask for a column to sort by; each has a letter of its own."""
        table = self.main_table()
        if table is None or not table.titles:
            self.tell("nothing to sort here")
            return
        keys: dict[str, str] = {}  # for each title the first of its letters that is free
        for title in table.titles:
            for char in (*title.lower(), *"0123456789"):
                if char.isalnum() and char not in keys:
                    keys[char] = title
                    break
        choice = Choose("sort by", keys)
        self.app.push_screen(choice, lambda key: table.sort_by(keys[key]) if key else None)

    def action_sort_beside(self, by: int) -> None:
        """Sort by the column before or after the one that the table is sorted by."""
        table = self.main_table()
        if table is not None and table.titles:
            place = 0
            if table.sort_title in table.titles:
                place = table.titles.index(table.sort_title) + by
            table.sort_by(table.titles[place % len(table.titles)])
