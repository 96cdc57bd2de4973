"""The contract of a screen of a run, and the base class of the files in this folder.

To add a screen, add one file here that defines `SCREEN`, a class made from `RunScreen`. It is found
by listing the folder; files that begin with an underscore are skipped. A screen defines

- `NAME`, the file's name, which `--screen` and `self.go` use; `KEY`, the digit or letter
  that opens it, which `ProfkitApp` binds to `action_show_screen`; `TITLE`. Tabs have digits only.
- `build(source) -> view`: a pure static function that makes a frozen value of `profkit.analysis`
  out of a `Source`. It runs on a thread, so it touches no widget. A `ProfkitError` in it is shown
  as one line, and the other screens still work.
- `compose_view()`: its widgets, which are hidden until there is a view; by default a table.
- `show(view)`: puts the view into the widgets; called again when the width or the theme changes.
  Widgets hold no logic: all they draw is in the view.
- `to_json(view)`: what `profkit tui RUN --screen NAME --json` prints. The default turns a dataclass
  into a dict, so give fields names with units (`_ns`, `_bytes`, `_share`, `_per_s`). It contains
  every figure on the screen.
- `BY_RANK = True` if `[` and `]` choose a rank: `source.rank` is that rank, or `None` for all.
- `COMPARES = True` if the screen compares runs: `source.bases` holds the others, the base first.
- `KEEPS_UP = True` if the screen is built again while a followed run grows.
- `ANSWERS = True` if the screen says itself what limits the run; others show it in the status line.
- `look_at(place)`: called after `show` if another screen sent the user here, with what to look at.
- `BINDINGS` for its own keys; `?` shows their descriptions, and `docs/tui.md` lists them. On all
  screens `/` filters a table, `n` and `N` go to its next and previous match, `s` sorts it by a
  column that the user chooses, `,` and `.` sort it by the previous and next column, `y` and `Y`
  copy a row or the table, and `e` exports it. They act on the table with the focus, otherwise on
  the first one in view that `MAIN_TABLE` selects. A screen may bind these keys to something else:
  on the timeline `s` zooms out, and on Explain it swaps base and target. A screen without a table
  overrides `row_text()` and `rows()` for `y`, `Y` and `e`.

A screen uses

- `self.view`: the view, or `None` before the first one.
- `self.go("timeline", Place(rank=3, step=20))` to open another screen on top; Esc comes back.
- `self.tell("one line")` for the status line; `self.prompt("go to step", then)` to ask for text.
- `self.palette.style("bad")` for colours (`themes.py`; roles, never colours), `self.plain` for
  `--ascii`, `widgets/draw.py` for bars and lines.
- `widgets/table.py` and `widgets/columns.py` for tables: `table.show_rows([Column("kernel", names),
  Column("total", ns, duration, right=True)])`. `VirtualTable.Opened(row)` is Enter on a row and
  `VirtualTable.Moved(row)` a move of the cursor; `row` is an index into the columns' values.

Everything that comes from a file goes through `profkit.text.safe_text` before it is drawn: tables,
`fit` and `line` do it themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

from rich.style import Style
from textual.binding import Binding, BindingType
from textual.widgets import Static

from profkit.errors import ProfkitError
from profkit.report.overview_document import headline
from profkit.show import json as show_json
from profkit.show.document import Section, Table
from profkit.text import safe_text
from profkit.tui.library import Source
from profkit.tui.widgets.columns import Column
from profkit.tui.widgets.document import columns_of, lines_of
from profkit.tui.widgets.draw import MIN_HALVES, fit_middle, line
from profkit.tui.widgets.lines import Lines
from profkit.tui.widgets.table import VirtualTable
from profkit.tui.widgets.table_screen import TableScreen

ViewT = TypeVar("ViewT")

MARK_TWO_RUNS: Final = "it is one run alone; press d, then Space and d on another one"

MIN_RUN_NAME: Final = 17
"""If titles leave fewer cells than this for the run's name, other tabs are shortened."""

