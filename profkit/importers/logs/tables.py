"""Turns tables (CSV), events of TensorBoard and states in JSON into lines of text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from profkit.importers.logs.text import Damage, split_lines
from profkit.importers.reading.tensorboard import as_lines as event_lines
from profkit.importers.reading.tensorboard import is_event_file

_HEAD = re.compile(
    rb"\A(?:\xef\xbb\xbf)?(?=[^\n]{0,4000}\b(?:epoch|step)\b)"
    rb"[\w/ ().|-]{1,99},[\w/ (),.|-]{1,4000}\r?\n"
)
_STATE = re.compile(rb"\A\s{0,99}\{.{0,9999}\"log_history\":\s", re.DOTALL)
_ENTRY = re.compile(rb"\{[^{}]{1,20000}\}")
_MOST_BLOCKS = 1_000
_ULTRALYTICS = re.compile(r"epoch, *time, *train/")
A_ROW_IS_AN_EPOCH = "a row is an epoch"


def as_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a file's bytes, and instead of a table a line for each row, with its names."""
    whole = iter(blocks)
    first = next(whole, b"")
    blocks = itertools.chain([first], whole)
    if is_event_file(first):
        yield from event_lines(blocks)
        return
    if _STATE.search(first):
        yield from _entries(b"".join(itertools.islice(blocks, _MOST_BLOCKS)))
        return
    if not _HEAD.match(first):
        yield from blocks
        return
    names: list[str] = []
    for raw, _ in split_lines(blocks, Damage()):
        line = raw.decode("utf-8", "replace").strip("\ufeff\r ")
        cells = list(map(str.strip, line.split(",")))
        if names:
            pairs = filter(all, zip(names, cells, strict=False))
            line = ", ".join(map(": ".join, pairs))
        else:
            names = cells
            if _ULTRALYTICS.match(line):  # its time is that since the start
                names[:2] = [f"{A_ROW_IS_AN_EPOCH}, step", "total_time"]
        yield f"{line}\n".encode()


def _entries(text: bytes) -> Iterator[bytes]:
    """Yield each entry of a Hugging Face Trainer's state as a line."""
    for entry in _ENTRY.findall(text[text.index(b'"log_history"') :]):
        yield b" ".join(entry.split()) + b"\n"
