"""PyTorch's flight recorder: the last collectives of each rank, as JSON or as a pickle.

Loading a pickle can run any code. The recorder's pickles hold only dictionaries, lists, texts and
numbers. The reader here can build nothing else, so a pickle that asks for a class is refused.
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

from profkit.errors import UnreadableError, UsageError
from profkit.hangs.flight import calls_of_dump, cut_calls, is_over, settle_batches
from profkit.importers.base import Imported, Target
from profkit.importers.kineto.collectives import DTYPE_BYTES
from profkit.importers.reading.collective_rows import (
    MAX_NUMBER,
    CollectiveRow,
    CollectiveRows,
    count,
    write_rows,
)
from profkit.importers.reading.numbers import exact
from profkit.importers.reading.rank_files import rank_in_name
from profkit.text import byte_size, safe_text

LARGEST_BYTES = 256_000_000
BROKEN = "entries that could not be read"
PENDING = "collectives that had not completed when the dump was made"
UNMEASURED = "collectives without a measured duration"
NO_END = "collectives whose end time is not in the dump"
_MAX_INPUTS = 4096
_MAX_DIMENSIONS = 16
_LARGEST_DIMENSION = 2**40
_MAX_ERROR_CHARACTERS = 200
_MAX_RANK_LIST = 1_000_000

RANKS_BY_PLACE = "the names of {:,} files say no rank; they have ranks in the order of the files"

_RANK_AT_END = re.compile(r"(?<!\d)(\d{1,5})(?:\.\w+)*$")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T_-]\d\d(?:[-:.]\d\d){1,2})?")


class FlightRecorder:
    """Imports all files of a command as one run, with ranks from the files' names."""

    name = "flight_recorder"
    title = "PyTorch flight recorder, JSON or pickle"

    def recognises(self, head: bytes, path: Path) -> float:
        is_entry = b"record_id" in head and b"profiling_name" in head
        known = is_entry or b"collective_seq_id" in head or b"pg_config" in head
        if not known or b'"traceEvents"' in head or not head.lstrip().startswith((b"{", b"\x80")):
            return 0.0
        return 0.8

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        rows = CollectiveRows()
        for rank, path in _find_ranks(sources, rows).items():
            _read_dump(load(path), rank, rows)
        if not rows.by_rank and not rows.calls:
            raise UnreadableError(
                f"{safe_text(str(sources[0]))}: none of its entries is a collective "
                "of the flight recorder"
            )
        if rows.dropped[PENDING]:
            pending = f"{rows.dropped[PENDING]:,} {PENDING}"
            rows.flags.append(f"{pending}: the job may have hung there; see 'profkit why'")
        if rows.unmeasured:
            rows.flags.append(
                f"{UNMEASURED}: {rows.unmeasured:,}; their times are those at which torch's "
                "watchdog looked, so their lengths are no durations; set "
                "TORCH_NCCL_ENABLE_TIMING=1 in the job"
            )
        yield write_rows(self.name, sources, target, rows)


def _find_ranks(sources: Sequence[Path], rows: CollectiveRows) -> dict[int, Path]:
    """Return the file of each rank, by its name, else by its place among the files."""
    files: dict[int, Path] = {}
    unnamed = 0
    for place, path in enumerate(sources):
        rank, at_end = rank_in_name(path), _RANK_AT_END.search(_DATE.sub("", path.name))
        if rank is None and at_end:
            rank = int(at_end[1])
        if rank is None:
            rank, unnamed = place, unnamed + 1
        if rank in files:
            one, other = safe_text(str(files[rank])), safe_text(str(path))
            raise UsageError(
                f"{one} and {other} are both of rank {rank}; rename them so that each name ends "
                "in its rank (dump_rank_3)"
            )
        files[rank] = path
    if unnamed:
        rows.flags.append(RANKS_BY_PLACE.format(unnamed))
    return files


def _read_dump(dump: dict[str, Any], rank: int, rows: CollectiveRows) -> None:
    """Add one rank's collectives. Those whose end is not known make no rows."""
    groups = dump.get("pg_config")
    if not isinstance(groups, dict):
        groups = {}
    calls = cut_calls(calls_of_dump(dump))
    if calls:
        rows.calls[rank] = calls
    for entry, is_end in settle_batches(dump["entries"]):
        try:
            row = read_entry(entry, rank, groups)
        except (KeyError, TypeError, ValueError):
            rows.dropped[BROKEN] += 1
            continue
        if row is not None:
            rows.add(row)
            rows.unmeasured += _measured_ns(entry) is None
        elif not is_end:
            rows.dropped[NO_END if is_over(entry) else PENDING] += 1
        if str(entry.get("profiling_name")).startswith("gloo:"):
            rows.backend = "gloo"


