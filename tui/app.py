"""The app: it builds the screens, follows a run, and handles the keys of every screen."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from textual.app import App, SystemCommand
from textual.binding import ActiveBinding, Binding, BindingType
from textual.screen import Screen
from textual.scrollbar import ScrollBar, ScrollBarRender

from profkit import plugins
from profkit.errors import ProfkitError
from profkit.trace.folders import find_runs, newest_run
from profkit.tui.library import Library
from profkit.tui.screens.base import MARK_TWO_RUNS, RunScreen, one_line
from profkit.tui.screens.runs import RunsScreen
from profkit.tui.themes import PALETTES
from profkit.tui.widgets.ask import Help
from profkit.tui.widgets.frame import FrameScreen, Tab
from profkit.tui.widgets.table import VirtualTable
from profkit.tui.widgets.table_screen import TableScreen
from profkit.vocab import RUN_FILE

FIRST_SCREEN: Final = "overview"
LIVE_SCREEN: Final = "live"
FOLLOW_INTERVAL_S: Final = 2.0
"""A followed run is checked for new data after this time."""

MAX_PROCESSOR_SHARE: Final = 0.01
"""Following a run may take this share of a processor; costly views are built less often."""

_KEY_NAMES: Final = {
    "question_mark": "?",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "full_stop": ".",
    "comma": ",",
    "slash": "/",
    "space": "Space",
}


OWN_KEYS, TABLE_KEYS, ALL_KEYS = "this screen", "tables", "everywhere"
"""The groups of keys in the help."""


def group_of(active: ActiveBinding) -> str:
    """Return the group of a key by the class that binds it; none for the toolkit's own."""
    for kind in type(active.node).__mro__:
        for bound in kind.__dict__.get("BINDINGS", ()):
            if isinstance(bound, Binding) and bound.description == active.binding.description:
                if not kind.__module__.startswith("profkit."):
                    return ""
                if kind in (VirtualTable, TableScreen, RunScreen):
                    return TABLE_KEYS
                return ALL_KEYS if kind in (FrameScreen, ProfkitApp) else OWN_KEYS
    return ALL_KEYS if active.binding.action.startswith("show_screen") else ""


def load_screens() -> dict[str, type[RunScreen[Any]]]:
    """Return all screens of a run that can be loaded, in the order of their keys."""
    return dict(sorted(plugins.SCREENS.load_all()[0].items(), key=lambda item: item[1].KEY))


