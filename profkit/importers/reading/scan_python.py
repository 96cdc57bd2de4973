"""Reads the events of a Chrome trace out of JSON text into columns of numbers, in Python.

It replaces `_scan.c` if that was not compiled, and specifies what that file must do: a test feeds
both with the same whole, torn and mutated files and compares every column. The standard library's
parser reads valid events. An event that it refuses is read again by the rules of `forgiving_json`.
If that fails, the event counts as broken, and the next one is searched.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any

from profkit.importers.reading.forgiving_json import forgive, plain
from profkit.importers.reading.numbers import MISSING, MISSING_SMALL, exact

LONGEST_EVENT = 1 << 20
LARGEST_EXTRAS = 64 << 20
MAX_BROKEN = 1000
"""A file with more broken events is not read further: each may cost a megabyte of reading."""
RESYNC_TAIL = 64
"""The characters kept at a block's end while the next event is searched: it may begin in them."""

_EVENT = struct.Struct("<qqqqiiiiii")
_CORRELATION_OFFSET = 16
_WORK = struct.Struct("<qqqiiiiiiiiii")
_NEXT_EVENT = re.compile(r'\{[ \t\r\n]*"(?:name|ph)"')
_RANGE = re.compile(r"nccl:.", re.DOTALL)
_KINDS = frozenset("XBEM")
LONG_FRAME_NS = 100_000
"""Shorter frames of Python are ignored: a longer one may show what a device waited for."""


def make_decoder() -> json.JSONDecoder:
    """Return a parser that leaves numbers as text, so that none of them becomes a double."""
    return json.JSONDecoder(
        strict=False, parse_int=str, parse_float=str, parse_constant=lambda word: None
    )


