"""A result: numbers with units, names and sentences, in the parts that all formats render.

Texts are plain. A renderer makes them safe for its format, because names in a run come from
strangers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeAlias

from profkit.analysis.flames import Flame
from profkit.analysis.views.pictures import RankPhases, StepPoint
from profkit.frame.estimate import Estimate
from profkit.show.figures import NO_FIGURE, WORDS, Unit, interval_words, level_words, range_words

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Tone(str, Enum):
    """Meaning of a verdict, for its colour. The verdict's words always say the same."""

    GOOD = "good"
    BAD = "bad"
    PLAIN = "plain"
    UNSURE = "unsure"


# -- charts ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Waterfall:
    """From one total to another through the differences of the rows, in ns per step."""

    start: tuple[str, float]
    rows: tuple[tuple[str, Estimate], ...]
    end: tuple[str, float]


@dataclass(frozen=True)
class Shares:
    """Parts of a step. A negative part, as `unknown` may be, has a figure but no length."""

    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Strip:
    """Wall time of each step of one run. Steps beyond `top_ns` are marked at the edge."""

    points: tuple[StepPoint, ...]
    top_ns: float


@dataclass(frozen=True)
class Heat:
    """Ranks by phases."""

    found: RankPhases


@dataclass(frozen=True)
class Lane:
    """What one rank or stream does, as kinds of work with their begin and end."""

    name: str
    pieces: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Lanes:
    """What ranks do during some steps; `steps_ns` is when steps of the first lane begin."""

    start_ns: int
    end_ns: int
    lanes: tuple[Lane, ...]
    steps_ns: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunsOverTime:
    """Time per sample in each run of a history, oldest first, and the levels between changes.

    A level is the first run on it, the first run after it, and its mean.
    """

    runs: tuple[tuple[str, float], ...]
    levels: tuple[tuple[int, int, float], ...]


Chart: TypeAlias = "Waterfall | Shares | Strip | Heat | Lanes | Flame | RunsOverTime"


# -- tables ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """A table of texts; `right` holds the columns of figures.

    If `total` is set, the last row is the sum of the others. If `drawn` is set, a chart shows every
    figure of it, so that a page with charts omits the table.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    total: bool = False
    drawn: bool = False
    whole: bool = False
    """True if no text may be shortened: readers have to find it again."""

    @property
    def has_header(self) -> bool:
        return any(self.header)


def labelled(rows: Sequence[tuple[str, str]]) -> Grid:
    """Return a table of labels and texts, without a header."""
    return Grid(("", ""), tuple(rows))


@dataclass(frozen=True)
class Quantity:
    """A number, an estimate, or several by name, with their unit; null is not measured."""

    value: Any
    unit: Unit


@dataclass(frozen=True)
class Column:
    """A number, a name or a sentence of each row.

    JSON has it under `key`, which ends with the unit. A column without a key is only for people,
    and one without a title only for programs. With `interval`, people see the bounds as well.
    """

    key: str
    title: str | None
    get: Callable[[Any], Any]
    unit: Unit = WORDS
    interval: bool = False
    role: Callable[[Any], str] | None = None
    """The meaning of a value, for its colour in the terminal interface."""
    stretches: bool = False
    """True for the column that is narrowed if there is too little room."""

    @property
    def is_number(self) -> bool:
        return self.unit is not WORDS

    def is_known(self, rows: Sequence[Any]) -> bool:
        """Return true if a row has a value."""
        return any(self.get(row) is not None for row in rows)


def data_columns(*same: str, unit: Unit = WORDS, **renamed: str) -> tuple[Column, ...]:
    """Return columns for programs: fields of the rows by the same or another name."""
    fields = dict.fromkeys(same) | renamed
    return tuple(Column(key, None, attrgetter(name or key), unit) for key, name in fields.items())


def cell_text(value: Any, unit: Unit) -> str:
    """Return a value as people read it; one that is not known is a dash."""
    if isinstance(value, Estimate):
        value = value.value
    if value is None:
        return NO_FIGURE
    if isinstance(value, str):
        return value
    return unit.show(value)


