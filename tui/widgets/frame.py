"""The frame of every screen: a line on top, a line of words, the keys below; and what is common to all: filter, sort, copy, export, going back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, cast

from rich.text import Text
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import Footer, Static

from profkit.errors import ProfkitError, UsageError
from profkit.report import as_json
from profkit.tui.themes import PALETTES, Palette
from profkit.tui.widgets import share as _share
from profkit.tui.widgets.ask import Choose, Prompt
from profkit.tui.widgets.draw import line
from profkit.tui.widgets.table import VirtualTable


class Tab(NamedTuple):
    """A screen of a run as the line on top names it."""

    key: str
    title: str
    name: str


class Frame(Protocol):
    """What a screen may ask its app."""

    plain: bool
    run_name: str
    run_path: Path | None
    ranks: tuple[int, ...]
    tabs: tuple[Tab, ...]

    def compare(self) -> None:
        """Let the user choose what to compare the run with."""

    def open_run(
        self, path: Path, *, compared: Sequence[Path] = (), screen: str = "overview"
    ) -> None:
        """Open a run on top of the list, with the runs to compare, the base first, where there are some."""

    def show_runs(self) -> None:
        """The list of runs, for a user who began with one run."""

    def turn_to(self, path: Path) -> None:
        """Make the other screens those of this run."""

    def has_cost(self, processor_s: float) -> None:
        """What reading for a screen has cost; a followed run is left alone for so much longer."""


class FrameScreen(Screen[None]):
    """A screen with the common keys, the line of tabs above, a line of words, and the keys below."""

    TITLE = ""

    DEFAULT_CSS = """
    FrameScreen { layout: vertical; background: $background; }
    FrameScreen #frame-head { height: 1; background: $panel; link-style: none; link-color: $foreground; link-background: $panel; }
    FrameScreen #frame-words { height: 1; padding: 0 1; }
    FrameScreen #frame-view { height: 1fr; }
    FrameScreen Static { width: 1fr; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "slash", "filter", "filter", key_display="/", priority=True
        ),  # before the next key, which may follow at once
        Binding("f", "filter", "filter", show=False),
        Binding("n", "match(1)", "next match", show=False),
        Binding("N", "match(-1)", "previous match", show=False),
        Binding("s", "sort", "sort", show=False),
        Binding(
            "comma", "sort_beside(-1)", "sort by the column before", show=False, key_display=","
        ),
        Binding(
            "full_stop", "sort_beside(1)", "sort by the next column", show=False, key_display="."
        ),
        Binding("y", "copy_row", "copy the row", show=False),
        Binding("Y", "copy_table", "copy the table", show=False),
        Binding("e", "export", "export", show=False),
        Binding("escape", "back", "back", key_display="Esc"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._words = ""
        self._asked: Callable[[str], None] | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="frame-head")
        yield Static(id="frame-words")
        with Vertical(id="frame-view"):
            yield from self.compose_view()
        yield Prompt(id="frame-prompt")
        yield Footer(show_command_palette=False, compact=True)

    def compose_view(self) -> ComposeResult:
        """The widgets between the line of words and the keys."""
        return iter(())

    def on_mount(self) -> None:
        """Textual calls the `on_…` methods of every class, the most special first: none calls its parent's."""
        self.set_look()

    def later(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call something on the interface's own thread, from any other; nothing where the screen was left meanwhile."""
        self.app.call_later(self._if_there, callback, *arguments)

    def _if_there(self, callback: Callable[..., None], *arguments: Any) -> None:
        if self.query("#frame-view"):
            callback(*arguments)

    @property
    def palette(self) -> Palette:
        return PALETTES.get(self.app.theme, PALETTES["dark"])

    @property
    def frame(self) -> Frame:
        """The app, as far as screens know it."""
        return cast("Frame", self.app)

    @property
    def plain(self) -> bool:
        """Whether all is to be drawn in ASCII."""
        return self.frame.plain

    def set_look(self) -> None:
        """Draw everything in the theme of the app; called again when that changes."""
        for table in self.query(VirtualTable):
            table.set_look(self.palette, plain=self.plain)
        self.draw_head()
        self._draw_words()

    def draw_head(self) -> None:
        self.query_one("#frame-head", Static).update(self.head())

    def head(self) -> Text:
        """The line on top."""
        return line([(f" {self.TITLE} ", self.palette.style("title"))])

    def tell(self, words: str) -> None:
        """Say something on the line below the tabs."""
        self._words = words
        self._draw_words()

    def _draw_words(self) -> None:
        table = self.main_table()
        filtered = (
            f"filter '{table.pattern}': {len(table.order):,} of {table.count:,}"
            if table and table.pattern
            else ""
        )
        self.query_one("#frame-words", Static).update(
            line([("   ".join(filter(None, (self._words, filtered))), self.palette.style("dim"))])
        )

    def main_table(self) -> VirtualTable | None:
        """The table that the common keys act on: the one with the focus, else the first one."""
        if isinstance(self.focused, VirtualTable):
            return self.focused
        try:
            return self.query(VirtualTable).first()
        except NoMatches:
            return None

    def row_text(self) -> str:
        """What `y` copies; nothing where there is no row."""
        table = self.main_table()
        return "" if table is None or table.row is None else _share.as_tsv([table.texts(table.row)])

    def rows(self) -> Iterable[Sequence[str]]:
        """The heading and the rows that are shown, which `Y` copies and `e` exports."""
        table = self.main_table()
        if table is not None and table.columns:
            yield [column.title for column in table.columns]
            yield from (table.texts(row) for row in table.order.tolist())

    def content(self) -> Any:
        """What is shown, as JSON's values; `None` where there is nothing yet."""
        header, *rows = list(self.rows()) or [()]
        return [dict(zip(header, row, strict=True)) for row in rows]

    def action_copy_row(self) -> None:
        self._copy(self.row_text(), "the row")

    def action_copy_table(self) -> None:
        self._copy(_share.as_tsv(self.rows()), "the table")

    def _copy(self, text: str, what: str) -> None:
        if not text:
            self.tell("nothing to copy here")
            return
        self.app.copy_to_clipboard(text)
        kept = _share.keep_copied(text)
        self.tell(
            f"copied {what} to the terminal's clipboard" + (f" and to {kept}" if kept else "")
        )

    def action_export(self) -> None:
        self.app.push_screen(
            Choose("export what is shown", {"c": "CSV", "j": "JSON", "s": "SVG picture"}),
            self._export,
        )

    def _export(self, choice: str | None) -> None:
        """Write what was chosen, once the question is off the screen."""
        makers: dict[str, tuple[str, Callable[[], str]]] = {
            "c": ("csv", lambda: _share.as_csv(self.rows())),
            "j": ("json", lambda: as_json.dumps(self.content()) + "\n"),
            "s": (
                "svg",
                lambda: _share.as_picture(
                    self.app.export_screenshot(title="profkit", simplify=True)
                ),
            ),
        }
        if choice in makers:
            suffix, make = makers[choice]
            self.call_after_refresh(self._write, suffix, make)

    def _write(self, suffix: str, make: Callable[[], str]) -> None:
        try:
            self.tell(f"wrote {_share.export(make(), self.stem, suffix)}")
        except ProfkitError as error:
            self.tell(str(error))

    @property
    def stem(self) -> str:
        """What exported files are called."""
        return f"profkit-{self.TITLE.lower()}"

    def prompt(self, question: str, then: Callable[[str], None], value: str = "") -> None:
        """Ask for a line of text; `then` is called with it on Enter."""
        asked = self.query_one(Prompt)
        self._asked = then
        asked.placeholder = question
        asked.value = value
        asked.display = True
        self.set_focus(asked)  # at once: what is typed next belongs to it

    def _leave_prompt(self) -> None:
        asked = self.query_one(Prompt)
        self._asked = None
        asked.display = False
        table = self.main_table()
        self.set_focus(table) if table else self.set_focus(None)

    def action_filter(self) -> None:
        if self.query_one(Prompt).display:
            raise SkipAction  # it is typed into the prompt
        table = self.main_table()
        if table is None:
            self.tell("there is no table to filter here")
        else:
            self.prompt(
                "filter: a part of a name, or re: and a regular expression",
                self._apply_filter,
                table.pattern,
            )

    def _apply_filter(self, pattern: str) -> None:
        table = (
            next(iter(self.query(VirtualTable)), None)
            if not isinstance(self.focused, VirtualTable)
            else self.focused
        )
        if table is None:
            return
        try:
            table.filter_by(pattern)
            self.tell("")
        except UsageError as error:
            self.tell(str(error))

    def on_input_changed(self, event: Prompt.Changed) -> None:
        if self._asked == self._apply_filter:
            event.stop()
            self._apply_filter(event.value)

    def on_input_submitted(self, event: Prompt.Submitted) -> None:
        event.stop()
        asked = self._asked
        self._leave_prompt()
        if asked is not None:
            asked(event.value)

    def action_back(self) -> None:
        """One step back: out of the prompt, then out of the filter, then off the screen."""
        table = self.main_table()
        if self.query_one(Prompt).display:
            if self._asked == self._apply_filter:
                self._apply_filter("")
            self._leave_prompt()
        elif table is not None and table.pattern:
            self._apply_filter("")
        else:
            self.leave()

    def leave(self) -> None:
        """Go back to the screen below; below a run lies the list of runs."""
        if len(self.app.screen_stack) > 2:  # below every screen lies Textual's own blank one
            self.app.pop_screen()
        else:
            self.frame.show_runs()

    def action_match(self, by: int) -> None:
        table = self.main_table()
        if table is not None:
            table.step(by)

    def action_sort(self) -> None:
        table = self.main_table()
        if table is None or not table.columns:
            self.tell("there is nothing to sort here")
            return
        titles = [column.title for column in table.columns if column.title]
        letters = _letters(titles)
        self.app.push_screen(
            Choose("sort by", letters), lambda key: table.sort_by(letters[key]) if key else None
        )

    def action_sort_beside(self, by: int) -> None:
        table = self.main_table()
        titles = [column.title for column in table.columns if column.title] if table else []
        if table and titles:
            at = titles.index(table.sort_title) + by if table.sort_title in titles else 0
            table.sort_by(titles[at % len(titles)])


def _letters(titles: Sequence[str]) -> dict[str, str]:
    """A key for each title: the first of its letters that is free, else a digit."""
    keys: dict[str, str] = {}
    for title in titles:
        free = [
            char for char in (*title.lower(), *"0123456789") if char.isalnum() and char not in keys
        ]
        if free:
            keys[free[0]] = title
    return keys
