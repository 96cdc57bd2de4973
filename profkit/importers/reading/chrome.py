"""Reads Chrome traces of PyTorch and Paddle: events as columns, the rest as an object.

The text is read in blocks. Everything except the events is small and is read by the standard
library's parser. The events are read by a scanner, which is compiled if there was a compiler.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from profkit.errors import UnreadableError
from profkit.importers.reading import scan_python
from profkit.importers.reading.blocks import TornError, read_blocks
from profkit.importers.reading.forgiving_json import forgive, unescape
from profkit.text import byte_size, safe_text

LARGEST_HEADER = 16 << 20
_FIRST_CHARACTERS = 65_536
"""A value of the header is searched in this many characters, then in four times as many."""
_SPACE_STEP = 64
_TAIL_BYTES = 256
_DOCUMENT_END = re.compile(rb"\]\s*\}?\s*\Z")
_WHOLE = "its last events are nested too deeply, or are too long to be read"
"""The problem of a file that has its end, which was taken for a part of a broken event."""


def _fields(kind: str, names: str) -> list[Any]:
    return [(name, kind) for name in names.split()]


EVENT = np.dtype(
    _fields("<i8", "start duration correlation external")
    + _fields("<i4", "name category process thread kind extra")
)
WORK = np.dtype(
    _fields("<i8", "event stream bytes")
    + _fields("<i4", "device registers shared")
    + [("grid", "<i4", 3), ("block", "<i4", 3), ("spare", "<i4")]
)


class Scanner(Protocol):
    """The interface of both scanners."""

    def feed(self, block: bytes, start: int, final: bool, /) -> tuple[int, bool]:
        """Read the whole events from `start` on."""

    def take(self) -> dict[str, Any]:
        """Return everything that was read."""


def find_compiled() -> Any:
    """Return the scanner in C, or null if profkit was installed without a compiler."""
    try:
        return importlib.import_module("profkit.importers.reading._scan").Scanner
    except ImportError:
        return None


CompiledScanner = find_compiled()


@dataclass(frozen=True)
class ChromeTrace:
    """One file. `works` has a row for each event on a device; `event` is its row in `events`."""

    header: dict[str, Any]
    events: npt.NDArray[np.void]
    works: npt.NDArray[np.void]
    names: tuple[str, ...]
    extras: tuple[dict[str, Any], ...]
    broken: int
    ignored: int
    lost_extras: int
    problem: str
    """The reason why reading ended before the file did, or empty."""


def read_chrome(path: Path, *, compiled: bool = True) -> ChromeTrace:
    """Return everything in a file that can be read; raise an error if it is no Chrome trace."""
    scanner: Scanner = scan_python.Scanner()
    if compiled and CompiledScanner:
        scanner = CompiledScanner()
    shown = safe_text(str(path))
    text = _Text(read_blocks(path), shown)
    header: dict[str, Any] = {}
    problem = ""
    try:
        _read_document(text, scanner, header)
        text.drain()
    except TornError as error:
        problem = str(error)
    except UnreadableError as error:
        if "traceEvents" not in header:
            raise
        problem = str(error)
    trace = make_trace(scanner.take(), header, problem)
    if trace.broken >= scan_python.MAX_BROKEN:
        too_broken = f"{shown}: too much of it is broken; the rest was not read"
        trace = dataclasses.replace(trace, problem=too_broken)
    if not len(trace.events):
        nothing = f"{shown}: a Chrome trace without a single event that can be read"
        raise UnreadableError(problem or nothing)
    return trace


def make_trace(taken: dict[str, Any], header: dict[str, Any], problem: str) -> ChromeTrace:
    """Return what a scanner read as a trace."""
    ids: dict[str, int] = {}
    places = []
    for raw in taken["names"]:
        name = raw if isinstance(raw, str) else unescape(raw.decode("utf-8", "replace"))
        places.append(ids.setdefault(name, len(ids)))
    events = np.frombuffer(taken["events"], EVENT)
    if len(ids) < len(places):  # one name in two spellings
        new_ids = np.array(places, dtype=np.int64)
        for column in ("name", "category", "process", "thread"):
            events[column] = new_ids[events[column]]
    return ChromeTrace(
        header,
        events,
        np.frombuffer(taken["works"], WORK),
        tuple(ids),
        tuple(map(_read_arguments, taken["extras"])),
        taken["broken"],
        taken["ignored"],
        taken["lost_extras"],
        problem,
    )


decoder = functools.cache(scan_python.make_decoder)


def _read_arguments(raw: bytes | dict[str, Any]) -> dict[str, Any]:
    """Return an event's arguments; if the parser refuses them, by the forgiving rules."""
    if isinstance(raw, dict):
        return raw
    text = raw.decode("utf-8", "surrogateescape")
    try:
        value = decoder().decode(text)
    except (ValueError, RecursionError):
        value = forgive(text + "]", 0)[0]
    if isinstance(value, dict):
        return value
    return {}


