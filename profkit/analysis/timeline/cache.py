"""Keeps the lanes of large tables on disk, so that a run opens faster the next time.

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

VERSION = 3
WORTH_KEEPING = 200_000
"""With fewer pieces reading the run again is as fast."""

MOST_BYTES = 2_000_000_000
"""The size of all entries; beyond that those that were used longest ago are deleted."""

_SUFFIX = ".lanes"
_ALIGNED = 64
_START = struct.Struct("<QQ")
"""The place of the header, and its checksum."""

_COLUMNS_PER_LANE = len(Pieces.__dataclass_fields__) + len(Blocks._fields)

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
    """A folder with an entry for each rank and group; without a folder nothing is kept."""

    folder: Path | None

    def load(self, group: Group, sources: Sequence[Path]) -> list[Lane] | None:
        """Return the lanes that were made from these files as they are now."""
        if self.folder is None:
            return None
        path = _entry(self.folder, group, sources)
        try:
            lanes = _read(path, _state(sources))
            os.utime(path)
        except _DAMAGE:
            return None
        return lanes

    def save(self, group: Group, sources: Sequence[Path], lanes: Sequence[Lane]) -> bool:
        """Write an entry if the lanes are worth one; return True if there is one now."""
        if self.folder is None or not _worth_keeping(lanes):
            return False
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            written = _write(self.folder, _state(sources), lanes)
            os.replace(written, _entry(self.folder, group, sources))
            _trim(self.folder)
        except OSError:
            return False
        return True

    def mapped(self, lanes: Sequence[Lane]) -> Sequence[Lane]:
        """Return the lanes over a nameless file, which is gone when they are.

        They are returned unchanged if that is not worth it, or if the file cannot be written.
        """
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


def _entry(folder: Path, group: Group, sources: Sequence[Path]) -> Path:
    names = "\0".join([group.value, *(str(source.resolve()) for source in sources)])
    return folder / (hashlib.sha256(os.fsencode(names)).hexdigest()[:32] + _SUFFIX)


def _state(sources: Sequence[Path]) -> list[list[int]]:
    found = []
    for source in sources:
        stat = source.stat()
        found.append([stat.st_size, stat.st_mtime_ns])
    return found


def _worth_keeping(lanes: Sequence[Lane]) -> bool:
    return sum(len(lane.level.pieces) for lane in lanes) >= WORTH_KEEPING


def _write(folder: Path, state: list[list[int]], lanes: Sequence[Lane]) -> str:
    """Write the columns one after the other, then the header, and return the file's name.

    The file has a temporary name, so that a half-written file is never an entry.
    """
    columns: list[Codes] = []
    heads: list[list[Any]] = []
    for lane in lanes:
        for column in (*lane.level.pieces.columns, *lane.level.blocks):
            columns.append(np.ascontiguousarray(column).ravel())
        heads.append([lane.group.value, lane.label, list(lane.level.kinds), lane.only_stream])
    shapes: list[list[Any]] = []
    crc = 0
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(b"\0" * _ALIGNED)
            for column in columns:
                data = column.tobytes() + b"\0" * (-column.nbytes % _ALIGNED)
                file.write(data)
                shapes.append([column.dtype.str, len(column)])
                crc = zlib.crc32(data, crc)
            at = file.tell()
            header = {
                "version": VERSION,
                "state": state,
                "crc32": crc,
                "columns": shapes,
                "lanes": heads,
            }
            text = json.dumps(header).encode()
            file.write(text)
            file.seek(0)
            file.write(_START.pack(at, zlib.crc32(text)))
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def _read(path: Path, state: list[list[int]]) -> list[Lane]:
    """Return an entry's lanes over the mapped file, whose memory the system may reclaim."""
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
    # The checksum read the file from end to end, but little of it is shown.
    mapped.madvise(mmap.MADV_DONTNEED)
    columns, at = [], _ALIGNED
    for kind, count in header["columns"]:
        size = np.dtype(kind).itemsize * count
        columns.append(whole[at : at + size].view(kind))
        at += size + -size % _ALIGNED
    if len(columns) != len(header["lanes"]) * _COLUMNS_PER_LANE:
        raise ValueError("columns and lanes do not match")
    lanes = []
    for place, (group, label, kinds, only_stream) in enumerate(header["lanes"]):
        first = place * _COLUMNS_PER_LANE
        *pieces, starts, covered = columns[first : first + _COLUMNS_PER_LANE]
        level = Level(Pieces(*pieces), tuple(map(safe_text, kinds)))
        blocks = Blocks(starts, covered.reshape(level.blocks_shape))
        level = Level(level.pieces, level.kinds, blocks)
        lanes.append(Lane(Group(group), safe_text(label), level, safe_text(only_stream)))
    return lanes


def _trim(folder: Path) -> None:
    """Delete the oldest files until the rest has room, with those of interrupted processes."""
    entries = []
    for path in folder.iterdir():
        stat = path.stat()
        entries.append((stat.st_mtime_ns, stat.st_size, path))
    kept = 0
    for _, size, path in sorted(entries, reverse=True):
        kept += size
        if kept > MOST_BYTES:
            path.unlink(missing_ok=True)
