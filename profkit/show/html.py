"""A document as one HTML file without a script, font, image or network access.

The content policy forbids everything but the embedded style sheet, which it names by its hash. A
name that is not escaped could therefore neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence

from profkit.show.charts import draw
from profkit.show.document import Cause, Document, Grid, Section
from profkit.show.page_style import STYLE
from profkit.show.svg import text

INTERVALS = "intervals are 95 % and stay valid when successive steps depend on each other"


def document(content: Document, version: str) -> str:
    """Return the whole page; `version` is that of the profkit that makes it."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    copied = []
    for label, words in content.copied:
        copied.append(f"<p>{text(label)}: {text(words)}</p>")
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="referrer" content="no-referrer">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{text(content.title)} · profkit</title>",
        f"<style>{STYLE}</style>",
        "</head>",
        "<body>",
        "<main>",
        *heading(content),
        *map(section_html, content.shown()),
        *copied,
        f"<footer>made by profkit {text(version)}; {INTERVALS}</footer>",
        "</main>",
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def heading(content: Document) -> Iterator[str]:
    yield f"<h1>{text(content.title)}</h1>"
    yield f'<p class="sub">{text(content.subtitle)}</p>'
    state = ": ".join(filter(None, (content.verdict, content.summary)))
    answer = content.headline or state
    yield f'<p class="answer {content.tone.value}">{text(answer)}</p>'
    if content.advice:
        yield f'<p class="advice">{text(content.advice)}</p>'
    if content.headline and content.summary:
        yield f'<p class="state">{text(state)}</p>'
    if figures := content.figures():
        yield '<dl class="figures">'
        for label, figure, detail in figures:
            yield (
                f'<div><dt>{text(label)}</dt><dd class="big">{text(figure)}</dd>'
                f'<dd class="below">{text(detail)}</dd></div>'
            )
        yield "</dl>"
    for warning in content.warnings:
        yield f'<section class="warning"><p>Mind: {text(warning)}</p></section>'


def section_html(section: Section) -> str:
    lines = []
    for note in section.notes:
        lines.append(f"<p>{text(note)}</p>")
    for label, chart in section.charts:
        lines.append(draw(chart, label))
    lines.extend(map(cause_html, section.causes))
    if section.ending:
        lines.append(f"<p>{text(section.ending)}</p>")
    grid = section.grid
    if grid and not grid.drawn:
        lines.append(table_html(grid))
    inside, title = "\n".join(lines), text(section.title)
    if section.folded:
        inside = f"<details><summary>{title}</summary>\n{inside}\n</details>"
        return f"<section>{inside}</section>"
    return f"<section><h2>{title}</h2>\n{inside}\n</section>"


def cause_html(cause: Cause) -> str:
    remedy = ""
    if cause.remedy:
        remedy = f'<p class="try">Try: {text(cause.remedy)}</p>'
    return (
        f'<div class="cause {cause.tone.value}"><b>{text(cause.kind)}</b> · {text(cause.cost)}'
        f"<p>{text(cause.evidence)}</p>{remedy}</div>"
    )


def table_html(grid: Grid) -> str:
    header = rows = kind = ""
    if grid.has_header:
        header = row_html("th", grid.header, grid.right)
    for row in grid.rows:
        rows += row_html("td", row, grid.right)
    if grid.total:
        kind = " class=total"
    table = f"<table{kind}><thead>{header}</thead><tbody>{rows}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def row_html(tag: str, cells: Sequence[str], right: frozenset[int]) -> str:
    made = ""
    for column, cell in enumerate(cells):
        opening = tag + " class=n" * (column in right)
        made += f"<{opening}>{text(cell)}</{tag}>"
    return f"<tr>{made}</tr>"
