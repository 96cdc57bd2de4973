"""Reads a log's bytes as clean lines. No bytes make it raise, and its memory is bounded."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from profkit.importers.logs.parsed import Flag

LONGEST_LINE = 65_536
"""The bytes of a line that are read. Dumped configurations have up to 10,000, records fewer."""
MAX_LINES_LISTED = 3

# Every quantifier below is bounded or ends at a character that begins no other match,
# so that the time stays linear.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_MPIRUN = re.compile(
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?"
    r"\[\d{1,9},(\d{1,9})\]<std(?:out|err|diag)>: ?"
)
_CONTROLS = dict.fromkeys([*range(9), *range(10, 32), 127])
_NUMBER = r"[-+]?(?:\d{1,20}(?:\.\d{0,25})?|\.\d{1,25})(?:[eE][-+]?\d{1,3})?"
_SMALLEST, _LARGEST = 1e-13, 1e13
"""No figure of a log lies outside of these; products and quotients of such figures are finite."""
_MAX_COUNT_DIGITS = 15


@dataclass(frozen=True, slots=True)
class Line:
    """One line, or its part between carriage returns, without colours and prefixes.

    `process` is the process that wrote the line, according to mpirun. A `torn` line is the last of
    its file and has no end: a number at its end may be cut, and is removed from `text`.
    """

    number: int
    text: str
    process: int | None = None
    torn: bool = False


@dataclass
class Damage:
    """Counts what was wrong with a log's bytes."""

    undecodable: list[int] = field(default_factory=list)
    """The first few lines with bytes that are not text."""
    undecodable_count: int = 0
    cut: int = 0
    torn: int = 0

    def add_undecodable(self, number: int) -> None:
        self.undecodable_count += 1
        if len(self.undecodable) < MAX_LINES_LISTED:
            self.undecodable.append(number)

    @property
    def flags(self) -> list[Flag]:
        flags = []
        if self.undecodable_count:
            text = f"{self.undecodable_count:,} x a line with bytes that are not text"
            flags.append(Flag(text, tuple(self.undecodable)))
        if self.cut:
            flags.append(Flag(f"{self.cut:,} x a line that is too long; its end was not read"))
        if self.torn:
            flags.append(Flag("the last line has no end; a number at its end is not read"))
        return flags


def read_lines(blocks: Iterable[bytes], damage: Damage | None = None) -> Iterator[Line]:
    """Yield the lines in blocks of bytes; parts between carriage returns share a number."""
    damage = damage or Damage()
    for number, (raw, ended) in enumerate(split_lines(blocks, damage), 1):
        try:
            text = raw.decode()
            sound = "\0" not in text
        except UnicodeDecodeError:
            text = raw.decode("utf-8", "replace")
            sound = False
        if not sound:
            damage.add_undecodable(number)
        for part in text.split("\r"):
            line = _clean_line(part, number, torn=not ended)
            if line.text:
                damage.torn += line.torn
                yield line


def split_lines(blocks: Iterable[bytes], damage: Damage) -> Iterator[tuple[bytes, bool]]:
    """Yield each line's bytes up to the limit, and whether the line has an end."""
    rest = b""
    for block in blocks:
        *lines, last = block.split(b"\n")
        if lines:
            yield _cut_line(rest + lines[0], damage), True
            for line in lines[1:]:
                yield _cut_line(line, damage), True
            rest = last[: LONGEST_LINE + 1]
        else:
            rest += last[: LONGEST_LINE + 1 - len(rest)]
    if rest:
        yield _cut_line(rest, damage), False


def _cut_line(line: bytes, damage: Damage) -> bytes:
    damage.cut += len(line) > LONGEST_LINE
    return line[:LONGEST_LINE]


def _clean_line(text: str, number: int, *, torn: bool) -> Line:
    """Return the line without escapes, prefixes and control characters."""
    process = None
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "<std" in text:
        found = _MPIRUN.search(text)
        if found:
            process = int(found[1])
        text = _MPIRUN.sub("", text)
    if not text.isprintable():
        text = text.translate(_CONTROLS)
    if torn:
        text = text.rstrip("0123456789.+-eE")
    return Line(number, text.rstrip(), process, torn)


@functools.cache
def compile_label(label: str) -> re.Pattern[str]:
    """Return the pattern of a label and the number after it."""
    return re.compile(rf"(?<![\w.]){re.escape(label)}\s{{0,9}}({_NUMBER})(?![\d.])")


def number_after(text: str, label: str) -> float | None:
    """Return the number after a label, as in `loss:  4.27`; null if none is there or possible."""
    if label not in text:
        return None
    found = compile_label(label).search(text)
    if found:
        return as_number(found[1])
    return None


def as_number(word: str | None) -> float | None:
    """Return a word as a finite number of a possible size, else null."""
    if not word:
        return None
    try:
        value = float(word)
    except ValueError:
        return None
    if _SMALLEST <= abs(value) <= _LARGEST or value == 0:
        return value
    return None


def as_count(word: str | None, most: int = 10**12) -> int | None:
    """Return a word as a whole number from 0 to `most`, else null."""
    if not word or not word.isascii() or not word.isdigit() or len(word) > _MAX_COUNT_DIGITS:
        return None
    value = int(word)
    if value > most:
        return None
    return value
