"""A document as one HTML file that needs nothing else: no script, no font, no picture, no network.

The content policy forbids everything but this very style sheet, by its hash, so that even a name that
slipped through could neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence

from profkit.report.charts import draw, text
from profkit.report.document import Cause, Document, Grid, Section

STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2330; --soft: #5b6474; --edge: #dfe3ea; --whole: #7d8798; --bad: #c8442f; --good: #1f8a5b; --accent: #2f6fd0;
  --p0: #4c78c8; --p1: #8fb4e3; --p2: #2f9e8f; --p3: #e0a030; --p4: #b85c9e; --p5: #7a6bd0; --p6: #a3a65a; --p7: #d0785a; --rest: #b4bbc7; --in: #ffffff; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12151b; --card: #1a1f28; --ink: #e6e9ef; --soft: #98a2b3; --edge: #2d3441; --whole: #6b7689; --bad: #f07860; --good: #4cc38a; --accent: #76a9fa;
  --p0: #6b95e0; --p1: #3f669c; --p2: #3fae9f; --p3: #c98f2c; --p4: #c774b2; --p5: #8f82e6; --p6: #8f9248; --p7: #c9714f; --rest: #545d6c; --in: #0d1016; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2, summary { font-size: 17px; font-weight: 650; margin: 0 0 10px; }
summary { cursor: pointer; margin: 0; }
details[open] summary { margin-bottom: 10px; }
.sub { color: var(--soft); margin: 2px 0 18px; overflow-wrap: anywhere; }
.verdict { display: flex; gap: 12px; align-items: baseline; flex-wrap: wrap; margin: 0 0 18px; }
.pill { border-radius: 999px; padding: 3px 14px; font-weight: 650; border: 1.5px solid; white-space: nowrap; }
.pill.bad { color: var(--bad); } .pill.good { color: var(--good); } .pill.plain { color: var(--accent); } .pill.unsure { color: var(--soft); border-style: dashed; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 12px; margin: 0 0 12px; }
.figures div, section { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 14px 18px; }
.figures dt { color: var(--soft); font-size: 13px; } .figures dd { margin: 0; } .figures .big { font-size: 22px; font-weight: 650; font-variant-numeric: tabular-nums; }
.figures .below { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
section { margin: 12px 0; padding: 18px; }
.warning { border-left: 4px solid var(--p3); }
p { margin: 0 0 10px; color: var(--soft); overflow-wrap: anywhere; } .warning p { margin: 0; color: var(--ink); } .verdict p { margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 10px 5px 0; border-bottom: 1px solid var(--edge); vertical-align: top; overflow-wrap: anywhere; }
td:first-child { min-width: 150px; } th { color: var(--soft); font-weight: 500; } .n { text-align: right; white-space: nowrap; } tr:last-child td { border-bottom: 0; }
.total tr:last-child td { font-weight: 650; border-top: 1.5px solid var(--soft); }
pre { margin: 0; font: 13px/1.45 ui-monospace, "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace; }
.cause { border-left: 4px solid var(--bad); padding: 2px 0 2px 14px; margin: 0 0 14px; }
.cause b { font-size: 15px; } .cause p { margin: 2px 0 0; } .cause .try { color: var(--ink); }
svg { display: block; width: 100%; height: auto; margin: 4px 0 14px; font: 12px system-ui, "Segoe UI", Roboto, Arial, sans-serif; }
svg text { fill: var(--ink); font-variant-numeric: tabular-nums; } svg .faint { fill: var(--soft); font-size: 11px; } svg .strong { font-weight: 650; }
svg .inside { fill: var(--in); font-weight: 600; } svg .inside-cell { font-size: 11.5px; }
.whole { fill: var(--whole); } .bad { fill: var(--bad); } .good { fill: var(--good); } .rest { fill: var(--rest); } .used { fill: var(--accent); }
.warm-up { fill: var(--p3); } .epoch-start { fill: var(--p4); } .partial-batch { fill: var(--p2); } .apart { fill: var(--p6); }
.part0 { fill: var(--p0); } .part1 { fill: var(--p1); } .part2 { fill: var(--p2); } .part3 { fill: var(--p3); }
.part4 { fill: var(--p4); } .part5 { fill: var(--p5); } .part6 { fill: var(--p6); } .part7 { fill: var(--p7); }
.cell { fill: var(--page); stroke: var(--edge); } .grid { stroke: var(--edge); } .link { stroke: var(--soft); stroke-dasharray: 2 3; } .whisker { stroke: var(--ink); stroke-width: 1.5; }
footer { color: var(--soft); font-size: 13px; margin-top: 20px; }
@media print { body { background: none; } section, .figures div { break-inside: avoid; } }
"""


