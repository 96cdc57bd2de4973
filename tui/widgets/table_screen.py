"""The keys that all screens share: sort, find, copy and export what the screen shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from profkit.errors import ProfkitError
from profkit.report import as_json
from profkit.tui.widgets import share
from profkit.tui.widgets.ask import Choose
from profkit.tui.widgets.frame import FrameScreen


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

    def row_text(self) -> str:
        """Return what `y` copies: the row under the cursor, or an empty string."""
        table = self.main_table()
        if table is None or table.row is None:
            return ""
        return share.as_tsv([table.texts(table.row)])

    def rows(self) -> Iterable[Sequence[str]]:
        """Yield the heading and the rows that are shown, which `Y` copies and `e` exports."""
        table = self.main_table()
        if table is not None and table.columns:
            yield [column.title for column in table.columns]
            yield from map(table.texts, table.order.tolist())

    def content(self) -> Any:
        """Return what is shown as JSON values, or `None` before there is anything."""
        header, *rows = list(self.rows()) or [()]
        return [dict(zip(header, row, strict=True)) for row in rows]

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

    def action_export(self) -> None:
        formats = {"c": "CSV", "j": "JSON", "s": "SVG picture"}
        self.app.push_screen(Choose("export what is shown as", formats), self._export)

    def _export(self, choice: str | None) -> None:
        # Files are written after the next refresh, when the question is off the screen.
        if choice == "c":
            self.call_after_refresh(self.write, "csv", lambda: share.as_csv(self.rows()))
        elif choice == "j":
            self.call_after_refresh(
                self.write, "json", lambda: as_json.dumps(self.content()) + "\n"
            )
        elif choice == "s":
            self.call_after_refresh(self.write_picture)

    def write_picture(self) -> None:
        """Export an SVG picture of the screen."""
        self.write("svg", lambda: share.picture_of(self.app))

    def write(self, suffix: str, make: Callable[[], str]) -> None:
        """Export a text to a new file, and show the file's name or the problem."""
        try:
            self.tell(f"wrote {share.export(make(), self.stem, suffix)}")
        except ProfkitError as error:
            self.tell(str(error))

    def action_match(self, by: int) -> None:
        """Move the cursor to the next row that the filter shows."""
        table = self.main_table()
        if table is not None:
            table.step(by)

    def _titles(self) -> list[str]:
        """Return the titles that the main table can be sorted by."""
        table = self.main_table()
        if table is None:
            return []
        return [column.title for column in table.columns if column.title]

    def action_sort(self) -> None:
        """Ask for a column to sort by; each has a letter of its own."""
        titles, table = self._titles(), self.main_table()
        if table is None or not titles:
            self.tell("nothing to sort here")
            return
        keys: dict[str, str] = {}  # for each title the first of its letters that is free
        for title in titles:
            for char in (*title.lower(), *"0123456789"):
                if char.isalnum() and char not in keys:
                    keys[char] = title
                    break
        choice = Choose("sort by", keys)
        self.app.push_screen(choice, lambda key: table.sort_by(keys[key]) if key else None)

    def action_sort_beside(self, by: int) -> None:
        """Sort by the column before or after the one that the table is sorted by."""
        titles, table = self._titles(), self.main_table()
        if table is not None and titles:
            place = 0
            if table.sort_title in titles:
                place = titles.index(table.sort_title) + by
            table.sort_by(titles[place % len(titles)])