class PlainBars(ScrollBarRender):
    """Scroll bars in ASCII."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * len(ScrollBarRender.VERTICAL_BARS)
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "] * len(ScrollBarRender.HORIZONTAL_BARS)


class ProfkitApp(App[None]):
    """Shows a folder of runs, or one run."""

    TITLE = "profkit"
    ENABLE_COMMAND_PALETTE = True

    CSS = """
    Footer { background: $panel; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "help", "help", key_display="?"),
        Binding("t", "next_theme", "theme", show=False),
        Binding("ctrl+s", "screen.export('s')", "screenshot", show=False),
        Binding("ctrl+p", "command_palette", "all commands", show=False, priority=True),
        Binding("q,ctrl+q", "quit", "quit", key_display="q"),
    ]

    def __init__(
        self,
        path: Path,
        *,
        bases: Sequence[Path] = (),
        screen: str = "",
        follow: bool = False,
        theme: str = "dark",
        plain: bool = False,
    ) -> None:
        super().__init__()
        for palette in PALETTES.values():
            self.register_theme(palette.theme)
        self.theme = theme
        self.plain = plain
        ScrollBar.renderer = PlainBars if plain else ScrollBarRender
        self.follow = follow
        self.screens = load_screens()
        self.tabs = tuple(Tab(kind.KEY, kind.TITLE, name) for name, kind in self.screens.items())
        for tab in self.tabs:
            if tab.key:  # a screen of a plug-in may have none
                action = f"show_screen('{tab.name}')"
                self.bind(tab.key, action, description="a screen of the run", show=False)
        self.library = Library()
        self.run_path: Path | None = None
        self._folder = path
        """The folder of the list of runs."""
        if (path / RUN_FILE).exists():
            self.run_path = path
            self._folder = path.resolve().parent
        self.compared: tuple[Path, ...] = ()
        if bases:
            self.compared = (*bases, path)
        self._look_after = 0.0
        """The time before which a followed run is not looked at again."""
        self._first = screen
        if not screen:
            self._first = LIVE_SCREEN if follow else FIRST_SCREEN

    def on_mount(self) -> None:
        for name, error in plugins.SCREENS.load_all()[1].items():
            words = f"the screen {name} cannot be loaded: {one_line(error)}"
            self.notify(words, severity="warning", markup=False)
        if self.run_path is None and self.follow and (runs := find_runs(self._folder)):
            self.run_path = newest_run(runs, or_running=True)
        if self.run_path is None:
            self.push_screen(RunsScreen(self._folder))
        else:
            self.push_screen(self.screens[self._first]())
        if self.follow:
            self.set_interval(FOLLOW_INTERVAL_S, self._keep_up)

    def open_run(
        self, path: Path, *, compared: Sequence[Path] = (), screen: str = FIRST_SCREEN
    ) -> None:
        """Open a run on top of the list; `compared` are the runs to compare, the base first."""
        self.run_path, self.compared = path, tuple(compared)
        self.push_screen(self.screens[screen]())

    def build(self, screen: RunScreen[Any]) -> None:
        """Build a screen's view on a thread and hand it to the screen."""
        bases: Sequence[Path] = ()
        path = self.run_path
        if screen.COMPARES:
            *bases, path = self.compared or (None,)
        began = time.thread_time()
        try:
            if path is None:
                raise ProfkitError(MARK_TWO_RUNS)  # noqa: TRY301  # shown like any other problem
            view = self.library.view(screen.NAME, screen.build, path, bases, screen.rank)
        except Exception as error:  # noqa: BLE001  # one screen's fault must not end the others
            screen.later(screen.fail, one_line(error))
        else:
            screen.later(screen.take, view)
        self.has_cost(time.thread_time() - began)

    def has_cost(self, processor_s: float) -> None:
        """Delay the next look at a followed run by the processor time that a screen has used."""
        now = max(self._look_after, time.monotonic())
        self._look_after = now + processor_s / MAX_PROCESSOR_SHARE

    def _keep_up(self) -> None:
        """Build the screen in view again if the run has grown."""
        screen, run = self.screen, self.run_path
        if time.monotonic() < self._look_after or run is None:
            return
        if isinstance(screen, RunScreen) and screen.KEEPS_UP and self.library.forget_grown(run):
            screen.ask_for_view()

    def action_show_screen(self, name: str) -> None:
        """Replace the screen by another one; in the list, open the run under the cursor."""
        if isinstance(self.screen, RunScreen):
            if name != self.screen.NAME:
                self.switch_screen(self.screens[name]())
        elif isinstance(self.screen, RunsScreen):
            self.screen.open_selected(screen=name)

    def action_show_runs(self, purpose: str = "browse") -> None:
        """Show the list of runs; to `compare`, with this run marked, so that users mark another."""
        run, mark = self.run_path, purpose == "compare"
        while len(self.screen_stack) > 2:
            self.pop_screen()
        if not isinstance(self.screen, RunsScreen):
            self.switch_screen(RunsScreen(self._folder, at=run, mark=mark))
        elif mark and run is not None:
            self.screen.go_to(run, mark=True)

    def action_help(self) -> None:
        """Show all keys of the screen that have a meaning, its own first."""
        groups: dict[str, dict[str, list[str]]] = {OWN_KEYS: {}, TABLE_KEYS: {}, ALL_KEYS: {}}
        for key, active in self.screen.active_bindings.items():
            group = group_of(active)
            if active.enabled and group:
                keys = groups[group].setdefault(active.binding.description, [])
                shown = active.binding.key_display or _KEY_NAMES.get(key, key)
                if shown not in keys:
                    keys.append(shown)
        title = self.TITLE
        if isinstance(self.screen, FrameScreen) and self.screen.TITLE:
            title = self.screen.TITLE
        facts: dict[str, str] = {}
        for group, meanings in groups.items():
            if meanings:
                facts[group] = ""
            facts |= {" ".join(keys): meaning for meaning, keys in meanings.items()}
        self.push_screen(Help(facts, (f"Keys of {title}",)))

    def action_next_theme(self) -> None:
        names = list(PALETTES)
        place = 0
        if self.theme in names:
            place = names.index(self.theme) + 1
        self.theme = names[place % len(names)]

    def watch_theme(self, theme: str) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, FrameScreen) and screen.is_mounted:
                screen.set_look()
                screen.tell(f"theme: {theme}")

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        for tab in self.tabs:
            show = functools.partial(self.action_show_screen, tab.name)
            yield SystemCommand(tab.title, f"screen {tab.key} of the run", show)
        for name in PALETTES:
            choose = functools.partial(setattr, self, "theme", name)
            yield SystemCommand(f"Theme: {name}", "the colours of all screens", choose)
        write = functools.partial(self.run_action, "screen.export('s')")
        picture = "write an SVG picture to the current folder"
        yield SystemCommand("Help", "the keys of this screen", self.action_help)
        yield SystemCommand("Screenshot", picture, write)
        yield SystemCommand("Quit", "leave profkit", self.action_quit)
