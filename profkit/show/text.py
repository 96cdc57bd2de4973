"""A document, or sections of one, as plain text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from operator import attrgetter

from profkit.show.document import Cause, Document, Grid, Section, Shares
from profkit.text import WIDTH, fold, safe_text, shorten, table, wrap

INDENT = "  "
GAP = "  "
"""What separates two columns."""

BAR_WIDTH = 12
LEAST_FOLDED = 40
"""The last column of a table gets at least this width before its texts are folded."""

LEAST_SHORTENED = 8
"""A column is not shortened below this width."""

LABEL_WIDTH = 16
"""Width of the label of a line that is to be copied."""


# -- documents -------------------------------------------------------------------------------------


def document(content: Document) -> str:
    """Return the whole document."""
    head = list(opening(content))
    for warning in content.warnings:
        head.append(fold(f"note: {warning}"))
    conclusion = []
    if content.summary or not content.headline:
        words = (content.verdict, content.summary)
        conclusion.append(fold(": ".join(filter(None, words))))
    if figures := content.figures():
        conclusion.append(grid_text(Grid(("", "", ""), tuple(figures))))
    blocks = ["\n".join(block) for block in (head, conclusion) if block]
    for section in itertools.filterfalse(attrgetter("is_picture"), content.shown()):
        blocks.append("\n".join(section_text(section)))
    lines = []
    for label, text in content.copied:
        lines.append(f"{INDENT}{label:<{LABEL_WIDTH}}{safe_text(text)}")
    if lines:
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def opening(content: Document) -> Iterator[str]:
    """Yield the answer, what to try, and what ran."""
    for line, indent in (
        (content.headline, ""),
        (content.advice, INDENT),
        (content.subtitle, ""),
    ):
        if line:
            yield fold(line, indent)


def sections(found: Iterable[Section]) -> str:
    """Return the sections that are not folded, with empty lines between them."""
    shown = (each for each in found if each.title and not each.folded)
    return "\n\n".join("\n".join(section_text(each)) for each in shown)


def section_text(section: Section) -> Iterator[str]:
    yield safe_text(section.title)
    for note in section.notes:
        yield fold(note)
    for cause in section.causes:
        yield from cause_text(cause)
    if section.ending:
        yield fold(section.ending)
    grid = section.grid
    if grid is None:
        return
    for _, chart in section.charts:
        if isinstance(chart, Shares):
            grid = with_bars(grid, chart)
    yield grid_text(grid)


def cause_text(cause: Cause) -> Iterator[str]:
    yield fold(f"{cause.kind}: {cause.cost}")
    if cause.evidence:
        yield fold(cause.evidence, INDENT * 2)
    if cause.remedy:
        yield fold(f"try: {cause.remedy}", INDENT * 2)


def with_bars(grid: Grid, shares: Shares) -> Grid:
    """Return the table with a column of bars after its first one, which names the parts."""
    rows, share_of = [], dict(shares.parts)
    for row in grid.rows:
        rows.append((row[0], bar_of_eighths(share_of.get(row[0], 0.0)), *row[1:]))
    header = (grid.header[0], "", *grid.header[1:])
    return Grid(header, tuple(rows), frozenset(column + 1 for column in grid.right))


def bar_of_eighths(share: float) -> str:
    """Return a bar of eighths; a negative share has none."""
    if not math.isfinite(share):
        return ""
    whole, rest = divmod(round(max(0.0, min(1.0, share)) * BAR_WIDTH * 8), 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[rest].strip()


def grid_text(grid: Grid) -> str:
    """Return the table within the screen: its last column is folded, the others are shortened."""
    if not grid.rows:
        return ""
    cells = [list(map(safe_text, row)) for row in grid.rows]
    if grid.has_header:
        cells.insert(0, list(map(safe_text, grid.header)))
    if grid.whole:
        return table(cells, right=grid.right, indent=INDENT)
    last = len(grid.header) - 1
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    fit_columns(widths, grid.right)
    lines = []
    for row in cells:
        text = [row.pop()]
        if len(text[0]) > widths[last]:
            text = wrap(text[0], widths[last]) or [""]
        lines.append([*map(shorten, row, widths), text[0]])
        for more in text[1:]:
            lines.append([*[""] * last, more])
    return table(lines, right=grid.right, indent=INDENT)


def fit_columns(widths: list[int], figures: frozenset[int]) -> None:
    """Reduce the widths of columns of words, the widest first, until the table fits."""
    room = WIDTH - len(INDENT) - len(GAP) * (len(widths) - 1)
    last = len(widths) - 1
    words = [column for column in range(last) if column not in figures]
    wanted = widths[last]
    if last not in figures:
        widths[last] = min(wanted, LEAST_FOLDED)
    for column in words:
        widths[column] = min(widths[column], WIDTH)
    while words and sum(widths) > room:
        widest = max(words, key=widths.__getitem__)
        if widths[widest] == LEAST_SHORTENED:
            break
        widths[widest] -= 1
    widths[last] = max(widths[last], min(wanted, room - sum(widths[:last])))
