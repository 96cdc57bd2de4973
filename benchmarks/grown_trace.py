"""Repeats a real trace at later times, until its file has a size."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

_SHIFTED = re.compile(r'("(ts|correlation|External id|external id|id)": ?)(\d+)')
_EVENT = re.compile(rb'"ph": ?"X"')


def make_trace(source: Path, target: Path, size: int) -> int:
    """Repeat the events of `source` to `size` bytes; return the number of duration events."""
    text = (
        gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    ).decode()
    begin = text.index("[", text.index('"traceEvents"')) + 1
    end = text.rindex("]")
    head, body, tail = text[:begin], text[begin:end].rstrip(), text[end:]
    times = [int(found[3]) for found in _SHIFTED.finditer(body) if found[2] == "ts"]
    later = max(times) - min(times) + 20_000_000
    repeats = -(-size // len(body))
    with open(target, "w") as file:
        file.write(head)
        file.writelines(
            ("," if turn else "") + _shift(body, turn, later) for turn in range(repeats)
        )
        file.write(tail)
    return repeats * len(_EVENT.findall(body.encode()))


def _shift(body: str, turn: int, later: int) -> str:
    return _SHIFTED.sub(
        lambda found: (
            f"{found[1]}{int(found[3]) + turn * (later if found[2] == 'ts' else 10_000_000)}"
        ),
        body,
    )
