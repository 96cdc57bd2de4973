"""Turns a trainer's table (CSV) into lines of names and values."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from profkit.importers.logs.text import Damage, split_lines

_HEAD = re.compile(
    rb"\A(?:\xef\xbb\xbf)?(?=[^\n]{0,4000}\b(?:epoch|step)\b)"
    rb"[\w/ ().|-]{1,99},[\w/ (),.|-]{1,4000}\r?\n"
)
_ULTRALYTICS = re.compile(r"epoch, *time, *train/")
A_ROW_IS_AN_EPOCH = "a row is an epoch"


def as_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a file's bytes, and instead of a table a line for each row, with its names."""
    whole = iter(blocks)
    first = next(whole, b"")
    blocks = itertools.chain([first], whole)
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
