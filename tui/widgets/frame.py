"""The frame of every screen: the head, the status line, the prompt and the keys below."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import Footer, Static

from profkit.errors import UsageError
from profkit.tui.library import Library
from profkit.tui.themes import PALETTES, Palette
from profkit.tui.widgets.ask import Prompt
from profkit.tui.widgets.draw import line
from profkit.tui.widgets.table import VirtualTable


class Tab(NamedTuple):
    """A screen of a run as the line on top names it."""

    key: str
    title: str
    name: str


class Frame(Protocol):
    """The part of the app that screens may use."""

    plain: bool
    """True if everything is drawn in ASCII."""
    library: Library
    """The runs that are open."""
    run_path: Path | None
    """The run that the screens show."""
    tabs: tuple[Tab, ...]
    """The screens of a run, in the order of their keys."""
    screens: Mapping[str, Callable[..., Screen[None]]]
    """The screens of a run by name; each is made with the place that it shows first."""
    open_run: Callable[..., None]
    """Opens a run on top of the list; `compared` are the runs to compare, the base first."""
    build: Callable[[Any], None]
    """Builds the view of a screen; called on a thread."""
    action_show_runs: Callable[[], None]
    """Shows the list of runs, for a user who began with one run."""
    has_cost: Callable[[float], None]
    """Takes note of the processor time that a screen has used for reading."""


class FrameScreen(Screen[None]):
    """A screen with a line on top, a status line, a prompt, a filter, and the keys below."""

    TITLE = ""
    MAIN_TABLE = "VirtualTable"
    """Selects the tables of which keys act on the first one in view, unless one has the focus."""

    DEFAULT_CSS = """
    FrameScreen { layout: vertical; background: $background; }
    FrameScreen #frame-head { height: 1; background: $panel;
        link-style: none; link-color: $foreground; link-background: $panel; }
    FrameScreen #frame-words { height: 1; padding: 0 1; }
    FrameScreen #frame-view { height: 1fr; }
    FrameScreen Static { width: 1fr; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        # With priority, so that the prompt has the focus before the next key arrives.
        Binding("slash", "filter", "filter", key_display="/", priority=True),
        Binding("f", "filter", "filter", show=False),
        Binding("escape", "back", "back", key_display="Esc"),
    ]

    draw_head: Callable[[], None]
    """Draws the line on top again."""
    stem = ""
    """The name of exported files, without the suffix."""
    _words = ""
    """The message on the status line."""
    _asked: Callable[[str], None] | None = None
    """Takes the text that is typed into the prompt."""
    _asked_on: VirtualTable | None = None
    """The table that had the focus before the prompt."""

    def compose(self) -> ComposeResult:
        yield Static(id="frame-head")
        yield Static(id="frame-words")
        with Vertical(id="frame-view"):
            yield from self.compose_view()
        yield Prompt(id="frame-prompt")
        yield Footer(show_command_palette=False, compact=True)

    def compose_view(self) -> ComposeResult:
        """Yield the widgets between the status line and the keys."""
        yield VirtualTable()

    def later(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call something on the interface's thread, unless the user has left the screen."""
        self.app.call_later(self.if_shown, callback, *arguments)

    def if_shown(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call something unless the user has left the screen."""
        if self.query("#frame-view"):
            callback(*arguments)

    @property
    def palette(self) -> Palette:
        """The colours of the app's theme."""
        return PALETTES.get(self.app.theme, PALETTES["dark"])

    @property
    def frame(self) -> Frame:
        """The app, as far as screens know it."""
        return cast("Frame", self.app)

    @property
    def plain(self) -> bool:
        """True if everything is drawn in ASCII."""
        return self.frame.plain

    def set_look(self) -> None:
        """Draw everything in the app's theme; called again when the theme changes."""
        for table in self.query(VirtualTable):
            table.set_look(self.palette, plain=self.plain)
        self.draw_head()
        self.tell(self._words)

    def tell(self, words: str) -> None:
        """Show a message on the status line, and behind it the filter if there is one."""
        self._words = words
        parts = [words or self.standing_words()]
        table = self.main_table()
        if table and table.pattern:
            parts.append(f"filter '{table.pattern}': {len(table.order):,} of {table.count:,}")
        text = line([("   ".join(filter(None, parts)), self.palette.style("dim"))])
        self.query_one("#frame-words", Static).update(text)

    def standing_words(self) -> str:
        """Return what the status line shows if there is no message."""
        return ""

    def main_table(self) -> VirtualTable | None:
        """Return the table that keys act on: the one with the focus, otherwise the main one.

        While the prompt is open, it is the table that had the focus before.
        """
        if self._asked is not None and self._asked_on is not None:
            return self._asked_on
        if isinstance(self.focused, VirtualTable):
            return self.focused
        for table in self.query(self.MAIN_TABLE).results(VirtualTable):
            if table.display:
                return table
        return None

    def prompt(self, question: str, then: Callable[[str], None], value: str = "") -> None:
        """Ask for a line of text; Enter calls `then` with it."""
        asked = self.query_one(Prompt)
        self._asked, self._asked_on = then, self.main_table()
        asked.placeholder = question
        asked.value = value
        asked.display = True
        self.set_focus(asked)  # now, because the next key belongs to the prompt

    def _leave_prompt(self) -> None:
        """Hide the prompt, and give the focus back to the table."""
        table = self.main_table()
        self._asked = None
        self.query_one(Prompt).display = False
        self.set_focus(table)

    def on_input_changed(self, event: Prompt.Changed) -> None:
        if self._asked_on is not None and self._asked == self.action_filter:
            event.stop()
            self.action_filter(event.value)

    def on_input_submitted(self, event: Prompt.Submitted) -> None:
        event.stop()
        asked = self._asked
        self._leave_prompt()
        if asked is not None:
            asked(event.value)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave `/` to the text while the prompt is open."""
        return action != "filter" or bool(parameters) or self._asked is None

    def action_filter(self, pattern: str | None = None) -> None:
        """Filter the table that keys act on; without a pattern, ask for it."""
        table = self.main_table()
        if table is None:
            self.tell("no table to filter on this screen")
        elif pattern is None:
            question = "filter: part of a name, or re: and a regular expression"
            self.prompt(question, self.action_filter, table.pattern)
        else:
            try:
                table.filter_by(pattern)
                self.tell("")
            except UsageError as error:
                self.tell(str(error))

    def action_back(self) -> None:
        """Go one step back: out of the prompt, then out of a filter, then off the screen."""
        filtered = self._filtered_table()
        if self.query_one(Prompt).display:
            if self._asked_on is not None and self._asked == self.action_filter:
                self.action_filter("")
            self._leave_prompt()
        elif filtered is not None:
            filtered.filter_by("")
            self.tell("")
        elif len(self.app.screen_stack) > 2:  # Textual's blank screen is below all others
            self.app.pop_screen()
        else:
            self.frame.action_show_runs()

    def _filtered_table(self) -> VirtualTable | None:
        """Return a table with a filter: the one that keys act on, otherwise the first in view."""
        main = self.main_table()
        if main is not None and main.pattern:
            return main
        for table in self.query(VirtualTable):
            if table.display and table.pattern:
                return table
        return None
