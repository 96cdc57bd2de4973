"""What every screen is: the contract of the files in this folder.

To add a screen of a run, add one file here that defines `SCREEN`, a class made from `RunScreen`. It is found by listing
the folder; files that begin with an underscore are parts. A screen says

- `NAME`, the file's name, by which `--screen` and `self.go` know it; `KEY`, the digit that opens it; `TITLE`.
- `build(source) -> view`: a pure static method that makes a frozen value of `profkit.analysis` out of a `Source`. It runs
  on a thread, so it touches no widget. A `ProfkitError` in it is shown as one line, and the other screens go on.
- `compose_view()`: its widgets, which are hidden until there is a view. `show(view)`: puts the view into them. Widgets
  hold no logic: all that is drawn comes out of the view.
- `to_json(view)`: what `profkit tui RUN --screen NAME --json` prints. The default turns a dataclass into a dict, so give
  fields names with units (`_ns`, `_bytes`, `_share`, `_per_s`), as everywhere. Every figure on the screen is in it.
- `BY_RANK = True` where `[` and `]` choose a rank: `source.rank` is that rank, or `None` for all of them.
- `COMPARES = True` where the screen is about several runs: `source.bases` then holds the others, the base first.
- `KEEPS_UP = True` where the screen is built again while a followed run grows.
- `look_at(place)`: called after `show` when another screen sent the user here, with what to look at.
- `BINDINGS` for keys of its own; descriptions are what `?` shows. Common keys come from here: `y` `Y` `e` `/` `n` `N` `s` `,` `.` `[` `]` Esc.
  They act on the screen's `VirtualTable`. A screen without one overrides `row_text()` and `rows()` for `y`, `Y` and `e`.

What a screen uses: `self.view` (the view, or `None` before the first), `self.go("timeline", Place(rank=3, step=20))` to open
another screen on top of it (Esc comes back), `self.tell("one line")` for the line below the tabs, `self.prompt("go to step", then)` to ask
for a line of text, `self.palette.style("bad")` for colours (`_themes.py`; roles, never colours), `self.plain` for `--ascii`, `_draw.py` for bars
and lines, `_table.py` for tables: `table.show_rows([Column("kernel", names, stretches=True), Column("total", ns, duration, right=True)])`.
`VirtualTable.Opened(row)` is Enter on a row, `VirtualTable.Moved(row)` the cursor; `row` is the place in the columns' values.
Everything that came from a file goes through `profkit.text.safe_text` before it is drawn: tables, `_draw.fit` and `_draw.line` do it themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.message import Message

from profkit.errors import ProfkitError
from profkit.report import view_json
from profkit.text import safe_text
from profkit.tui.library import Source
from profkit.tui.widgets.draw import fit, line
from profkit.tui.widgets.frame import FrameScreen

ViewT = TypeVar("ViewT")

MOST_OF_NAME: Final = 20
"""So much of a run's name stands beside the titles of the screens before these give way to their digits."""


@dataclass(frozen=True)
class Place:
    """What to look at on another screen; what is not known is `None`, and the screen does what it can."""

    rank: int | None = None
    step: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    kernel: str | None = None
    category: str | None = None
    phase: str | None = None
    row: int | None = None
    """The row in the rank's `kernels` table."""


class Go(Message):
    """Asks the app for another screen of the run."""

    def __init__(self, name: str, place: Place | None = None) -> None:
        super().__init__()
        self.name = name
        self.place = place


