"""The app: which screens there are, what they are built from, and what the common keys do."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.scrollbar import ScrollBar, ScrollBarRender

from profkit import plugins
from profkit.errors import ProfkitError
from profkit.text import safe_text
from profkit.trace.reader import find_runs
from profkit.tui.library import Library
from profkit.tui.screens.base import Go, Place, RunScreen, one_line
from profkit.tui.screens.runs import RunsScreen
from profkit.tui.themes import PALETTES
from profkit.tui.widgets import share as _share
from profkit.tui.widgets.ask import Help
from profkit.tui.widgets.frame import FrameScreen, Tab
from profkit.vocab import RUN_FILE

FIRST_SCREEN: Final = "overview"
LIVE_SCREEN: Final = "live"
LOOK_EVERY_S: Final = 2.0
MOST_OF_A_PROCESSOR: Final = 0.01
"""So much of a processor the screens of a followed run may take: a view that costs more is built again after a longer while."""

_KEY_NAMES: Final = {
    "question_mark": "?",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "full_stop": ".",
    "comma": ",",
    "slash": "/",
    "space": "Space",
}

MARK_TWO_RUNS = "this compares runs: mark two or more in the list of runs (Space), then d"


def load_screens() -> dict[str, type[RunScreen[Any]]]:
    """All screens of a run that can be loaded, in the order of their keys."""
    return dict(sorted(plugins.SCREENS.load_all()[0].items(), key=lambda item: item[1].KEY))


class PlainBars(ScrollBarRender):
    """Scroll bars without the blocks that show parts of a cell."""

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
        Binding("ctrl+s", "picture", "screenshot", show=False),
        Binding("ctrl+p", "command_palette", "all commands", show=False, priority=True),
        Binding("q,ctrl+q", "quit", "quit", key_display="q"),
        *(
            Binding(digit, f"show_digit('{digit}')", "a screen of the run", show=False)
            for digit in "123456789"
        ),
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
        self.library = Library()
        self.run_path: Path | None = path if (path / RUN_FILE).exists() else None
        self.compared: tuple[Path, ...] = (*bases, path) if bases else ()
        self._path = path
        self._look_after = 0.0
        self._first = screen or (LIVE_SCREEN if follow else FIRST_SCREEN)

    def on_mount(self) -> None:
        for name, error in plugins.SCREENS.load_all()[1].items():
            self.notify(
                f"the screen {name} cannot be loaded: {one_line(error)}",
                severity="warning",
                markup=False,
            )
        if self.run_path is None and self.follow and (runs := find_runs(self._path)):
            self.run_path = runs[-1]
        if self.run_path is None:
            self.push_screen(RunsScreen(self._path))
        else:
            self.push_screen(self.screens[self._first]())
        if self.follow:
            self.set_interval(LOOK_EVERY_S, self._keep_up)

    @property
    def run_name(self) -> str:
        return safe_text(self.run_path.resolve().name) if self.run_path else ""

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.library.ranks(self.run_path) if self.run_path else ()

    def open_run(
        self, path: Path, *, compared: Sequence[Path] = (), screen: str = FIRST_SCREEN
    ) -> None:
        """Open a run on top of the list, with the runs to compare, the base first, where there are some."""
        self.run_path, self.compared = path, tuple(compared)
        self.push_screen(self.screens[screen]())

    def turn_to(self, path: Path) -> None:
        """Make the other screens those of this run."""
        self.run_path = path

    def on_run_screen_wanted(self, message: RunScreen.Wanted) -> None:
        self.run_worker(
            functools.partial(self._build, message.screen),
            group=message.screen.NAME,
            thread=True,
            exclusive=True,
        )

    def _build(self, screen: RunScreen[Any]) -> None:
        """On a thread: make the view, and hand it to the screen where that is still there."""
        *bases, path = self.compared or (None,) if screen.COMPARES else (self.run_path,)
        began = time.thread_time()
        try:
            if path is None:
                raise ProfkitError(MARK_TWO_RUNS)  # noqa: TRY301  # shown as every other problem is
            view = self.library.view(screen.NAME, screen.build, path, bases, screen.rank)
        except Exception as error:  # noqa: BLE001  # what a damaged file or a fault does to one screen must not take the others away
            screen.later(screen.fail, one_line(error))
        else:
            screen.later(screen.take, view)
        self.has_cost(time.thread_time() - began)

    def has_cost(self, processor_s: float) -> None:
        """What reading for a screen has cost; a followed run is left alone for so much longer."""
        self._look_after = (
            max(self._look_after, time.monotonic()) + processor_s / MOST_OF_A_PROCESSOR
        )

    def _keep_up(self) -> None:
        """Build the screen again that is in view, where the run has grown."""
        screen = self.screen
        if (
            time.monotonic() < self._look_after
            or not isinstance(screen, RunScreen)
            or not screen.KEEPS_UP
            or self.run_path is None
        ):
            return
        if self.library.grew(self.run_path):
            self.library.forget(self.run_path)
            screen.ask_for_view()

    def on_go(self, message: Go) -> None:
        self._show(message.name, message.place)

    def _show(self, name: str, place: Place | None = None) -> None:
        if name in self.screens:
            self.push_screen(self.screens[name](place))

    def action_show_digit(self, digit: str) -> None:
        name = next((tab.name for tab in self.tabs if tab.key == digit), None)
        if name is not None:
            self.action_show_screen(name)

    def action_show_screen(self, name: str) -> None:
        """The other screen in the place of this one; from the list, that of the run under the cursor."""
        if isinstance(self.screen, RunScreen):
            if name != self.screen.NAME:
                self.switch_screen(self.screens[name]())
        elif isinstance(self.screen, RunsScreen):
            self.screen.open_selected(name)

    def show_runs(self) -> None:
        """The list of runs below the last screen, for a user who began with one run."""
        if not isinstance(self.screen, RunsScreen):
            self.switch_screen(RunsScreen(self._folder, at=self.run_path))

    def compare(self) -> None:
        """The list of runs with this one marked, for the user to mark another."""
        marked = self.run_path
        while len(self.screen_stack) > 2:
            self.pop_screen()
        if isinstance(self.screen, RunsScreen):
            self.screen.mark(marked)
        else:
            self.switch_screen(RunsScreen(self._folder, at=marked, marked=marked))

    @property
    def _folder(self) -> Path:
        """Where the runs are: the folder that was named, or the one that the named run lies in."""
        return self._path.resolve().parent if (self._path / RUN_FILE).exists() else self._path

    def action_help(self) -> None:
        keys: dict[str, str] = {}
        for key, active in self.screen.active_bindings.items():
            meaning = active.binding.description
            if meaning and not key.startswith("ctrl+c") and active.enabled:
                shown = active.binding.key_display or _KEY_NAMES.get(key, key)
                known = keys.get(meaning, "").split()
                keys[meaning] = " ".join([*known, shown] if shown not in known else known)
        title = self.screen.TITLE if isinstance(self.screen, FrameScreen) else self.TITLE
        self.push_screen(
            Help(title or self.TITLE, {shown: meaning for meaning, shown in keys.items()})
        )

    def action_next_theme(self) -> None:
        names = list(PALETTES)
        self.theme = (
            names[(names.index(self.theme) + 1) % len(names)] if self.theme in names else names[0]
        )

    def watch_theme(self, theme: str) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, FrameScreen) and screen.is_mounted:
                screen.set_look()
                screen.tell(f"theme: {theme}")

    def action_picture(self) -> None:
        if isinstance(self.screen, FrameScreen):
            try:
                self.screen.tell(
                    f"wrote {_share.export(_share.as_picture(self.export_screenshot(title='profkit', simplify=True)), self.screen.stem, 'svg')}"
                )
            except ProfkitError as error:
                self.screen.tell(str(error))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        for tab in self.tabs:
            yield SystemCommand(
                f"{tab.title}",
                f"screen {tab.key} of the run",
                functools.partial(self.action_show_screen, tab.name),
            )
        for name in PALETTES:
            yield SystemCommand(
                f"Theme: {name}",
                "how everything looks",
                functools.partial(setattr, self, "theme", name),
            )
        yield SystemCommand("Help", "the keys of this screen", self.action_help)
        yield SystemCommand(
            "Screenshot", "an SVG picture in the current folder", self.action_picture
        )
        yield SystemCommand("Quit", "leave profkit", self.action_quit)
