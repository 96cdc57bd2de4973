"""A document as Markdown, for issues, pull requests and a job's summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from profkit.show.document import Cause, Document, Grid, Section, Tone
from profkit.text import safe_text

_MARKS = {Tone.GOOD: "🟢", Tone.BAD: "🔴", Tone.PLAIN: "⚪", Tone.UNSURE: "🟡"}

_SPECIAL = re.compile(r"[\\`*\[\]|~#!$]|(?<!\w)_|_(?!\w)")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"})
_LINK = re.compile(r":(?=//)|(?<=www)\.", re.IGNORECASE)


def document(content: Document) -> str:
    blocks = [f"# {plain(content.title)}", plain(content.subtitle)]
    verdict = f"{_MARKS[content.tone]} **{plain(content.verdict)}**"
    if content.summary:
        verdict += f": {plain(content.summary)}"
    if content.headline:
        blocks.append(f"**{plain(content.headline)}**")
    if content.advice:
        blocks.append(plain(content.advice))
    blocks.append(verdict)
    if figures := content.figures():
        rows = []
        for label, figure, detail in figures:
            rows.append((f"**{plain(label)}**", plain(figure), plain(detail)))
        blocks.append(table_markdown(("", "", ""), rows, frozenset()))
    for warning in content.warnings:
        blocks.append(f"> **note:** {plain(warning)}")
    blocks.append(sections(content.shown()))
    for label, text in content.copied:
        blocks.append(f"{plain(label)}: {plain(text)}")
    return "\n\n".join(filter(None, blocks)) + "\n"


def sections(found: Iterable[Section]) -> str:
    """Return sections; Markdown has no charts, and notes about one would be about nothing."""
    blocks: list[str] = []
    for section in found:
        if not section.is_picture:
            blocks.extend(section_markdown(section))
    return "\n\n".join(blocks)


def plain(text: str) -> str:
    """Return `text` so that Markdown shows it as it is: no markup, HTML, mention or link."""
    safe = _SPECIAL.sub(r"\\\g<0>", safe_text(text).translate(_ENTITIES))
    return _LINK.sub(lambda match: f"&#{ord(match[0])};", safe)


def section_markdown(section: Section) -> Iterator[str]:
    title = plain(section.title)
    yield f"<details><summary>{title}</summary>" if section.folded else f"## {title}"
    yield from map(plain, section.notes)
    yield from map(cause_markdown, section.causes)
    if section.ending:
        yield plain(section.ending)
    if grid := section.grid:
        yield grid_markdown(grid)
    if section.folded:
        yield "</details>"


def cause_markdown(cause: Cause) -> str:
    lines = [f"- **{plain(cause.kind)}**: {plain(cause.cost)}", f"  {plain(cause.evidence)}"]
    if cause.remedy:
        lines.append(f"  *try:* {plain(cause.remedy)}")
    return "\n".join(lines)


def grid_markdown(grid: Grid) -> str:
    rows = [list(map(plain, row)) for row in grid.rows]
    if grid.total and rows:
        rows[-1] = [f"**{cell}**" if cell else "" for cell in rows[-1]]
    return table_markdown(list(map(plain, grid.header)), rows, grid.right)


def table_markdown(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int]
) -> str:
    rule = ["---"] * len(header)
    for column in right:
        rule[column] = "---:"
    lines = []
    for row in (header, rule, *rows):
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)
