"""NCCL Inspector's JSON lines: one file a process, one line a collective, with NCCL's own timing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from profkit.errors import UnreadableError
from profkit.importers.base import Imported, Target
from profkit.importers.reading.blocks import TornError, read_blocks
from profkit.importers.reading.collective_rows import MOST_RANKS, Row, Rows, count, write_rows
from profkit.importers.reading.scan_python import MISSING, exact
from profkit.text import safe_text

LONGEST_LINE = 1 << 20
BROKEN = "lines that could not be read"
SMALL_MISSING = "Inspector leaves out messages under 8,192 bytes, and what was timed on the host, unless it was told not to"
ENDS_BY_DUMP = "no line tells when its collective ran; they stand one after the other before the time of their dump"

_OPS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "broadcast": "broadcast", "reduce": "reduce",
    "alltoall": "all_to_all", "send": "send", "recv": "recv",
}  # fmt: skip


class Inspector:
    """All files of a command are one run: each line names its rank."""

    name = "nccl_inspector"
    title = "NCCL Inspector, JSON lines"

    def recognises(self, head: bytes, path: Path) -> float:
        first = head.partition(b"\n")[0]
        return 0.95 if b'"coll_perf"' in first or b'"p2p_perf"' in first else 0.0

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        rows = Rows(flags=[SMALL_MISSING])
        timeless: list[tuple[int, Row]] = []
        for path in sources:
            _read_file(path, rows, timeless)
        _stack_before_dumps(rows, timeless)
        if not rows.by_rank:
            raise UnreadableError(
                f"{safe_text(str(sources[0]))}: no collective of NCCL Inspector can be read in it"
            )
        yield write_rows(self.name, sources, target, rows, "nccl")


def _read_file(path: Path, rows: Rows, timeless: list[tuple[int, Row]]) -> None:
    try:
        for line in _lines(path):
            _read_line(line, rows, timeless)
    except TornError as error:
        rows.flags.append(str(error))


def _lines(path: Path) -> Iterator[bytes]:
    """The file's lines; one that is longer than any Inspector writes is handed out cut, and does not parse."""
    rest = b""
    for block in read_blocks(path):
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
        rest = rest[:LONGEST_LINE]
    if rest:
        yield rest


def _read_line(line: bytes, rows: Rows, timeless: list[tuple[int, Row]]) -> None:
    if not line.strip():
        return
    try:
        found = json.loads(line, parse_float=str)
        perf, header, metadata = (
            _part(found, *names)
            for names in (("coll_perf", "p2p_perf"), ("header",), ("metadata",))
        )
        row, dumped_ns = _row(perf, header, metadata)
    except (ValueError, RecursionError, KeyError, TypeError):
        rows.dropped[BROKEN] += 1
        return
    rows.hosts.setdefault(row.rank, str(metadata.get("hostname", "")))
    if row.end_ns:
        rows.add(row)
    else:
        timeless.append((dumped_ns, row))


def _part(line: Any, *names: str) -> dict[str, Any]:
    found = next((line[name] for name in names if name in line), None)
    if not isinstance(found, dict):
        raise TypeError(names[0])
    return found


def _row(perf: dict[str, Any], header: dict[str, Any], metadata: dict[str, Any]) -> tuple[Row, int]:
    """The line's collective; without times of its own, `start_ns` is minus its duration and `end_ns` zero."""
    kind = "coll" if "coll" in perf else "p2p"
    duration = exact(str(perf[f"{kind}_exec_time_us"]), 3)
    rank, dumped = count(header["rank"], -1), count(metadata.get("dump_timestamp_us")) * 1000
    if duration == MISSING or duration < 0 or not 0 <= rank < MOST_RANKS:
        raise ValueError(kind)
    begun, ended = _event_times(perf.get("event_trace_ts"))
    op = str(perf[kind])
    row = Row(
        rank=rank,
        communicator=str(header.get("comm_name") or header.get("id") or ""),
        sequence=count(perf.get(f"{kind}_sn")),
        op=_OPS.get(op.casefold(), op),
        bytes=count(perf.get(f"{kind}_msg_size_bytes")),
        dtype="unknown",
        group_size=count(header.get("n_ranks")),
        ready_ns=None,
        start_ns=(ended or begun + duration) - duration if begun else -duration,
        end_ns=(ended or begun + duration) if begun else 0,
    )
    return row, dumped


def _event_times(given: Any) -> tuple[int, int]:
    """Begin and end in nanoseconds out of the verbose form, zero for what it lacks."""
    if not isinstance(given, dict):
        return 0, 0
    begun = max((count(value) for key, value in given.items() if "start" in str(key)), default=0)
    ended = max((count(value) for key, value in given.items() if "stop" in str(key)), default=0)
    return begun * 1000, ended * 1000 if ended >= begun else 0


def _stack_before_dumps(rows: Rows, timeless: list[tuple[int, Row]]) -> None:
    """Lines without times: NCCL tells how long each took and their order, and the dump came after the last."""
    ends: dict[int, int] = {}
    if timeless:
        rows.flags.append(ENDS_BY_DUMP)
    for dumped_ns, row in sorted(timeless, key=lambda each: (-each[0], -each[1].sequence)):
        end = min(ends.get(row.rank, dumped_ns), dumped_ns)
        ends[row.rank] = end + row.start_ns
        rows.add(row._replace(start_ns=ends[row.rank], end_ns=end))


IMPORTER = Inspector()
