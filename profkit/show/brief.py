"""What a document says at first, in few lines: the rest is named, and printed on demand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from profkit.show.document import NAMED, Document, Grid, Section
from profkit.show.text import INDENT, LABEL_WIDTH, grid_text, opening, section_text
from profkit.text import WIDTH, fold, plural, safe_text


@dataclass
class _Block:
    """A section that is shown, and what shows less of it."""

    title: str
    section: Section
    lines: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.show(self.section)

    def show(self, section: Section) -> None:
        self.section = section
        self.lines = "\n".join(section_text(section)).splitlines()


def document(content: Document) -> str:
    """Return what fits into the document's lines.

    Without room, sections leave before notes do. A section that is kept is shortened instead.
    """
    page = _Page(content)
    while len(page.lines()) > (content.most_lines or math.inf):
        if not page.shrink():
            break
    return "\n".join(page.lines()).lstrip("\n")


class _Page:
    """What is shown of a document, and the titles of what is not."""

    def __init__(self, content: Document) -> None:
        self.content = content
        self.head = _lines(opening(content))
        self.notes = [fold(f"note: {warning}").splitlines() for warning in content.warnings]
        self.conclusion = _lines(_conclusion(content))
        self.blocks, self.named = _sections(content)

    def lines(self) -> list[str]:
        shown = [*self.head, *itertools.chain.from_iterable(self.notes), *self.conclusion]
        for block in self.blocks:
            shown += ["", *block.lines]
        titles = self.named
        if hidden := len(self.content.warnings) - len(self.notes):
            titles = [plural(hidden, "more note"), *titles]
        if footer := _footer(self.content, titles):
            shown += ["", *footer]
        return shown

    def shrink(self) -> bool:
        """Show less; return False if nothing is left that may go."""
        longest = None
        for place, block in reversed(list(enumerate(self.blocks))):
            if not block.section.kept:
                self.named.insert(0, self.blocks.pop(place).title)
                return True
            if block.section.brief and (not longest or len(block.lines) > len(longest.lines)):
                longest = block
        if longest is not None and longest.section.brief:
            longest.show(longest.section.brief)
        elif self.notes:
            self.notes.pop()
        else:
            return False
        return True


def _lines(texts: Iterator[str]) -> list[str]:
    return "\n".join(texts).splitlines()


def _conclusion(content: Document) -> Iterator[str]:
    words = content.doubt
    if words is None:
        words = ": ".join(filter(None, (content.verdict, content.summary)))
    if words:
        yield fold(words)
    if figures := content.figures(whole=False):
        yield grid_text(Grid(("", "", ""), tuple(figures)))


def _sections(content: Document) -> tuple[list[_Block], list[str]]:
    """Return the sections to show, in brief, and the titles of the others."""
    blocks, named = [], []
    for section in filter(attrgetter("title"), content.sections):
        brief = NAMED if section.folded else section.brief
        if brief is None:
            brief = section
        if section.is_picture:
            continue
        block = _Block(section.title, brief)
        if len(block.lines) > 1:
            blocks.append(block)
        else:
            named.append(section.title)
    return blocks, named


def _footer(content: Document, titles: list[str]) -> list[str]:
    """Return the titles of what is left, as far as a line reaches, and what is to be copied."""
    found = []
    if titles:
        line = f"{INDENT}{'more (--all)':<{LABEL_WIDTH}}{safe_text(titles[0])}"
        for place, title in enumerate(titles[1:], start=2):
            longer = f"{line}, {safe_text(title)}"
            if len(longer) + 5 * (place < len(titles)) > WIDTH:
                line += ", ..."
                break
            line = longer
        found.append(line)
    for label, text in content.copied:
        found.append(f"{INDENT}{label:<{LABEL_WIDTH}}{safe_text(text)}")
    return found