class RunScreen(FrameScreen, Generic[ViewT]):
    """A screen about one run, or several that are compared."""

    NAME: ClassVar[str]
    KEY: ClassVar[str]
    BY_RANK: ClassVar[bool] = False
    COMPARES: ClassVar[bool] = False
    KEEPS_UP: ClassVar[bool] = False

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "rank(-1)", "previous rank", show=False, key_display="["),
        Binding("right_square_bracket", "rank(1)", "next rank", show=False, key_display="]"),
    ]

    class Wanted(Message):
        """The view of a screen is wanted; the app builds it on a thread."""

        def __init__(self, screen: RunScreen[Any]) -> None:
            super().__init__()
            self.screen = screen

    def __init__(self, place: Place | None = None) -> None:
        super().__init__()
        self.view: ViewT | None = None
        self.rank = place.rank if place and self.BY_RANK else None
        self._place = place
        self._failed = False

    @staticmethod
    def build(source: Source) -> Any:
        """The view, made on a thread out of tables."""
        raise NotImplementedError

    @staticmethod
    def to_json(view: Any) -> Any:
        """The view as JSON's values, with the unit in each key."""
        return view_json.of(view)

    def show(self, view: ViewT) -> None:
        """Put the view into the widgets."""
        raise NotImplementedError

    def look_at(self, place: Place) -> None:
        """Put the cursor where another screen sent the user."""

    def content(self) -> Any:
        return None if self.view is None else self.to_json(self.view)

    @property
    def stem(self) -> str:
        return f"{self.frame.run_name}-{self.NAME}"

    def head(self) -> Text:
        """The run and the screens there are; with little room the others are their digits alone."""
        tabs, room = self.frame.tabs, self.app.size.width
        titles = [f" {tab.key} {tab.title} " for tab in tabs]
        if sum(map(len, titles)) + MOST_OF_NAME + 2 > room:
            titles = [
                f" {tab.key} {tab.title} " if tab.name == self.NAME else f" {tab.key} "
                for tab in tabs
            ]
        name = fit(
            self.frame.run_name,
            min(len(self.frame.run_name), max(0, room - sum(map(len, titles)) - 3)),
            plain=self.plain,
        )
        parts = line([(f" {name}  ", self.palette.style("title"))])
        for tab, title in zip(tabs, titles, strict=True):
            style = self.palette.style("accent") + Style(
                reverse=tab.name == self.NAME, bold=tab.name == self.NAME
            )
            parts.append(title, style + Style(meta={"@click": f"app.show_screen('{tab.name}')"}))
        return parts

    def on_resize(self) -> None:
        self.draw_head()
        if self.view is not None:
            self.show(self.view)

    def on_mount(self) -> None:
        self.query_one("#frame-view").visible = False
        self.ask_for_view()

    def ask_for_view(self) -> None:
        """Have the view built, or built again."""
        if self.view is None:
            self.tell("reading …" if not self.plain else "reading ...")
        self.post_message(self.Wanted(self))

    def take(self, view: ViewT) -> None:
        """Show a view that was built."""
        first = self.view is None
        self.view = view
        if first or self._failed:  # one that is built again leaves the words that are there
            self.tell("" if self.rank is None else f"rank {self.rank}")
        self._failed = False
        self.query_one("#frame-view").visible = True
        self.show(view)
        table = self.main_table()
        if first and table is not None and self.focused is None:
            table.focus()
        if self._place is not None:
            place, self._place = self._place, None
            self.look_at(place)

    def fail(self, problem: str) -> None:
        """Say in one line why there is no view."""
        self._failed = True
        self.tell(f"cannot be shown: {problem}")

    def set_look(self) -> None:
        super().set_look()
        if self.view is not None:
            self.show(self.view)

    def go(self, name: str, place: Place | None = None) -> None:
        """Open another screen of the run on top of this one."""
        self.post_message(Go(name, place))

    def action_rank(self, by: int) -> None:
        """The next rank, or all of them, in a circle."""
        ranks = self.ranks()
        if not self.BY_RANK or len(ranks) < 2:
            self.tell(
                "this screen shows all ranks together" if len(ranks) > 1 else "the run has one rank"
            )
            return
        around = [None, *ranks]
        self.rank = (
            around[(around.index(self.rank) + by) % len(around)] if self.rank in around else None
        )
        self.view = None
        self.ask_for_view()

    def ranks(self) -> tuple[int, ...]:
        """The run's ranks, as the app knows them."""
        return self.frame.ranks


def one_line(error: BaseException) -> str:
    """An error as a line for a screen. What is not the user's to mend is named as such."""
    words = safe_text(str(error)).strip() or type(error).__name__
    return (
        words
        if isinstance(error, ProfkitError)
        else f"{type(error).__name__}: {words} (a fault of profkit's; the other screens still work)"
    )
