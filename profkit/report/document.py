"""The content of a report, which text, Markdown and HTML render.

Texts are plain. A renderer makes them safe for its format, because names in a run come from
strangers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from profkit.analysis.estimate import Estimate
from profkit.analysis.flames import Flame
from profkit.analysis.views.pictures import RankPhases, StepPoint
from profkit.explain.ledger import Verdict


class Tone(str, Enum):
    """Meaning of a verdict, for its colour. The verdict's words always say the same."""

    GOOD = "good"
    BAD = "bad"
    PLAIN = "plain"
    UNSURE = "unsure"


TONES = {
    Verdict.REGRESSION: Tone.BAD,
    Verdict.IMPROVEMENT: Tone.GOOD,
    Verdict.NEUTRAL: Tone.PLAIN,
    Verdict.CANNOT_JUDGE: Tone.UNSURE,
}


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
class RunsOverTime:
    """Time per sample in each run of a history, oldest first, and the levels between changes.

    A level is the first run on it, the first run after it, and its mean.
    """

    runs: tuple[tuple[str, float], ...]
    levels: tuple[tuple[int, int, float], ...]


Chart: TypeAlias = "Waterfall | Shares | Strip | Heat | Flame | RunsOverTime"


@dataclass(frozen=True)
class Grid:
    """A table; `right` holds the columns of figures.

    If `total` is set, the last row is the sum of the others. If `drawn` is set, a chart shows every
    figure of it, so that a page with charts omits the table.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    total: bool = False
    drawn: bool = False

    @property
    def has_header(self) -> bool:
        return any(self.header)


def labelled(rows: list[tuple[str, str]]) -> Grid:
    """Return a table of labels and texts, without a header."""
    return Grid(("", ""), tuple(rows))


@dataclass(frozen=True)
class CauseTexts:
    """A likely cause: its kind and cost, the numbers behind it, and a remedy to try."""

    kind: str
    cost: str
    evidence: str
    remedy: str


@dataclass(frozen=True)
class Section:
    """A part of a report with a heading; a folded one is hidden until a reader opens it.

    `ending` follows the causes.
    """

    title: str
    notes: tuple[str, ...] = ()
    charts: tuple[tuple[str, Chart], ...] = ()
    grid: Grid | None = None
    causes: tuple[CauseTexts, ...] = ()
    ending: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Document:
    """A whole report.

    `figures` are labels, figures and their details. `copied` are labels and texts that a reader
    copies, such as a path; plain text never folds these.
    """

    title: str
    subtitle: str
    verdict: str
    tone: Tone
    summary: str
    figures: tuple[tuple[str, str, str], ...]
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]
    copied: tuple[tuple[str, str], ...] = ()
