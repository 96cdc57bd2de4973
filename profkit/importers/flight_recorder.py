"""PyTorch's flight recorder: the last collectives of each rank, as JSON or as its pickle.

A pickle can run any code when it is loaded. The recorder's needs none: it is dictionaries, lists,
texts and numbers. The reader here can build nothing else, so a pickle that asks for a class is refused.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from profkit.errors import UnreadableError
from profkit.importers.base import Imported, Target
from profkit.importers.kineto.tables import DTYPE_BYTES
from profkit.importers.reading.collective_rows import MOST_RANKS, Row, Rows, count, write_rows
from profkit.text import byte_size, safe_text

LARGEST_BYTES = 256_000_000
BROKEN = "entries that could not be read"
PENDING = "collectives that had not completed when the dump was made"

_RANK_AT_END = re.compile(r"(\d{1,5})(?:\.\w+)*$")


class FlightRecorder:
    """All files of a command are one run; ranks come from the files' names, as the recorder has it."""

    name = "flight_recorder"
    title = "PyTorch flight recorder, JSON or pickle"

    def recognises(self, head: bytes, path: Path) -> float:
        known = (
            b"collective_seq_id" in head
            or b"pg_config" in head
            or (b"record_id" in head and b"profiling_name" in head)
        )
        if not known or b'"traceEvents"' in head:
            return 0.0
        return 0.8 if head.lstrip().startswith((b"{", b"\x80")) else 0.0

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        rows = Rows()
        for place, path in enumerate(sources):
            _read_dump(load(path), _rank(path, place), rows)
        if not rows.by_rank:
            raise UnreadableError(
                f"{safe_text(str(sources[0]))}: no collective of the flight recorder that ran can be read in it"
            )
        if rows.dropped[PENDING]:
            rows.flags.append(f"{rows.dropped[PENDING]:,} {PENDING}: the job may have hung there")
        yield write_rows(self.name, sources, target, rows, "nccl")


class _PlainUnpickler(pickle._Unpickler):  # noqa: SLF001  # the one in Python: a broken pickle cannot ask it for memory
    """Builds dictionaries, lists, tuples, texts and numbers; whatever else a pickle asks for is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it asks for something outside of it")

    def get_extension(self, code: int) -> NoReturn:
        raise pickle.UnpicklingError("it asks for an extension")


def load(path: Path) -> dict[str, Any]:
    """The dump in a file, whichever of the two forms it has."""
    shown = safe_text(str(path))
    try:
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise UnreadableError(
                f"{shown}: {byte_size(size)} is too large for a dump (limit {byte_size(LARGEST_BYTES)})"
            )
        content = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"{shown}: {error.strerror}") from error
    try:
        found = (
            json.loads(content)
            if content.lstrip().startswith(b"{")
            else _PlainUnpickler(io.BytesIO(content)).load()
        )
    except Exception as error:  # a damaged pickle raises whatever its opcodes stumble over
        raise UnreadableError(
            f"{shown}: not a dump that can be read: {safe_text(str(error))[:200]}"
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list):
        raise UnreadableError(
            f"{shown}: not a dump of the flight recorder (it has no list of entries)"
        )
    return found


def _rank(path: Path, place: int) -> int:
    found = _RANK_AT_END.search(path.name)
    return int(found[1]) if found else place


def _read_dump(dump: dict[str, Any], rank: int, rows: Rows) -> None:
    groups = dump.get("pg_config")
    for entry in dump["entries"]:
        try:
            row = _row(entry, rank, groups if isinstance(groups, dict) else {})
        except (KeyError, TypeError, ValueError):
            rows.dropped[BROKEN] += 1
            continue
        if row is None:
            rows.dropped[PENDING] += 1
        else:
            rows.add(row)


def _row(entry: Any, rank: int, groups: dict[str, Any]) -> Row | None:
    """The entry's collective, nothing for one that had not ended."""
    if not isinstance(entry, dict):
        raise TypeError("an entry is no object")
    group = entry.get("process_group")
    name = (
        str(group[0]) if isinstance(group, list | tuple) and group else str(entry.get("pg_id", ""))
    )
    started, ended, created = (
        count(entry.get(key))
        for key in ("time_discovered_started_ns", "time_discovered_completed_ns", "time_created_ns")
    )
    if not ended or not (started or created):
        return None
    size, dtype = _message(entry)
    return Row(
        rank=min(rank, MOST_RANKS - 1),
        communicator=name,
        sequence=count(entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id")),
        op=str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"]),
        bytes=size,
        dtype=dtype,
        group_size=_group_size(groups.get(name)),
        ready_ns=created or None,
        start_ns=started or created,
        end_ns=ended,
    )


def _message(entry: dict[str, Any]) -> tuple[int, str]:
    """Bytes and type of the inputs."""
    shapes, dtypes = entry.get("input_sizes"), entry.get("input_dtypes")
    if not isinstance(shapes, list | tuple) or not isinstance(dtypes, list | tuple) or not dtypes:
        return 0, "unknown"
    total = sum(
        math.prod(min(count(each), 2**40) for each in shape[:16])
        for shape in shapes[:4096]
        if isinstance(shape, list | tuple)
    )
    return min(total * DTYPE_BYTES.get(str(dtypes[0]).casefold(), 0), 2**62), str(dtypes[0])


def _group_size(group: Any) -> int:
    """The number of ranks of a process group, which the dump gives as a text or a list."""
    ranks = group.get("ranks") if isinstance(group, dict) else None
    if isinstance(ranks, str):
        return len(re.findall(r"\d+", ranks[:1_000_000]))
    return len(ranks) if isinstance(ranks, list | tuple) else 0


IMPORTER = FlightRecorder()