class _PlainUnpickler(pickle._Unpickler):  # noqa: SLF001  # in Python: it asks for no memory
    """Builds dictionaries, lists, tuples, texts and numbers, and refuses everything else.

    The base class is the one in Python, because a broken pickle can make the one in C ask for any
    amount of memory.
    """

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it asks for something outside of it")

    def get_extension(self, code: int) -> NoReturn:
        raise pickle.UnpicklingError("it asks for an extension")


def load(path: Path) -> dict[str, Any]:
    """Return the dump in a file, in either of its two forms."""
    shown = safe_text(str(path))
    try:
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise UnreadableError(
                f"{shown}: {byte_size(size)} is too large for a dump "
                f"(limit {byte_size(LARGEST_BYTES)})"
            )
        content = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"{shown}: {error.strerror}") from error
    try:
        if content.lstrip().startswith(b"{"):
            found = json.loads(content)
        else:
            found = _PlainUnpickler(io.BytesIO(content)).load()
    except Exception as error:  # a damaged pickle raises whatever its opcodes stumble over
        reason = safe_text(str(error))[:_MAX_ERROR_CHARACTERS]
        raise UnreadableError(f"{shown}: not a dump that can be read: {reason}") from error
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list):
        raise UnreadableError(
            f"{shown}: not a dump of the flight recorder (it has no list of entries)"
        )
    return found


def read_entry(entry: Any, rank: int, groups: dict[str, Any]) -> CollectiveRow | None:
    """Return an entry's collective, or null if it had not ended."""
    if not isinstance(entry, dict):
        raise TypeError("an entry is no object")
    group = entry.get("process_group")
    if isinstance(group, list | tuple) and group:
        name = str(group[0])
    else:
        name = str(entry.get("pg_id", ""))
    created = count(entry.get("time_created_ns"))
    started = count(entry.get("time_discovered_started_ns")) or created
    ended = count(entry.get("time_discovered_completed_ns"))
    if not ended or not started:
        return None
    duration = _measured_ns(entry)
    if duration is not None:
        started = ended - duration
    group = groups.get(name)
    ranks = group.get("ranks") if isinstance(group, dict) else None
    if isinstance(ranks, str):
        ranks = re.findall(r"\d+", ranks[:_MAX_RANK_LIST])
    size, dtype = _read_message(entry)
    op = str(entry["profiling_name"])
    return CollectiveRow(
        rank=rank,
        communicator=name,
        sequence=count(entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id")),
        op=op.partition(":")[2] or op,
        bytes=size,
        dtype=dtype,
        group_size=len(ranks) if isinstance(ranks, list | tuple) else 0,
        ready_ns=created or None,
        start_ns=started,
        end_ns=ended,
    )


def _measured_ns(entry: dict[str, Any]) -> int | None:
    """Return the duration on the device, which only dumps of jobs with timing have."""
    duration = exact(str(entry.get("duration_ms")), 6)
    if not 0 <= duration < MAX_NUMBER:
        return None
    return duration


def _read_message(entry: dict[str, Any]) -> tuple[int, str]:
    """Return the bytes of an entry's larger side, and its type."""
    size, dtype = _read_side(entry, "input")
    out_size, out_dtype = _read_side(entry, "output")
    if out_size > size:
        return out_size, out_dtype
    return size, dtype


def _read_side(entry: dict[str, Any], side: str) -> tuple[int, str]:
    """Return the bytes and the type of an entry's inputs or outputs."""
    shapes, dtypes = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
    if not isinstance(shapes, list | tuple) or not isinstance(dtypes, list | tuple) or not dtypes:
        return 0, "unknown"
    elements = 0
    for shape in shapes[:_MAX_INPUTS]:
        if isinstance(shape, list | tuple):
            sizes = []
            for each in shape[:_MAX_DIMENSIONS]:
                sizes.append(min(count(each), _LARGEST_DIMENSION))
            elements += math.prod(sizes)
    dtype = str(dtypes[0])
    return min(elements * DTYPE_BYTES.get(dtype.casefold(), 0), MAX_NUMBER), dtype


IMPORTER = FlightRecorder()
