"""Reads the events of a Chrome trace out of JSON text into columns of numbers, in Python.

This is what runs where `_scan.c` was not compiled, and it says what that file must do: both are
fed with the same whole, torn and mutated files in a test, and every column is compared. The
standard library's parser takes valid events; an event that it refuses is read once more by rules
that forgive what old profilers wrote (quotes in names that were not escaped), and is counted as
broken when that fails too. The next event is then looked for.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any

MISSING = -(2**63)
MISSING_SMALL = -(2**31)
LONGEST_EVENT = 1 << 20
LARGEST_EXTRAS = 64 << 20
MOST_BROKEN = 1000
"""A file with more broken events is not read on: each may cost a megabyte of reading."""
RESYNC_TAIL = 64
DEEPEST = 512

_EVENT = struct.Struct("<qqqqiiiiii")
_WORK = struct.Struct("<qqqiiiiiiiiii")
_NUMBER = re.compile(r"(-?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?")
_NEXT_EVENT = re.compile(r'\{[ \t\r\n]*"(?:name|ph)"')
_KINDS = frozenset("XBEM")


def exact(text: str, scale: int) -> int:
    """The decimal number in `text` times ten to the `scale`, rounded half up; `MISSING` where it is none."""
    found = _NUMBER.fullmatch(text) if text.isascii() else None
    if not found or not (found[2] or found[3]):
        return MISSING
    digits, power = (found[2] + (found[3] or "")).lstrip("0"), _power(found[4])
    exponent = scale + power - len(found[3] or "")
    if not digits or len(digits) + exponent < 0:
        return 0
    if len(digits) + exponent > 20:
        return MISSING
    value = int(digits) * 10**exponent if exponent >= 0 else _halved_up(digits, exponent)
    return MISSING if value > 2**63 - 1 else -value if found[1] else value


def _power(text: str | None) -> int:
    return 0 if text is None else max(-100_000, min(100_000, int(text[:8])))


def _halved_up(digits: str, exponent: int) -> int:
    kept, first_lost = digits[:exponent], digits[exponent]
    return int(kept or "0") + (first_lost >= "5")


class Scanner:
    """Reads the events of a Chrome trace into columns, block by block."""

    def __init__(self) -> None:
        self._events = bytearray()
        self._works = bytearray()
        self._names: dict[str, int] = {}
        self._extras: list[dict[str, Any]] = []
        self._extras_size = 0
        self._last: tuple[int, int] | None = None  # start and correlation of the last event
        self._broken = self._ignored = self._lost_extras = 0
        self._resyncing = False
        self._decoder = json.JSONDecoder(
            strict=False, parse_int=str, parse_float=str, parse_constant=lambda word: None
        )

    def feed(self, block: bytes, start: int, final: bool) -> tuple[int, bool]:
        """Read what is whole from `start` on: where the next call must begin, and whether the events are at their end."""
        text = block[start:].decode("utf-8", "surrogateescape")
        at, done = self._scan(text, final)
        return start + len(text[:at].encode("utf-8", "surrogateescape")), done

    def take(self) -> dict[str, Any]:
        """Everything that was read; the scanner is empty afterwards."""
        counts = {
            "broken": self._broken,
            "ignored": self._ignored,
            "lost_extras": self._lost_extras,
        }
        taken = {
            "events": self._events,
            "works": self._works,
            "names": list(self._names),
            "extras": self._extras,
            **counts,
        }
        self.__init__()  # type: ignore[misc]  # as new
        return taken

    def _scan(self, text: str, final: bool) -> tuple[int, bool]:
        at, end = 0, len(text)
        while True:
            if self._resyncing:
                found = _NEXT_EVENT.search(text, at)
                if not found:
                    return (end, True) if final else (max(at, end - RESYNC_TAIL), False)
                at, self._resyncing = found.start(), False
            while at < end and text[at] in " \n\t\r,":
                at += 1
            if at == end:
                self._broken += final
                return at, final
            if text[at] == "]":
                return at + 1, True
            after = self._read(text, at)
            if not after and not final and end - at <= LONGEST_EVENT:
                return at, False
            at = after or self._read_again(text, at)
            if self._broken >= MOST_BROKEN:
                return end, True

    def _read(self, text: str, at: int) -> int:
        """Take the event that begins here: where it ends, or 0 where the parser refuses it."""
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

    def _read_again(self, text: str, at: int) -> int:
        """Take the event by the rules that forgive; what is none by these is broken, and the next one is looked for."""
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
            self._tell_correlation(event)
        elif event.get("cat") == "python_function" or kind not in _KINDS:
            self._ignored += 1
        else:
            self._keep(event, ord(str(kind)))

    def _tell_correlation(self, event: dict[str, Any]) -> None:
        """A flow's end stands right behind the event that it belongs to, and knows what that one may lack."""
        if (
            self._last
            and self._last[1] == MISSING
            and self._last[0] == _number(event.get("ts"), 3)
            and "id" in event
        ):
            self._last = (self._last[0], _number(event["id"], 0))
            struct.pack_into(
                "<q", self._events, len(self._events) - _EVENT.size + 16, self._last[1]
            )

    def _keep(self, event: dict[str, Any], kind: int) -> None:
        given = event.get("args")
        args: dict[str, Any] = given if isinstance(given, dict) else {}
        start, duration = _number(event.get("ts"), 3), _number(event.get("dur"), 3)
        correlation = _number(args.get("correlation"), 0)
        external = _number(args.get("External id", args.get("external id")), 0)
        names = [self._intern(event.get(key)) for key in ("name", "cat", "pid", "tid")]
        if "stream" in args and not isinstance(args["stream"], (dict, list)):
            self._works += _WORK.pack(len(self._events) // _EVENT.size, *_work(args))
        extra = self._keep_extra(args, event.get("name"), kind)
        self._events += _EVENT.pack(start, duration, correlation, external, *names, kind, extra)
        self._last = (start, correlation)

    def _intern(self, name: Any) -> int:
        text = plain(name) if isinstance(name, str) else ""
        return self._names.setdefault(text, len(self._names))

    def _keep_extra(self, args: dict[str, Any], name: Any, kind: int) -> int:
        collective = "Collective name" in args or (
            "Input type" in args
            and isinstance(name, str)
            and len(name) > 5
            and name.startswith("nccl:")
        )
        if not args or not (kind == ord("M") or collective):
            return -1
        size = len(str(args))
        if self._extras_size + size > LARGEST_EXTRAS:
            self._lost_extras += 1
            return -1
        self._extras_size += size
        self._extras.append(args)
        return len(self._extras) - 1


def _number(value: Any, scale: int) -> int:
    return exact(value, scale) if isinstance(value, str) else MISSING


def _small(value: Any) -> int:
    number = _number(value, 0)
    return number if -(2**31) < number < 2**31 else MISSING_SMALL


def _work(args: dict[str, Any]) -> tuple[int, ...]:
    single = (
        _small(args.get("device")),
        _small(args.get("registers per thread")),
        _small(args.get("shared memory")),
    )
    return (
        _number(args["stream"], 0),
        _number(args.get("bytes"), 0),
        *single,
        *_triple(args.get("grid")),
        *_triple(args.get("block")),
        0,
    )


def _triple(value: Any) -> tuple[int, int, int]:
    if not isinstance(value, list) or len(value) != 3:
        return MISSING_SMALL, 0, 0
    x, y, z = (_small(item) for item in value)
    return x, y, z


_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt])|u([0-9a-fA-F]{4}))')
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_A_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def unescape(raw: str) -> str:
    """The text of a JSON string's inside; escapes that JSON does not know stay as they are."""
    if "\\" not in raw:
        return raw
    text = _ESCAPE.sub(
        lambda found: _ESCAPES.get(found[1], found[1]) if found[1] else chr(int(found[2], 16)), raw
    )
    return (
        text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if _SURROGATE.search(text)
        else text
    )