class Scanner:
    """Reads the events of a Chrome trace into columns, block by block."""

    def __init__(self) -> None:
        self._events = bytearray()
        self._works = bytearray()
        self._names: dict[str, int] = {}
        self._extras: list[dict[str, Any]] = []
        self._extras_size = 0
        self._last: tuple[int, int] | None = None
        """Start and correlation of the last event."""
        self._broken = self._ignored = self._lost_extras = 0
        self._resyncing = False
        self._decoder = make_decoder()

    def feed(self, block: bytes, start: int, final: bool) -> tuple[int, bool]:
        """Read the whole events from `start` on.

        Return where the next call must begin, and whether the list of events has ended.
        """
        text = block[start:].decode("utf-8", "surrogateescape")
        at, done = self._scan(text, final)
        return start + len(text[:at].encode("utf-8", "surrogateescape")), done

    def take(self) -> dict[str, Any]:
        """Return everything that was read; the scanner is empty afterwards."""
        taken = {
            "events": self._events,
            "works": self._works,
            "names": list(self._names),
            "extras": self._extras,
            "broken": self._broken,
            "ignored": self._ignored,
            "lost_extras": self._lost_extras,
        }
        self.__init__()  # type: ignore[misc]  # as new
        return taken

    def _scan(self, text: str, final: bool) -> tuple[int, bool]:
        at, end = 0, len(text)
        while True:
            if self._resyncing:
                found = _NEXT_EVENT.search(text, at)
                if not found:
                    if final:
                        return end, True
                    return max(at, end - RESYNC_TAIL), False
                at, self._resyncing = found.start(), False
            while at < end and text[at] in " \n\t\r,":
                at += 1
            if at == end:
                self._broken += final
                return at, final
            if text[at] == "]":
                return at + 1, True
            after = self._read_event(text, at)
            if not after and not final and end - at <= LONGEST_EVENT:
                return at, False
            at = after or self._forgive_event(text, at)
            if self._broken >= MAX_BROKEN:
                return end, True

    def _read_event(self, text: str, at: int) -> int:
        """Take the event that begins here; return its end, or 0 if the parser refuses it."""
        if text[at] != "{":
            return 0
        try:
            event, after = self._decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return 0
        if after - at > LONGEST_EVENT:
            return 0
        self._take_event(event)
        return int(after)

    def _forgive_event(self, text: str, at: int) -> int:
        """Take an event that the parser refuses, by the forgiving rules; return its end.

        If these refuse it as well, count it as broken and start to search the next one.
        """
        event, after = forgive(text[at : at + LONGEST_EVENT], at)
        if event is None:
            self._broken += 1
            self._resyncing = True
            return at + 1
        self._take_event(event)
        return after

    def _take_event(self, event: dict[str, Any]) -> None:
        kind = event.get("ph")
        if kind in {"s", "f"}:
            self._complete_correlation(event)
        elif kind not in _KINDS or _is_short_frame(event):
            self._ignored += 1
        else:
            self._keep(event, ord(str(kind)))

    def _complete_correlation(self, event: dict[str, Any]) -> None:
        """Take a missing correlation from a flow's end, which follows the event it belongs to."""
        if not self._last or self._last[1] != MISSING or "id" not in event:
            return
        start = self._last[0]
        if start == _number(event.get("ts"), 3):
            correlation = _number(event["id"], 0)
            self._last = (start, correlation)
            place = len(self._events) - _EVENT.size + _CORRELATION_OFFSET
            struct.pack_into("<q", self._events, place, correlation)

    def _keep(self, event: dict[str, Any], kind: int) -> None:
        """Append a row for an event, and one for its device columns if it ran on a device."""
        given = event.get("args")
        args: dict[str, Any] = given if isinstance(given, dict) else {}
        start, duration = _number(event.get("ts"), 3), _number(event.get("dur"), 3)
        correlation = _number(args.get("correlation"), 0)
        external = _number(args.get("External id", args.get("external id")), 0)
        names = []
        for key in ("name", "cat", "pid", "tid"):
            name = event.get(key)
            text = plain(name) if isinstance(name, str) else ""
            names.append(self._names.setdefault(text, len(self._names)))
        if "stream" in args and not isinstance(args["stream"], (dict, list)):
            self._works += _WORK.pack(
                len(self._events) // _EVENT.size,
                _number(args["stream"], 0),
                _number(args.get("bytes"), 0),
                _small(args.get("device")),
                _small(args.get("registers per thread")),
                _small(args.get("shared memory")),
                *_triple(args.get("grid")),
                *_triple(args.get("block")),
                0,
            )
        extra = self._keep_extra(args, event.get("name"), kind)
        self._events += _EVENT.pack(start, duration, correlation, external, *names, kind, extra)
        self._last = (start, correlation)

    def _keep_extra(self, args: dict[str, Any], name: Any, kind: int) -> int:
        """Keep the arguments of metadata and collectives; return their place, or -1."""
        is_range = "Input type" in args and isinstance(name, str) and _RANGE.match(name)
        if not args or not (kind == ord("M") or "Collective name" in args or is_range):
            return -1
        size = len(str(args))
        if self._extras_size + size > LARGEST_EXTRAS:
            self._lost_extras += 1
            return -1
        self._extras_size += size
        self._extras.append(args)
        return len(self._extras) - 1


def _is_short_frame(event: dict[str, Any]) -> bool:
    """Return whether an event is a frame of Python too short to show what a device waited for."""
    if event.get("cat") != "python_function":
        return False
    return event.get("ph") != "X" or _number(event.get("dur"), 3) < LONG_FRAME_NS


def _number(value: Any, scale: int) -> int:
    if isinstance(value, str):
        return exact(value, scale)
    return MISSING


def _small(value: Any) -> int:
    number = _number(value, 0)
    if -(2**31) < number < 2**31:
        return number
    return MISSING_SMALL


def _triple(value: Any) -> tuple[int, int, int]:
    if not isinstance(value, list) or len(value) != 3:
        return MISSING_SMALL, 0, 0
    x, y, z = map(_small, value)
    return x, y, z