class _Text:
    """The file's text from a place on; what was read before it is not kept."""

    def __init__(self, blocks: Iterator[bytes], shown: str) -> None:
        self.block = b""
        self.at = 0
        self.final = False
        self._tail = b""
        self._blocks = blocks
        self._shown = shown

    def more(self) -> bool:
        """Add the next block; return false if there is none."""
        block = next(self._blocks, b"")
        self.final = not block
        self._tail = (self._tail + block[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        self.block = self.block[self.at :] + block
        self.at = 0
        return not self.final

    def drain(self) -> None:
        """Read to the file's end: only there, damage to its gzip data shows."""
        self.at = len(self.block)
        while self.more():
            self.at = len(self.block)

    def peek(self) -> str:
        """Return the next character that is not a space, or an empty text at the end."""
        while True:
            ahead = self.block[self.at : self.at + _SPACE_STEP]
            rest = ahead.lstrip(b" \t\r\n\xef\xbb\xbf")
            self.at += len(ahead) - len(rest)
            if rest:
                return chr(rest[0])
            if self.at == len(self.block) and not self.more():
                return ""

    def expect(self, characters: str) -> str:
        """Read the next character, which must be one of these."""
        found = self.peek()
        if not found:
            raise self.error(_WHOLE if _DOCUMENT_END.search(self._tail) else "it ends early")
        if found not in characters:
            raise self.error(f"{found!a} instead of one of {characters!a}")
        self.at += 1
        return found

    def value(self) -> Any:
        """Read the next JSON value."""
        self.peek()
        size = _FIRST_CHARACTERS
        while True:
            text = self.block[self.at : self.at + size].decode("utf-8", "surrogateescape")
            try:
                value, end = decoder().raw_decode(text)
            except RecursionError:
                raise self.error("it is nested too deeply") from None
            except ValueError:  # it is not whole
                value, end = None, len(text)
            if end < len(text) or (self.final and value is not None):
                self.at += len(text[:end].encode("utf-8", "surrogateescape"))
                return value
            if size > LARGEST_HEADER:
                raise self.error(f"no JSON value of less than {byte_size(LARGEST_HEADER)}")
            if self.at + size < len(self.block):
                size *= 4
            elif not self.more() and value is None:
                raise self.error("it ends early, or is no JSON")

    def error(self, what: str) -> UnreadableError:
        return UnreadableError(f"{self._shown}: not a Chrome trace: {what}")


def _read_document(text: _Text, scanner: Scanner, header: dict[str, Any]) -> None:
    """Read a list of events, or an object with one; everything else of it goes into `header`."""
    if text.expect("{[") == "[":
        header["traceEvents"] = None
        _read_events(text, scanner)
        return
    while text.peek() == '"':
        key = text.value()
        text.expect(":")
        if key == "traceEvents" and text.peek() == "[":
            text.at += 1
            header["traceEvents"] = None
            _read_events(text, scanner)
        else:
            header[str(key)] = text.value()
        if text.expect(",}") == "}":
            break
    if "traceEvents" not in header:
        raise text.error("it has no traceEvents")


def _read_events(text: _Text, scanner: Scanner) -> None:
    while True:
        text.at, done = scanner.feed(text.block, text.at, text.final)
        if done:
            return
        text.more()