SHORT_TITLE: Final = 4
"""The letters of a shortened title; a very narrow screen has digits alone."""


@dataclass(frozen=True)
class Place:
    """The thing to look at on another screen; a field that is not known is `None`."""

    rank: int | None = None
    step: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    kernel: str | None = None
    category: str | None = None
    phase: str | None = None
    row: int | None = None
    """The row in the rank's `kernels` table."""


class RunScreen(TableScreen, Generic[ViewT]):
    """A screen about one run, or about several runs that are compared."""

    NAME: ClassVar[str]
    KEY: ClassVar[str]
    BY_RANK: ClassVar[bool] = False
    COMPARES: ClassVar[bool] = False
    KEEPS_UP: ClassVar[bool] = False
    ANSWERS: ClassVar[bool] = False
    EMPTY_IN_LOGS: ClassVar[str] = ""
    """What empty tables say if the run was imported from a training log."""

    build: Callable[[Source], Any]
    """Returns the view; called on a thread."""
    show: Callable[[ViewT], None]
    """Puts the view into the widgets."""
    to_json: Callable[[Any], Any] = staticmethod(show_json.of)
    """Returns the view as JSON values, with the unit in each key."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "rank(-1)", "previous rank", show=False, key_display="["),
        Binding("right_square_bracket", "rank(1)", "next rank", show=False, key_display="]"),
    ]

    def __init__(self, place: Place | None = None) -> None:
        super().__init__()
        self.view: ViewT | None = None
        self.rank: int | None = None
        if place and self.BY_RANK:
            self.rank = place.rank
        self._place = place
        self._failed = False

    def look_at(self, place: Place) -> None:
        """Put the cursor where another screen sent the user."""

    def content(self) -> Any:
        return None if self.view is None else self.to_json(self.view)

    def draw_head(self) -> None:
        """Draw the run's name and the tabs; with little room other tabs are shortened."""
        name, room = "", self.app.size.width
        if self.frame.run_path is not None:
            name = safe_text(self.frame.run_path.resolve().name)
        self.stem = f"{name}-{self.NAME}"
        titles = {}
        for tab in self.frame.tabs:
            if tab.key.isdigit() or tab.name == self.NAME:  # those of letters have no room
                titles[tab.name] = f" {tab.key} {tab.title} "
        least = MIN_RUN_NAME
        for letters in (SHORT_TITLE, 0):
            if sum(map(len, titles.values())) + least + 2 <= room:
                break
            least = MIN_HALVES
            for tab in self.frame.tabs:
                if tab.name in titles and tab.name != self.NAME:
                    titles[tab.name] = f" {tab.key} {tab.title[:letters]}".rstrip()
        left = max(0, room - sum(map(len, titles.values())) - 3)
        name = fit_middle(name, min(len(name), left), plain=self.plain)
        head = line([(f" {name}  ", self.palette.style("title"))])
        for screen, title in titles.items():
            here = screen == self.NAME
            link = Style(reverse=here, bold=here, meta={"@click": f"app.show_screen('{screen}')"})
            head.append(title, self.palette.style("accent") + link)
        self.query_one("#frame-head", Static).update(head)

    def on_mount(self) -> None:
        self.set_look()
        self.query_one("#frame-view").visible = False
        self.ask_for_view()

    def standing_words(self) -> str:
        """Return the answer of the overview, if it is known and this screen has none itself."""
        run = self.frame.run_path
        view = run and not self.ANSWERS and self.frame.library.known("overview", run)
        whole = headline(view.overview) if view else ""
        words = whole.partition("; ")[2] or whole
        return words[:1].upper() + words[1:].rstrip(".")

    def ask_for_view(self) -> None:
        """Have the view built on a thread, or built again."""
        if self.view is None:
            self.tell("reading ..." if self.plain else "reading …")
        build = functools.partial(self.frame.build, self)
        self.app.run_worker(build, group=self.NAME, thread=True, exclusive=True)

    def take(self, view: ViewT) -> None:
        """Show a view that was built."""
        first = self.view is None
        self.view = view
        if first or self._failed:  # a view that is built again keeps the message
            self.tell("")
            if self.rank is not None:
                self.tell(f"rank {self.rank}")
        self._failed = False
        self.query_one("#frame-view").visible = True
        if self.EMPTY_IN_LOGS and self._shows_log():
            for each in self.query(VirtualTable).results(VirtualTable):
                each.empty = self.EMPTY_IN_LOGS
        self.show(view)
        table = self.main_table()
        if first and table is not None and self.focused is None:
            table.focus()
        if self._place is not None:
            place, self._place = self._place, None
            self.look_at(place)

    def _shows_log(self) -> bool:
        """Return true if the run was imported from a training log."""
        path = self.frame.run_path
        return path is not None and "log_of" in self.frame.library.trace(path).manifest.config

    def fail(self, problem: str) -> None:
        """Show in one line why there is no view; the title names the run's folder already."""
        self._failed = True
        folder = str(self.frame.run_path)
        self.tell(
            f"cannot be shown: {problem.replace(f'{folder}/', '').removeprefix(f'{folder}: ')}"
        )

    def set_look(self) -> None:
        super().set_look()
        if self.view is not None:
            self.show(self.view)

    on_resize = set_look  # what a view looks like may depend on the width

    def show_titles(self, **words: str) -> None:
        """Draw the titles of the screen's parts in the theme; `words` are new ones by widget id."""
        for title in self.query(".title").results(Static):
            text = words.get(title.id or "", str(title.content))
            title.update(line([(text, self.palette.style("title"))]))

    def show_notes(self, name: str, section: Section, style: str = "dim") -> None:
        """Show the sentences of a section."""
        palette = self.palette
        self.query_one(f"#{name}", Lines).show(lambda _: lines_of(section, palette, style=style))

    def show_rows_of(self, name: str, section: Section, keys: Sequence[Any] = ()) -> None:
        """Show the table of a section."""
        if isinstance(section.table, Table):
            table = self.query_one(f"#{name}", VirtualTable)
            table.show_rows(columns_of(section.table), keys=keys or None)

    def show_table(
        self, name: str, columns: list[Column], keys: Sequence[Any], max_rows: int | None = None
    ) -> None:
        """Show a table that is as high as its rows, or `max_rows` of them."""
        table = self.query_one(f"#{name}", VirtualTable)
        height = max(1, len(keys))
        if max_rows is not None:
            height = min(height, max_rows)
        table.styles.height = height + 1
        table.show_rows(columns, keys=keys)

    def go(self, name: str, place: Place | None = None) -> None:
        """Open another screen of the run on top of this one."""
        if name in self.frame.screens:
            self.app.push_screen(self.frame.screens[name](place))

    def action_rank(self, by: int) -> None:
        """Show the next rank, or all ranks together, in a circle."""
        ranks: tuple[int, ...] = ()
        if self.frame.run_path is not None:
            ranks = self.frame.library.ranks(self.frame.run_path)
        if len(ranks) < 2:
            self.tell("the run has one rank")
        elif not self.BY_RANK:
            self.tell("this screen shows all ranks together")
        else:
            circle = [None, *ranks]
            place = 0
            if self.rank in circle:
                place = circle.index(self.rank) + by
            self.rank = circle[place % len(circle)]
            self.view = None
            self.ask_for_view()


def one_line(error: BaseException) -> str:
    """Return an error as one line, which says so if the fault is in profkit."""
    words = safe_text(str(error)).strip() or type(error).__name__
    if isinstance(error, ProfkitError):
        return words
    return f"{type(error).__name__}: {words} (a fault in profkit; the other screens still work)"