def plain(text: str) -> str:
    """`text` with every byte that is no UTF-8, and every half of a pair, as the replacement character."""
    if text.isascii():
        return text
    return (
        _NOT_A_BYTE.sub("\ufffd", text)
        .encode("utf-8", "surrogateescape")
        .decode("utf-8", "replace")
    )


_SPACE = re.compile(r"[ \t\r\n]*")
_SCALAR = re.compile(
    r"(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)(?=.)|null|true|false|NaN|-?Infinity",
    re.DOTALL | re.ASCII,
)


class _WrongError(Exception):
    """The text is no event, also by the rules that forgive."""


def forgive(text: str, offset: int) -> tuple[dict[str, Any] | None, int]:
    """The event that `text` begins with, read so that a quote ends a string only where punctuation follows."""
    try:
        value, at = _value(text, 0, 0)
    except (_WrongError, IndexError, RecursionError):
        return None, 0
    return (value, offset + at) if isinstance(value, dict) else (None, 0)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    at = found.end() if found else at
    if at >= len(text):
        raise _WrongError
    return at


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    if text[at] == '"':
        return _string(text, at)
    if text[at] in "{[":
        return _container(text, at, depth + 1)
    found = _SCALAR.match(text, at)
    if not found:
        raise _WrongError
    return (found[1] or None), found.end()


def _string(text: str, at: int) -> tuple[str, int]:
    start = at = at + 1
    while True:
        if text[at] == "\\":
            at = found.end() if (found := _ESCAPE.match(text, at)) else at + 1
        elif text[at] == '"':
            if text[_skip(text, at + 1)] in ",:}]":
                return unescape(text[start:at]), at + 1
            at += 1
        else:
            at += 1


def _container(text: str, at: int, depth: int) -> tuple[Any, int]:
    if depth > DEEPEST:
        raise _WrongError
    is_object = text[at] == "{"
    close = "}" if is_object else "]"
    members: dict[str, Any] = {}
    items: list[Any] = []
    at = _skip(text, at + 1)
    more = text[at] != close
    if not more:
        at += 1
    while more:
        key = ""
        if is_object:
            key, at = _key(text, at)
        value, at = _value(text, at, depth)
        members[key] = value
        items.append(value)
        at = _skip(text, at)
        if text[at] not in (",", close):
            raise _WrongError
        more = text[at] == ","
        at = _skip(text, at + 1) if more else at + 1
    return (members if is_object else items), at


def _key(text: str, at: int) -> tuple[str, int]:
    if text[at] != '"':
        raise _WrongError
    key, at = _string(text, at)
    at = _skip(text, at)
    if text[at] != ":":
        raise _WrongError
    return key, _skip(text, at + 1)
