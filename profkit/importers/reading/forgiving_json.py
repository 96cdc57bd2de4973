"""Reads JSON as old profilers wrote it: with quotes in names that are not escaped."""

from __future__ import annotations

import re
from typing import Any

DEEPEST = 512

_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt])|u([0-9a-fA-F]{4}))')
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_A_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_SPACE = re.compile(r"[ \t\r\n]*")
_SCALAR = re.compile(
    r"(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)(?=.)|null|true|false|NaN|-?Infinity",
    re.DOTALL | re.ASCII,
)


def unescape(raw: str) -> str:
    """Return the text in a JSON string; escapes that JSON does not have stay as they are."""
    if "\\" not in raw:
        return raw
    text = _ESCAPE.sub(_unescape_one, raw)
    if _SURROGATE.search(text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _unescape_one(found: re.Match[str]) -> str:
    if found[1]:
        return _ESCAPES.get(found[1], found[1])
    return chr(int(found[2], 16))


def plain(text: str) -> str:
    """Return text in which bytes that are not UTF-8, and halves of pairs, are replaced."""
    if text.isascii():
        return text
    replaced = _NOT_A_BYTE.sub("\ufffd", text)
    return replaced.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class _WrongError(Exception):
    """The text is not an event, even by the forgiving rules."""


def forgive(text: str, offset: int) -> tuple[dict[str, Any] | None, int]:
    """Return the object that a text begins with, and `offset` plus its end; or null."""
    try:
        value, at = _value(text, 0, 0)
    except (_WrongError, IndexError, RecursionError):
        return None, 0
    if isinstance(value, dict):
        return value, offset + at
    return None, 0


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    if found:
        at = found.end()
    if at >= len(text):
        raise _WrongError
    return at


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Return the value that begins at a place, and its end."""
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
            found = _ESCAPE.match(text, at)
            at = found.end() if found else at + 1
        elif text[at] == '"' and text[_skip_space(text, at + 1)] in ",:}]":
            return unescape(text[start:at]), at + 1
        else:
            at += 1


def _container(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Return the object or the array that begins at a place, and its end."""
    if depth > DEEPEST:
        raise _WrongError
    is_object = text[at] == "{"
    close = "}" if is_object else "]"
    members: dict[str, Any] = {}
    items: list[Any] = []
    container: Any = members if is_object else items
    at = _skip_space(text, at + 1)
    if text[at] == close:
        return container, at + 1
    while True:
        key = ""
        if is_object:
            if text[at] != '"':
                raise _WrongError
            key, at = _string(text, at)
            at = _skip_space(text, at)
            if text[at] != ":":
                raise _WrongError
            at = _skip_space(text, at + 1)
        value, at = _value(text, at, depth)
        members[key] = value
        items.append(value)
        at = _skip_space(text, at)
        if text[at] == close:
            return container, at + 1
        if text[at] != ",":
            raise _WrongError
        at = _skip_space(text, at + 1)
