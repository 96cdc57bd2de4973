"""A log's bytes as clean lines: whatever is in them, this never raises, and memory stays bounded."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

LONGEST_LINE = 65_536
"""Bytes of a line that are read: dumped configurations have up to 10,000, and what is longer is no record."""

# Every quantifier below is bounded or ends at a character that begins no other match: time stays linear.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_MPIRUN = re.compile(
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?\[\d{1,9},(\d{1,9})\]<std(?:out|err|diag)>: ?"
)
_CONTROLS = dict.fromkeys([*range(9), *range(10, 32), 127])
_NUMBER = r"[-+]?(?:\d{1,20}(?:\.\d{0,25})?|\.\d{1,25})(?:[eE][-+]?\d{1,3})?"
_SMALLEST, _LARGEST = 1e-13, 1e13
"""No figure of a log is beyond these; their products and quotients stay finite."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line, or the part of one between carriage returns, without colours and prefixes.

    `process` is the one that mpirun says wrote it. `torn` lines are the file's last and have no
    end; a number there may be cut anywhere, so it is not in `text`.
    """

    number: int
    text: str
    process: int | None = None
    torn: bool = False


@dataclass
class Damage:
    """What was wrong with the bytes."""

    undecodable: list[int] = field(default_factory=list)
    """The first few lines that hold bytes that are no text."""
    undecodable_count: int = 0
    cut: int = 0
    torn: int = 0


def read_lines(blocks: Iterable[bytes], damage: Damage | None = None) -> Iterator[Line]:
    """The lines in blocks of bytes; carriage returns begin a new one with the same number."""
    damage = damage or Damage()
    for number, (raw, ended) in enumerate(_split(blocks, damage), 1):
        for part in _decode(raw, number, damage).split("\r"):
            line = _clean(part, number, torn=not ended)
            if line.text:
                damage.torn += line.torn
                yield line


def _split(blocks: Iterable[bytes], damage: Damage) -> Iterator[tuple[bytes, bool]]:
    """Each line's bytes up to the limit, and whether it has an end."""
    rest = b""
    for block in blocks:
        *lines, last = block.split(b"\n")
        if lines:
            yield _cut(rest + lines[0], damage), True
            yield from ((_cut(line, damage), True) for line in lines[1:])
            rest = last[: LONGEST_LINE + 1]
        else:
            rest += last[: LONGEST_LINE + 1 - len(rest)]
    if rest:
        yield _cut(rest, damage), False


def _cut(line: bytes, damage: Damage) -> bytes:
    damage.cut += len(line) > LONGEST_LINE
    return line[:LONGEST_LINE]


def _decode(raw: bytes, number: int, damage: Damage) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
        _note(number, damage)
    else:
        if "\0" in text:
            _note(number, damage)
    return text


def _note(number: int, damage: Damage) -> None:
    damage.undecodable_count += 1
    if len(damage.undecodable) < 3:
        damage.undecodable.append(number)


def _clean(text: str, number: int, *, torn: bool) -> Line:
    process = None
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "<std" in text:
        found = _MPIRUN.search(text)
        process = int(found[1]) if found else None
        text = _MPIRUN.sub("", text)
    text = text if text.isprintable() else text.translate(_CONTROLS)
    if torn:
        text = text.rstrip("0123456789.+-eE")
    return Line(number, text.rstrip(), process, torn)


@functools.cache
def _after(label: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.]){re.escape(label)}\s{{0,9}}({_NUMBER})(?![\d.])")


def number_after(text: str, label: str) -> float | None:
    """The number behind a label, as in `loss:  4.27`; null where there is none, or one that cannot be."""
    if label not in text:
        return None
    found = _after(label).search(text)
    return as_number(found[1]) if found else None


def as_number(word: str | None) -> float | None:
    """A word as a finite number of a size that can be, else null."""
    try:
        value = float(word) if word else math.nan
    except ValueError:
        return None
    return value if _SMALLEST <= abs(value) <= _LARGEST or value == 0 else None


def as_count(word: str | None, most: int = 10**12) -> int | None:
    """A word as a whole number from 0 to `most`, else null."""
    return (
        int(word)
        if word and word.isascii() and word.isdigit() and len(word) < 16 and int(word) <= most
        else None
    )