@dataclass(frozen=True)
class Table:
    """Rows, which may be of any class: the columns read them.

    `shown` are the rows for people if these are not all; JSON always has all. `inside` returns the
    rows that a row is divided into. With `only_known`, columns without a value are left out for
    people. `total`, `drawn` and `whole` are those of a grid.
    """

    columns: Sequence[Column]
    rows: Sequence[Any]
    shown: Sequence[Any] | None = None
    inside: Callable[[Any], Sequence[Any]] | None = None
    only_known: bool = False
    total: bool = False
    drawn: bool = False
    whole: bool = False
    single: bool = False
    """True if JSON has the only row instead of a list."""

    def visible(self) -> Iterator[tuple[int, Any]]:
        """Yield the rows for people, each with its depth."""
        for row in self.rows if self.shown is None else self.shown:
            yield 0, row
            for inner in self.inside(row) if self.inside else ():
                yield 1, inner

    def visible_columns(self) -> list[Column]:
        found = [column for column in self.columns if column.title is not None]
        if not self.only_known:
            return found
        rows = [row for _, row in self.visible()]
        return [each for each in found if each.is_known(rows)]

    def grid(self) -> Grid:
        """Return the table in words."""
        columns = self.visible_columns()
        header: list[str] = []
        right: set[int] = set()
        if not columns:
            return Grid((), ())
        for column in columns:
            if column.is_number:
                right.add(len(header))
            header.append(column.title or "")
            if column.interval:
                right.add(len(header))
                header.append(self._level(column))
        rows = []
        for depth, row in self.visible():
            cells: list[str] = []
            for column in columns:
                value = column.get(row)
                cells.append(cell_text(value, column.unit))
                if column.interval:
                    cells.append(range_words(value, column.unit))
            cells[0] = "› " * depth + cells[0]
            rows.append(tuple(cells))
        return Grid(
            tuple(header), tuple(rows), frozenset(right), self.total, self.drawn, self.whole
        )

    def _level(self, column: Column) -> str:
        """Return the title of the bounds, with the lowest confidence among the rows."""
        found = [column.get(row) for row in self.rows]
        levels = [each.level for each in found if isinstance(each, Estimate) and each.judged]
        return level_words(min(levels, default=Estimate(0.0).level))


def grid_of(table: Table | Grid | None) -> Grid | None:
    """Return a table in words; `None` if it has no row."""
    if isinstance(table, Table):
        table = table.grid()
    if table is None or not table.rows:
        return None
    return table


# -- sections --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cause:
    """A likely cause: its kind and cost, the numbers behind it, and a remedy to try."""

    kind: str
    cost: str
    evidence: str
    remedy: str
    tone: Tone = Tone.BAD


@dataclass(frozen=True)
class Section:
    """A part of a document with a heading; a reader has to open a folded one.

    JSON has the section under `key`: its `facts`, which are the numbers behind its sentences, with
    the rows of its table as `rows`; or these rows alone if there are no facts. A section without a
    key is only for people, and one without a title only for programs. `ending` follows the causes.
    """

    title: str = ""
    notes: tuple[str, ...] = ()
    charts: tuple[tuple[str, Chart], ...] = ()
    table: Table | Grid | None = None
    causes: tuple[Cause, ...] = ()
    ending: str = ""
    folded: bool = False
    brief: Section | None = None
    """What plain text shows instead until a reader asks for everything; `NAMED` is its name.

    One that has a brief form itself is shown in that if there is too little room.
    """
    kept: bool = False
    """True if the text in brief keeps it when there is too little room."""
    key: str = ""
    facts: Any = None
    missing: bool = False
    """True if nothing was measured: people see nothing, and JSON has null."""

    @property
    def grid(self) -> Grid | None:
        return grid_of(self.table)

    @property
    def is_picture(self) -> bool:
        """Return true if only its charts say something."""
        return bool(self.charts) and not (self.grid or self.causes or self.ending)


NAMED = Section()


def missing(*keys: str) -> Iterator[Section]:
    """Yield sections of which nothing was measured."""
    for key in keys:
        yield Section(key=key, missing=True)


@dataclass(frozen=True)
class Fact:
    """A number of the whole result: its key in JSON, its label, and words next to it.

    The detail is the interval if there is no other.
    """

    key: str
    label: str
    value: Any
    unit: Unit
    detail: str | None = None
    folded: bool = False
    """True if a screen shows it only to a reader who asks for everything."""

    def texts(self) -> tuple[str, str, str]:
        detail = self.detail
        if detail is None and isinstance(self.value, Estimate):
            detail = interval_words(self.value, self.unit.show)
        return self.label, cell_text(self.value, self.unit), detail or ""


@dataclass(frozen=True)
class Document:
    """A whole result: a headline, a few figures, and sections.

    `data` are further values for programs. `copied` are labels and texts that a reader copies, such
    as a path; plain text never folds these.
    """

    title: str
    subtitle: str
    verdict: str
    tone: Tone
    summary: str
    facts: tuple[Fact, ...] = ()
    warnings: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    copied: tuple[tuple[str, str], ...] = ()
    headline: str = ""
    """What changed or limits, how much, where and how sure, in at most 30 words."""
    advice: str = ""
    """What to try, and what it would give."""
    doubt: str | None = None
    """What the text in brief says instead of the verdict and the summary, if it is not `None`."""
    most_lines: int = 0
    """Lines of the text in brief, if they are limited."""
    data: Mapping[str, Any] = field(default_factory=dict)

    def figures(self, *, whole: bool = True) -> list[tuple[str, str, str]]:
        """Return the figures as labels, texts and details."""
        shown = self.facts if whole else itertools.filterfalse(attrgetter("folded"), self.facts)
        return list(map(Fact.texts, shown))

    def shown(self) -> Iterator[Section]:
        """Yield the sections for people."""
        return (section for section in self.sections if section.title)
