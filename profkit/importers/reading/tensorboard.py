"""Reads TensorBoard's event files as lines of names and values, each with its time.

A file is a sequence of records: their length, a checksum, the event, and another checksum. An event
is a message of Protocol Buffers with the time, the step, and numbers with their tags.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import NamedTuple

SIGN = "TensorBoard"
_HEAD = re.compile(rb"\A.{8}.{4}\x09.{8}\x1a.brain\.Event:", re.DOTALL)
_AROUND = 16
"""The bytes of a record around its event."""
_MOST_EVENTS, _LARGEST_EVENT = 1_000_000, 64 << 20
_EVALUATES = re.compile(r"(?i)(?<![a-z])(?:eval|val|valid|validation|test)(?![a-z])")
_TRAINS = re.compile(r"(?i)loss")
_NOT_IN_NAMES = re.compile(r"[,:\s]+")
_LATEST_S, _MOST_STEPS = 4e9, 1 << 62


class Scalar(NamedTuple):
    """A number that was logged."""

    time_s: float
    step: int
    tag: str
    value: float


def is_event_file(head: bytes) -> bool:
    """Return whether a file begins as TensorBoard's event files do."""
    return _HEAD.match(head) is not None


def as_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a line for each step at which the training logs, and one for each evaluation.

    The training logs at the steps of its most frequent tag: others may count epochs.
    """
    scalars = list(read_scalars(blocks))
    counts = Counter(each.tag for each in scalars if not _EVALUATES.search(each.tag))
    if not counts:
        return
    chosen = max(counts, key=lambda tag: (counts[tag], bool(_TRAINS.search(tag)), tag))
    values: dict[int, dict[str, float]] = {}
    for each in scalars:
        if not _EVALUATES.search(each.tag):
            values.setdefault(each.step, {})[_NOT_IN_NAMES.sub("_", each.tag)] = each.value
    began_s, last = None, None
    for each in scalars:
        if _EVALUATES.search(each.tag):
            yield b"eval\n"
        if each.tag != chosen or each.step == last:
            continue
        began_s, last = began_s if began_s is not None else each.time_s, each.step
        clock = datetime.fromtimestamp(each.time_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")
        line = f"{clock} {SIGN}, step: {each.step}, total_time: {each.time_s - began_s:.6f}"
        for tag, value in values[each.step].items():
            line += f", {tag}: {value:.9g}"
        yield f"{line}\n".encode()


def read_scalars(blocks: Iterable[bytes]) -> Iterator[Scalar]:
    """Yield the numbers of an event file, in their order, up to where it is damaged."""
    rest, count = b"", 0
    for block in blocks:
        rest += block
        at = 0
        while len(rest) - at >= _AROUND and count < _MOST_EVENTS:
            (length,) = struct.unpack_from("<Q", rest, at)
            if length > _LARGEST_EVENT:
                return
            if length > len(rest) - at - _AROUND:
                break
            yield from _read_event(rest[at + 12 : at + 12 + length])
            at, count = at + _AROUND + length, count + 1
        rest = rest[at:]


def _read_event(event: bytes) -> Iterator[Scalar]:
    """Yield the numbers of one event, if its time and step are possible."""
    time_s, step = 0.0, 0
    values: list[bytes] = []
    for field, value in _fields(event):
        if isinstance(value, int):
            step = value if field == 2 else step
        elif field == 1 and len(value) == 8:
            (time_s,) = struct.unpack("<d", value)
        elif field == 5:
            values += _messages(value, 1)
    if 0 < time_s < _LATEST_S and step < _MOST_STEPS:
        for message in values:
            yield from _read_value(time_s, step, message)


def _read_value(time_s: float, step: int, message: bytes) -> Iterator[Scalar]:
    """Yield the number of a value, which stands there or in a tensor of one number."""
    tags, numbers = _messages(message, 1), _messages(message, 2)
    for tensor in _messages(message, 8):
        numbers += _messages(tensor, 5) + _messages(tensor, 4)
    if tags and numbers and len(numbers[0]) == 4:
        (number,) = struct.unpack("<f", numbers[0])
        yield Scalar(time_s, step, tags[0].decode("utf-8", "replace"), number)


def _messages(message: bytes, field: int) -> list[bytes]:
    """Return the bytes of each field of this number."""
    found: list[bytes] = []
    for number, value in _fields(message):
        if number == field and isinstance(value, bytes):
            found.append(value)
    return found


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field of a message, up to where it is damaged."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        length = {1: 8, 5: 4}.get(kind, 0)
        if kind == 2:
            length, at = _varint(message, at)
        if (not length and kind != 2) or at + length > len(message):
            return
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            break
    return value, at
