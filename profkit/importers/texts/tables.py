"""Reads the tables of a text: which setting each figure is of, and what it is.

A row names its cards, in a column of their own or in its first cell. A column names a figure, such
as the throughput, or a setting whose throughput it has, as `FP32(BS=2)` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profkit.importers.texts.markdown import Block, Kind, TextLine, cells, is_rule, without_links
from profkit.importers.texts.statements import find_statements
from profkit.importers.texts.values import Value, What

_NUMBER = re.compile(r"^\**(\d[\d,]{0,20}(?:\.\d{1,20})?)\s{0,2}(%?)\**$")
_HEADERS = (
    (
        What.CARDS,
        re.compile(
            r"卡数|^\W*(?:#\s?)?(?:num\w*\s(?:of\s)?)?(?:gpus?|cards|devices|ranks)\W*$",
            re.IGNORECASE,
        ),
    ),
    (What.BATCH, re.compile(r"^\D*(?:batch|(?<!\w)bs(?!\w))\D*$", re.IGNORECASE)),
    (What.TIME, re.compile(r"time\s?(?:2|to)\s?train|训练时间", re.IGNORECASE)),
    (
        What.ACCURACY,
        re.compile(r"准确率|accuracy|(?<!\w)(?:acc|miou|top-?1)(?!\w)", re.IGNORECASE),
    ),
    (What.SPEED_UP, re.compile(r"^\W*(?:加速比|speed[- ]?up)\W*$", re.IGNORECASE)),
    (What.LOSS, re.compile(r"(?<![a-z])loss(?![a-z])", re.IGNORECASE)),
    (
        What.THROUGHPUT,
        re.compile(r"吞吐|throughput|/s(?:ec)?(?!\w)|(?<!\w)ips(?!\w)", re.IGNORECASE),
    ),
)
_SHAPES = (What.CARDS, What.BATCH, What.PRECISION)
_STATED_ABOVE = (What.PRECISION, What.BATCH)
_FRAMEWORKS = ("pytorch", "tensorflow", "mxnet", "paddle")
_NAMES = re.compile(r"ngc|paddlepaddle|paddle|pytorch|tensorflow|mxnet", re.IGNORECASE)
_LETTERS = re.compile(r"[^a-z\u4e00-\u9fff]")
_LINES_ABOVE = 3
"""So many lines above a table can state its precision or batch."""


@dataclass(frozen=True)
class Figure:
    """A figure of a table, with the values that describe its setting."""

    value: Value
    setting: tuple[Value, ...]
    framework: str = ""

    def stated(self, what: What) -> set[float | str]:
        """Return the values of one kind that describe the setting; several are ambiguous."""
        return {each.value for each in self.setting if each.what is what}


def find_figures(blocks: Sequence[Block], file: str) -> Iterator[Figure]:
    """Yield the figures of all tables; the words above a table can state its setting."""
    above: list[TextLine] = []
    header: list[str] = []
    for place, block in enumerate(blocks):
        if block.kind is not Kind.ROW:
            if block.kind is Kind.HEADING:
                above = []
            above += block.lines if block.kind is not Kind.CODE else ()
            header = []
            continue
        (line,) = block.lines
        if is_rule(line):
            continue
        following = blocks[place + 1 : place + 2]
        if following and following[0].kind is Kind.ROW and is_rule(following[0].lines[0]):
            header = cells(line)
        elif header:
            context: list[Value] = []
            for before in reversed(above[-_LINES_ABOVE:]):
                stated = list(find_statements([before], file))
                if stated:
                    context = [each for each in stated if each.what in _STATED_ABOVE]
                    break
            yield from _read_row(line, header, context, file)


def _read_row(
    line: TextLine, header: Sequence[str], context: Sequence[Value], file: str
) -> Iterator[Figure]:
    """Yield the figures of a row, each with the setting that row, column and context describe."""
    own: list[Value] = []
    figures: list[tuple[Value, list[Value], str]] = []
    for title, cell in zip(header, cells(line), strict=False):
        number = _NUMBER.match(cell)
        if number is None:
            own += find_statements([TextLine(line.number, cell)], file)
            continue
        figure = float(number[1].replace(",", ""))
        shape = list(find_statements([TextLine(line.number, title)], file))
        framework = next((name for name in _FRAMEWORKS if name in title.lower()), "")
        what = next((kind for kind, pattern in _HEADERS if pattern.search(title)), None)
        rest = without_links(title).lower()
        for each in shape:
            rest = rest.replace(each.words.lower(), " ")
        says_more = _LETTERS.sub("", _NAMES.sub(" ", rest))  # such as `speed-up`
        if what is None and (shape or framework) and not says_more:
            what = What.THROUGHPUT
        if what in (What.CARDS, What.BATCH):
            own.append(Value(what, figure, file, line.number, f"{title}: {cell}"))
        elif what is not None:
            if what is What.ACCURACY and (figure > 1 or "%" in f"{title}{cell}"):
                figure /= 100
            words = f"{without_links(title)}: {cell}"
            figures.append((Value(what, figure, file, line.number, words), shape, framework))
    for value, shape, framework in figures:
        setting = [each for each in (*own, *shape) if each.what in _SHAPES]
        stated = {each.what for each in setting}
        setting += [each for each in context if each.what not in stated]
        yield Figure(value, tuple(setting), framework)