def document(content: Document, version: str) -> str:
    """The whole page; `version` is the profkit that made it."""
    policy = f"default-src 'none'; style-src 'sha256-{_digest(STYLE)}'; base-uri 'none'; form-action 'none'"
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(content.title)} · profkit</title>\n<style>{STYLE}</style>\n</head>\n"
    )
    body = "\n".join([*_header(content), *map(_section, content.sections)])
    return f"{head}<body>\n<main>\n{body}\n<footer>made by profkit {text(version)}; intervals are 95 % and hold for steps that depend on each other</footer>\n</main>\n</body>\n</html>\n"


def _digest(style: str) -> str:
    return base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()


def _header(content: Document) -> Iterator[str]:
    yield f'<h1>{text(content.title)}</h1>\n<p class="sub">{text(content.subtitle)}</p>'
    yield f'<div class="verdict"><span class="pill {content.tone.value}">{text(content.verdict)}</span><p>{text(content.summary)}</p></div>'
    if content.figures:
        cells = (
            f'<div><dt>{text(label)}</dt><dd class="big">{text(figure)}</dd><dd class="below">{text(below)}</dd></div>'
            for label, figure, below in content.figures
        )
        yield f'<dl class="figures">{"".join(cells)}</dl>'
    for warning in content.warnings:
        yield f'<section class="warning"><p>Mind: {text(warning)}</p></section>'


def _section(section: Section) -> str:
    inside = "\n".join(_inside(section))
    if section.folded:
        return f"<section><details><summary>{text(section.title)}</summary>\n{inside}\n</details></section>"
    return f"<section><h2>{text(section.title)}</h2>\n{inside}\n</section>"


def _inside(section: Section) -> Iterator[str]:
    yield from (f"<p>{text(note)}</p>" for note in section.notes)
    yield from (draw(chart, label) for label, chart in section.charts)
    yield from map(_cause, section.causes)
    if section.grid and not section.grid.drawn:
        yield _grid(section.grid)
    if section.verbatim:
        yield f'<div class="scroll"><pre>{chr(10).join(map(text, section.verbatim.split(chr(10))))}</pre></div>'


def _cause(cause: Cause) -> str:
    remedy = f'<p class="try">Try: {text(cause.remedy)}</p>' if cause.remedy else ""
    return f'<div class="cause"><b>{text(cause.kind)}</b> · {text(cause.cost)}<p>{text(cause.evidence)}</p>{remedy}</div>'


def _grid(grid: Grid) -> str:
    header = _row("th", grid.header, grid.right) if any(grid.header) else ""
    rows = "".join(_row("td", row, grid.right) for row in grid.rows)
    return f'<div class="scroll"><table{" class=total" if grid.total else ""}><thead>{header}</thead><tbody>{rows}</tbody></table></div>'


def _row(tag: str, cells: Sequence[str], right: frozenset[int]) -> str:
    return (
        "<tr>"
        + "".join(
            f"<{tag}{' class=n' if column in right else ''}>{text(cell)}</{tag}>"
            for column, cell in enumerate(cells)
        )
        + "</tr>"
    )
