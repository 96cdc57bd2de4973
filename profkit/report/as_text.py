"""A document as plain text, and the screens that only exist as text."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.device_times import DeviceTimes
from profkit.analysis.overview import Overview
from profkit.report import overview_document
from profkit.report.document import Cause, Document, Grid, Section, Shares
from profkit.report.words import own_cost_words, plain, steps_line, why_not_judged
from profkit.text import (
    WIDTH,
    byte_size,
    bytes_per_second,
    fold,
    safe_text,
    shorten,
    significant,
    table,
)
from profkit.trace import Verification
from profkit.vocab import Integrity

if TYPE_CHECKING:
    from profkit.machine.doctor import Finding

__all__ = [
    "WIDTH",
    "ceilings_table",
    "document",
    "examination",
    "overview",
    "own_cost_words",
    "plain",
    "steps_line",
    "verification",
    "why_not_judged",
]

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


def overview(view: Overview, *, next_command: str = "") -> str:
    """Return one screen for one run."""
    return document(overview_document.overview(view, next_command=next_command))


def document(content: Document) -> str:
    head = [fold(content.subtitle, "")]
    for warning in content.warnings:
        head.append(fold(f"mind: {warning}"))
    conclusion = [fold(f"{content.verdict}: {content.summary}".removesuffix(": "))]
    if content.figures:
        conclusion.append(grid_text(Grid(("", "", ""), content.figures)))
    blocks = ["\n".join(head), "\n".join(conclusion)]
    for section in content.sections:
        if not section.folded:
            blocks.append("\n".join(section_text(section)))
    if content.copied:
        lines = []
        for label, text in content.copied:
            lines.append(f"{INDENT}{label:<{LABEL_WIDTH}}{safe_text(text)}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def section_text(section: Section) -> Iterator[str]:
    yield safe_text(section.title)
    for note in section.notes:
        yield fold(note)
    for cause in section.causes:
        yield from cause_text(cause)
    grid = section.grid
    if grid is None:
        return
    for _, chart in section.charts:
        if isinstance(chart, Shares):
            grid = with_bars(grid, chart)
    yield grid_text(grid)


def cause_text(cause: Cause) -> Iterator[str]:
    yield fold(f"{cause.kind}: {cause.cost}")
    yield fold(cause.evidence, INDENT * 2)
    if cause.remedy:
        yield fold(f"try: {cause.remedy}", INDENT * 2)


def with_bars(grid: Grid, shares: Shares) -> Grid:
    """Return the table with a column of bars after its first one, which holds no figures."""
    rows = []
    for row, (_, share) in zip(grid.rows, shares.parts, strict=True):
        rows.append((row[0], bar_of_eighths(share), *row[1:]))
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
    last = len(grid.header) - 1
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    fit_columns(widths, grid.right)
    lines = []
    for row in cells:
        text = [row.pop()]
        if len(text[0]) > widths[last]:
            text = textwrap.wrap(text[0], widths[last], break_on_hyphens=False) or [""]
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


# -- the machine -----------------------------------------------------------------------------------


def ceilings_table(found: Ceilings) -> str:
    """Return what `profkit ceilings` prints."""
    rows = []
    for name, flops_per_s in found.matrix_flops_per_s.items():
        rows.append([f"matrix product, {name}", f"{significant(flops_per_s / 1e12)} TFLOP/s"])
    rates = {"copy on the device": found.copy_bytes_per_s}
    for name, bytes_per_s in found.to_device_bytes_per_s.items():
        rates[f"host to device, {name}"] = bytes_per_s
    rates["disk, not cached"] = found.disk_read_bytes_per_s
    for name, rate in rates.items():
        rows.append([name, bytes_per_second(rate) if rate else "not measured"])
    decoding = "not measured: no Pillow"
    if found.jpeg_images_per_s:
        decoding = f"{significant(found.jpeg_images_per_s)} images/s"
    rows.append(["JPEG of 500 x 375, one core", decoding])
    title = f"{safe_text(found.device)} · {safe_text(found.library)}"
    blocks = [title, table(rows, right=frozenset({1}))]
    for links in found.links:
        rows = [["message", "bus bandwidth"]]
        for size, rate in zip(links.sizes, links.bus_bytes_per_s, strict=True):
            rows.append([byte_size(size), bytes_per_second(rate)])
        title = f"all-reduce over {safe_text(links.backend)}, {links.ranks} ranks"
        blocks.append(f"{title}\n{table(rows, right=frozenset({0, 1}))}")
    return "\n\n".join(blocks)


def examination(findings: Sequence[Finding]) -> str:
    """Return what `profkit doctor` prints: what works, what does not, and why."""
    width = max(len(finding.name) for finding in findings)
    indent = " " * (8 + width + 2)
    lines = []
    for finding in findings:
        name = f"{finding.state:<8}{safe_text(finding.name):<{width}}"
        lines.append(fold(f"{name}  {finding.measures}", "", indent))
        if finding.why:
            lines.append(fold(finding.why, indent, indent))
        if finding.help:
            lines.append(fold(f"try: {finding.help}", indent, indent))
    return "\n".join(lines)


# -- the state of a run's files --------------------------------------------------------------------

_STATE_MEANINGS = {
    Integrity.COMPLETE: "the run ended and every row is there",
    Integrity.RUNNING: "the job has not ended; what is there can be read",
    Integrity.ENDED_EARLY: "the run did not end as planned; every row that was written can be read",
    Integrity.TORN: "a part cannot be read; every row before the damage can",
}


def verification(found: Verification, device_times: DeviceTimes | None = None) -> str:
    """Return what `profkit verify` prints: the state, why, and the rows of each table.

    If the run is on devices, that includes the device times that are missing.
    """
    lines = [f"{found.state.value}: {_STATE_MEANINGS[found.state]}"]
    for reason in found.reasons:
        lines.append(fold(reason))
    if device_times is not None:
        lines += map(fold, device_times.notices)
    by_table = defaultdict(list)
    for check in found.tables:
        by_table[check.table].append(check)
    rows = [["table", "ranks", "rows", "lost", "dropped"]]
    for name, checks in by_table.items():
        row = [name, str(len(checks))]
        for what in ("rows", "lost", "dropped"):
            row.append(f"{sum(map(attrgetter(what), checks)):,}")
        rows.append(row)
    if by_table:
        lines += ["", table(rows, right=frozenset({1, 2, 3, 4}))]
    return "\n".join(lines)
