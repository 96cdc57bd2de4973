"""Splits Markdown into headings, paragraphs, commands, table rows and links.

Reports in the wild are not strict Markdown: fences are indented, and text after a list is, too. So
only fences make code, and a paragraph ends at a blank line, a list item, a heading or a fence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from profkit.errors import UnreadableError
from profkit.text import safe_text

LARGEST_TEXT = 8 << 20
_LONGEST_LINE = 4_000
_FENCE = re.compile(r"^\s{0,40}(?:[-*>]\s{1,4})?(```|~~~)")
_ITEM = re.compile(r"^\s{0,40}(?:[-*+]|\d{1,3}[.)])\s")
_HEADING = re.compile(r"^\s{0,3}#{1,6}\s")
_RULE = re.compile(r"^[\s|:+-]{1,400}$")
_LINK = re.compile(r"\[([^\[\]]{1,400})\]\(([^()\s]{1,400})\)")
_COMMENT = re.compile(r"<!--.{0,400}?-->")


class Kind(str, Enum):
    """The kinds of blocks."""

    HEADING = "heading"
    WORDS = "words"
    CODE = "code"
    ROW = "row"


@dataclass(frozen=True)
class TextLine:
    """One line of a text."""

    number: int
    text: str


@dataclass(frozen=True)
class Block:
    """Lines that belong together: a paragraph, a fenced block, a heading, or a table's row."""

    kind: Kind
    lines: tuple[TextLine, ...]


@dataclass(frozen=True)
class Link:
    """A link's words and its target."""

    line: int
    words: str
    target: str


@dataclass(frozen=True)
class TextPage:
    """A text, by its blocks."""

    path: Path
    blocks: tuple[Block, ...]

    @property
    def links(self) -> tuple[Link, ...]:
        found = []
        for block in self.blocks:
            if block.kind in (Kind.WORDS, Kind.ROW):
                for line in block.lines:
                    for words, target in _LINK.findall(line.text):
                        found.append(Link(line.number, words, target))
        return tuple(found)


def read_page(path: Path) -> TextPage:
    """Read a Markdown file; raise one line if that is not possible."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_TEXT + 1)
    except OSError as error:
        raise UnreadableError(f"{safe_text(str(path))}: {error.strerror}") from error
    if len(raw) > LARGEST_TEXT or b"\0" in raw:
        raise UnreadableError(f"{safe_text(str(path))}: not a text, or longer than 8 MiB")
    lines = []
    for number, text in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
        plain = text[:_LONGEST_LINE].replace("\u00a0", " ")
        lines.append(TextLine(number, _COMMENT.sub("", plain)))
    return TextPage(path, tuple(_split(lines)))


def without_links(text: str) -> str:
    """Return a line with the words of its links and without their targets."""
    return _LINK.sub(r"\1", text)


def cells(line: TextLine) -> list[str]:
    """Return the cells of a table's row."""
    return [cell.strip() for cell in line.text.strip().strip("|").split("|")]


def is_rule(line: TextLine) -> bool:
    """Return true for the line between a table's header and its rows."""
    return "-" in line.text and "|" in line.text and _RULE.match(line.text) is not None


def _split(lines: Sequence[TextLine]) -> Iterator[Block]:
    held: list[TextLine] = []
    fence = ""
    for line in lines:
        mark = _FENCE.match(line.text)
        if fence:
            if mark and mark[1] == fence:
                yield from _block(Kind.CODE, held)
                fence = ""
            else:
                held.append(line)
            continue
        kind = Kind.ROW if line.text.strip().startswith("|") else Kind.WORDS
        if _HEADING.match(line.text):
            kind = Kind.HEADING
        if mark or kind is not Kind.WORDS or not line.text.strip() or _ITEM.match(line.text):
            yield from _block(Kind.WORDS, held)
        if mark:
            fence = mark[1]
        elif kind is not Kind.WORDS:
            yield Block(kind, (line,))
        elif line.text.strip():
            held.append(line)
    yield from _block(Kind.CODE if fence else Kind.WORDS, held)


def _block(kind: Kind, held: list[TextLine]) -> Iterable[Block]:
    """Return the held lines as a block, if there are any, and forget them."""
    found = (Block(kind, tuple(held)),) if held else ()
    held.clear()
    return found
