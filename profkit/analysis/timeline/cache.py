"""Keeps the lanes of large tables on disk, so that a run that was looked at once opens faster the next time.

A cache can only be late or absent, never wrong: an entry counts while the files that it was made
from have the size and the time that it states, and its checksum is right. Whatever goes wrong here
costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from profkit.analysis.timeline.lanes import Group, Lane
from profkit.analysis.timeline.levels import Blocks, Codes, Level, Pieces
from profkit.text import safe_text

VERSION = 2
WORTH_KEEPING = 200_000
"""Pieces below which reading the run again is as fast."""

MOST_BYTES = 2_000_000_000
"""What all entries may take; the ones that were not used for longest go first."""

_SUFFIX = ".lanes"
_ALIGNED = 64
_START = struct.Struct("<QQ")
"""Where the header begins, and its checksum."""

_DAMAGE = (
    OSError,
    ValueError,
    struct.error,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)


@dataclass(frozen=True)
class LaneCache:
    """A folder of entries, one for each rank and group; none is kept where `folder` is `None` or cannot be written."""

    folder: Path | None

    def load(self, group: Group, sources: Sequence[Path]) -> list[Lane] | None:
        """The lanes that were made from these files as they are now."""
        if self.folder is None:
            return None
        path = self._path(group, sources)
        try:
            lanes = _read(path, _state(sources))
            os.utime(path)
        except _DAMAGE:
            return None
        return lanes

    def save(self, group: Group, sources: Sequence[Path], lanes: Sequence[Lane]) -> bool:
        """Whether there is an entry now: few pieces are not worth one, and not every folder can be written."""
        if self.folder is None or not _worth_keeping(lanes):
            return False
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.replace(_write(self.folder, _state(sources), lanes), self._path(group, sources))
            _trim(self.folder)
        except OSError:
            return False
        return True

    def mapped(self, lanes: Sequence[Lane]) -> Sequence[Lane]:
        """The same over a file without a name, which goes when they do; as they are where that is not worth it, or cannot be."""
        if self.folder is None or not _worth_keeping(lanes):
            return lanes
        try:
            path = Path(_write(self.folder, [], lanes))
            try:
                return _read(path, [])
            finally:
                path.unlink()
        except _DAMAGE:
            return lanes

    def _path(self, group: Group, sources: Sequence[Path]) -> Path:
        names = "\0".join([group.value, *map(os.path.realpath, sources)])
        return (self.folder or Path()) / (
            hashlib.sha256(os.fsencode(names)).hexdigest()[:32] + _SUFFIX
        )


def _state(sources: Sequence[Path]) -> list[list[int]]:
    found = [source.stat() for source in sources]
    return [[each.st_size, each.st_mtime_ns] for each in found]


def _worth_keeping(lanes: Sequence[Lane]) -> bool:
    return sum(len(lane.level.pieces) for lane in lanes) >= WORTH_KEEPING


def _write(folder: Path, state: list[list[int]], lanes: Sequence[Lane]) -> str:
    """The columns one after the other, then the header, in a file of a name of its own: what is half written never has an entry's."""
    columns = [
        np.ascontiguousarray(column).ravel()
        for lane in lanes
        for column in (*lane.level.pieces.columns, *lane.level.blocks)
    ]
    crc = 0
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(b"\0" * _ALIGNED)
            for column in columns:
                crc = _append(file, column, crc)
            at = file.tell()
            header = {
                "version": VERSION,
                "state": state,
                "crc32": crc,
                "columns": [[column.dtype.str, len(column)] for column in columns],
                "lanes": [
                    [lane.group.value, lane.label, list(lane.level.kinds), lane.only_stream]
                    for lane in lanes
                ],
            }
            text = json.dumps(header).encode()
            file.write(text)
            file.seek(0)
            file.write(_START.pack(at, zlib.crc32(text)))
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def _append(file: Any, column: Codes, crc: int) -> int:
    data = column.tobytes() + b"\0" * (-column.nbytes % _ALIGNED)
    file.write(data)
    return zlib.crc32(data, crc)


def _read(path: Path, state: list[list[int]]) -> list[Lane]:
    """The entry's lanes over the mapped file, which the system may drop from memory again at any time."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    whole = np.frombuffer(mapped, np.uint8)
    at, crc = _START.unpack(whole[: _START.size].tobytes())
    text = whole[at:].tobytes()
    header: Mapping[str, Any] = json.loads(text) if zlib.crc32(text) == crc else {}
    if (
        header["version"] != VERSION
        or header["state"] != state
        or zlib.crc32(whole[_ALIGNED:at].data) != header["crc32"]
    ):
        raise ValueError("not an entry of these files as they are")
    mapped.madvise(
        mmap.MADV_DONTNEED
    )  # to be checked it was read from end to end; little of it is looked at
    columns = _columns(whole, header["columns"])
    width = len(Pieces.__dataclass_fields__) + len(Blocks._fields)
    parts = [columns[first : first + width] for first in range(0, len(columns), width)]
    return [
        Lane(
            Group(group),
            safe_text(label),
            _level(part, tuple(map(safe_text, kinds))),
            safe_text(only_stream),
        )
        for (group, label, kinds, only_stream), part in zip(header["lanes"], parts, strict=True)
    ]


def _level(columns: Sequence[Codes], kinds: tuple[str, ...]) -> Level:
    *pieces, starts, covered = columns
    shape = Level(Pieces(*pieces), kinds).blocks_shape
    return Level(Pieces(*pieces), kinds, Blocks(starts, covered.reshape(shape)))


def _columns(whole: Codes, shapes: Sequence[tuple[str, int]]) -> list[Codes]:
    columns, at = [], _ALIGNED
    for kind, count in shapes:
        size = np.dtype(kind).itemsize * count
        columns.append(whole[at : at + size].view(kind))
        at += size + -size % _ALIGNED
    return columns


def _trim(folder: Path) -> None:
    """Keep the newest, and no more than there is room for; what an interrupted process left grows old with the rest."""
    entries = sorted(
        ((path.stat().st_mtime_ns, path.stat().st_size, path) for path in folder.iterdir()),
        reverse=True,
    )
    kept = 0
    for _, size, path in entries:
        kept += size
        if kept > MOST_BYTES:
            path.unlink(missing_ok=True)
