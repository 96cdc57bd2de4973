"""A document as Markdown, for issues, pull requests and a job's summary."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from profkit.report.document import Cause, Document, Grid, Section, Tone
from profkit.text import safe_text

_MARKS = {Tone.GOOD: "🟢", Tone.BAD: "🔴", Tone.PLAIN: "⚪", Tone.UNSURE: "🟡"}

_SPECIAL = re.compile(r"[\\`*\[\]|~#!$]|(?<!\w)_|_(?!\w)")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
_LINK = re.compile(r":(?=//)|(?<=www)\.", re.IGNORECASE)


def document(content: Document) -> str:
    return "\n\n".join(_blocks(content)) + "\n"


def plain(text: str) -> str:
    """`text` so that Markdown shows it as it is: no markup, no HTML, no mention of a user, no link."""
    safe = "".join(_ENTITIES.get(char, char) for char in safe_text(text))
    return _LINK.sub(lambda match: f"&#{ord(match[0])};", _SPECIAL.sub(r"\\\g<0>", safe))


def _blocks(content: Document) -> Iterator[str]:
    yield f"# {plain(content.title)}"
    yield plain(content.subtitle)
    yield f"{_MARKS[content.tone]} **{plain(content.verdict)}**" + (
        f": {plain(content.summary)}" if content.summary else ""
    )
    if content.figures:
        yield _table(
            ("", "", ""),
            [
                (f"**{plain(label)}**", plain(figure), plain(below))
                for label, figure, below in content.figures
            ],
            frozenset(),
        )
    for warning in content.warnings:
        yield f"> **mind:** {plain(warning)}"
    for section in content.sections:
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    yield (
        f"<details><summary>{plain(section.title)}</summary>"
        if section.folded
        else f"## {plain(section.title)}"
    )
    yield from map(plain, section.notes)
    yield from map(_cause, section.causes)
    if section.grid:
        yield _grid(section.grid)
    if section.verbatim:
        yield _fenced(section.verbatim)
    if section.folded:
        yield "</details>"


def _cause(cause: Cause) -> str:
    lines = [f"- **{plain(cause.kind)}**: {plain(cause.cost)}", f"  {plain(cause.evidence)}"]
    return "\n".join([*lines, *([f"  *try:* {plain(cause.remedy)}"] if cause.remedy else [])])


def _grid(grid: Grid) -> str:
    rows = [[plain(cell) for cell in row] for row in grid.rows]
    if grid.total and rows:
        rows[-1] = [f"**{cell}**" if cell else "" for cell in rows[-1]]
    return _table([plain(cell) for cell in grid.header], rows, grid.right)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int]) -> str:
    rule = ["---:" if column in right else "---" for column in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *rows))


def _fenced(block: str) -> str:
    """A block of a screen, in a fence that nothing in it can close."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", block)), default=0))
    lines = (safe_text(line) for line in block.split("\n"))
    return "\n".join([fence + "text", *lines, fence])
