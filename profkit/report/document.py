"""What a report says, before it has a shape: one frozen value that Markdown and HTML both render.

Texts are plain. Whoever renders them makes them safe for where they go: names in a run come from strangers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from profkit.analysis.estimate import Estimate
from profkit.analysis.views.pictures import RankPhases, StepPoint
from profkit.explain.ledger import Verdict


class Tone(str, Enum):
    """How a word is to be taken; it is never told by colour alone."""

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
    """From one total to another through the differences of the rows, in ns of a step."""

    start: tuple[str, float]
    rows: tuple[tuple[str, Estimate], ...]
    end: tuple[str, float]


@dataclass(frozen=True)
class Shares:
    """Parts of a step; one below zero, as `unknown` may be, has a figure and no length."""

    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Strip:
    """The wall time of each step of one run, up to `top_ns`; steps beyond are marked at the edge."""

    points: tuple[StepPoint, ...]
    top_ns: float


@dataclass(frozen=True)
class Heat:
    """Ranks by phases."""

    found: RankPhases


Chart: TypeAlias = "Waterfall | Shares | Strip | Heat"


@dataclass(frozen=True)
class Grid:
    """A table; `right` names the columns of figures, `total` whether the last row sums the others up.

    `drawn` is set where a chart has every figure of it, so that a page with charts leaves it out.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    total: bool = False
    drawn: bool = False


@dataclass(frozen=True)
class Cause:
    """A finding: what it is and costs, the numbers behind it, and something to try."""

    kind: str
    cost: str
    evidence: str
    remedy: str


@dataclass(frozen=True)
class Section:
    """A part of a report with a heading. `notes` stand above the rest, `verbatim` is a screen's own block."""

    title: str
    notes: tuple[str, ...] = ()
    charts: tuple[tuple[str, Chart], ...] = ()
    grid: Grid | None = None
    causes: tuple[Cause, ...] = ()
    verbatim: str = ""
    folded: bool = False
    """Whether a reader has to open it: long lists that most do not need."""


@dataclass(frozen=True)
class Document:
    """A whole report: what it is about, what it concludes, a few figures, and the sections."""

    title: str
    subtitle: str
    verdict: str
    tone: Tone
    summary: str
    figures: tuple[tuple[str, str, str], ...]
    """Label, figure and what stands small below it."""

    warnings: tuple[str, ...]
    sections: tuple[Section, ...]
