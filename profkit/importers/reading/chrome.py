"""A Chrome trace, as PyTorch and Paddle write it: the events as columns, the rest as an object.

The text is read in blocks. What stands beside the events is small and goes through the standard
library's parser; the events go through a scanner, compiled where it could be.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from profkit.errors import UnreadableError
from profkit.importers.reading import scan_python as _scan_python
from profkit.importers.reading.blocks import TornError, read_blocks
from profkit.text import byte_size, safe_text

Ints = npt.NDArray[np.int64]
Names = npt.NDArray[np.int32]

MISSING = _scan_python.MISSING
MISSING_SMALL = _scan_python.MISSING_SMALL
LARGEST_HEADER = 16 << 20

EVENT = np.dtype(
    [(name, "<i8") for name in ("start", "duration", "correlation", "external")]
    + [(name, "<i4") for name in ("name", "category", "process", "thread", "kind", "extra")]
)
WORK = np.dtype(
    [(name, "<i8") for name in ("event", "stream", "bytes")]
    + [(name, "<i4") for name in ("device", "registers", "shared")]
    + [("grid", "<i4", 3), ("block", "<i4", 3), ("spare", "<i4")]
)


class Scanner(Protocol):
    """Either of the two scanners."""

    def feed(self, block: bytes, start: int, final: bool, /) -> tuple[int, bool]:
        """Read what is whole from `start` on."""

    def take(self) -> dict[str, Any]:
        """Everything that was read."""


def _compiled() -> Any:
    """The scanner in C, or nothing where profkit was installed without a compiler."""
    try:
        return importlib.import_module("profkit.importers.reading._scan").Scanner
    except ImportError:
        return None


CompiledScanner = _compiled()


@dataclass(frozen=True)
class ChromeTrace:
    """One file. `works` has a row for each event that ran on a device, `event` being its row in `events`."""

    header: dict[str, Any]
    events: npt.NDArray[np.void]
    works: npt.NDArray[np.void]
    names: tuple[str, ...]
    extras: tuple[dict[str, Any], ...]
    broken: int
    ignored: int
    lost_extras: int
    problem: str
    """Why reading ended before the file did, or nothing."""


def read_chrome(path: Path, *, compiled: bool = True) -> ChromeTrace:
    """Everything that a file holds and that can be read; raises where it is no Chrome trace at all."""
    scanner: Scanner = CompiledScanner() if compiled and CompiledScanner else _scan_python.Scanner()
    text = _Text(read_blocks(path), safe_text(str(path)))
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
    trace = _as_trace(scanner.take(), header, problem)
    if trace.broken >= _scan_python.MOST_BROKEN:
        trace = dataclasses.replace(
            trace,
            problem=f"{safe_text(str(path))}: too much of it is broken; the rest was not read",
        )
    if not len(trace.events):
        raise UnreadableError(
            problem
            or f"{safe_text(str(path))}: a Chrome trace without a single event that can be read"
        )
    return trace


def _as_trace(taken: dict[str, Any], header: dict[str, Any], problem: str) -> ChromeTrace:
    names, places = _unique([_name(raw) for raw in taken["names"]])
    events = np.frombuffer(taken["events"], EVENT)
    if len(names) < len(places):  # one name in two spellings
        for column in ("name", "category", "process", "thread"):
            events[column] = places[events[column]]
    extras = tuple(_object(raw) if isinstance(raw, bytes) else raw for raw in taken["extras"])
    works = np.frombuffer(taken["works"], WORK)
    return ChromeTrace(
        header,
        events,
        works,
        names,
        extras,
        taken["broken"],
        taken["ignored"],
        taken["lost_extras"],
        problem,
    )


def _unique(names: list[str]) -> tuple[tuple[str, ...], Ints]:
    ids: dict[str, int] = {}
    places = np.array([ids.setdefault(name, len(ids)) for name in names], dtype=np.int64)
    return tuple(ids), places


def _name(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else _scan_python.unescape(raw.decode("utf-8", "replace"))


@functools.cache
def _decoder() -> json.JSONDecoder:
    """Numbers stay text: none of them goes through a double."""
    return json.JSONDecoder(
        strict=False, parse_int=str, parse_float=str, parse_constant=lambda word: None
    )


def _object(raw: bytes) -> dict[str, Any]:
    """An event's arguments; what the parser refuses is read by the rules by which the event was."""
    text = raw.decode("utf-8", "surrogateescape")
    try:
        value = _decoder().decode(text)
    except (ValueError, RecursionError):
        value = _scan_python.forgive(text + "]", 0)[0]
    return value if isinstance(value, dict) else {}


class _Text:
    """The file's text with a place in it, of which only what has not been used is kept."""

    def __init__(self, blocks: Iterator[bytes], shown: str) -> None:
        self.block = b""
        self.at = 0
        self.final = False
        self._blocks = blocks
        self._shown = shown

    def more(self) -> bool:
        """Bring in the next block; false where there is none."""
        block = next(self._blocks, b"")
        self.final = not block
        self.block = self.block[self.at :] + block
        self.at = 0
        return not self.final

    def drain(self) -> None:
        """Read to the file's end: only there a damaged gzip file says so."""
        self.at = len(self.block)
        while self.more():
            self.at = len(self.block)

    def peek(self) -> str:
        """The next character that is no space, or nothing at the end."""
        while True:
            rest = self.block[self.at : self.at + 64].lstrip(b" \t\r\n\xef\xbb\xbf")
            if rest:
                self.at += len(self.block[self.at : self.at + 64]) - len(rest)
                return chr(rest[0])
            self.at = min(len(self.block), self.at + 64)
            if self.at == len(self.block) and not self.more():
                return ""

    def expect(self, characters: str) -> str:
        found = self.peek()
        if not found or found not in characters:
            raise self.error(
                f"{found!a} where one of {characters!a} belongs" if found else "it ends early"
            )
        self.at += 1
        return found

    def value(self) -> Any:
        """The JSON value that comes next."""
        self.peek()
        size = 65_536
        while True:
            text = self.block[self.at : self.at + size].decode("utf-8", "surrogateescape")
            value, end = self._decode(text)
            if end < len(text) or (self.final and value is not None):
                self.at += len(text[:end].encode("utf-8", "surrogateescape"))
                return value
            if size > LARGEST_HEADER:
                raise self.error(f"no JSON value of less than {byte_size(LARGEST_HEADER)}")
            if self.at + size < len(self.block):
                size *= 4
            elif not self.more() and value is None:
                raise self.error("it ends early, or is no JSON")

    def _decode(self, text: str) -> tuple[Any, int]:
        """The value at the beginning and its end; the text's end where there is no whole one."""
        try:
            return _decoder().raw_decode(text)
        except RecursionError:
            raise self.error("it is nested too deeply") from None
        except ValueError:
            return None, len(text)

    def error(self, what: str) -> UnreadableError:
        return UnreadableError(f"{self._shown}: not a Chrome trace: {what}")


def _read_document(text: _Text, scanner: Scanner, header: dict[str, Any]) -> None:
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
