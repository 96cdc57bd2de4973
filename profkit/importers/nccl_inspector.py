"""NCCL Inspector's JSON lines: one file per process, one line per collective."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from profkit.errors import UnreadableError
from profkit.importers.base import Imported, Target
from profkit.importers.reading.blocks import TornError, read_lines
from profkit.importers.reading.collective_rows import (
    MAX_NUMBER,
    MAX_RANKS,
    CollectiveRow,
    CollectiveRows,
    count,
    write_rows,
)
from profkit.importers.reading.numbers import MISSING, exact
from profkit.text import safe_text

LONGEST_LINE = 1 << 20
BROKEN = "lines that could not be read"
SMALL_MISSING = (
    "by default, Inspector excludes messages under 8,192 bytes and what was timed on the host"
)
ENDS_BY_DUMP = (
    "no line says when its collective ran; they were placed one after the other before the time "
    "of their dump"
)

SEVERAL_RANKS = (
    "a process has several ranks of one communicator, so the ranks are those of each collective in "
    "its communicator, and not those of the job; import a file for each process"
)
NO_COMMON = (
    "no communicator has all {:,} processes, so their ranks of the job are not known: they have "
    "numbers in the order of the files"
)

_OPS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "broadcast": "broadcast", "reduce": "reduce", "alltoall": "all_to_all", "send": "send",
    "recv": "recv",
}  # fmt: skip


_OF_ONE_PART = frozenset({"all_gather", "reduce_scatter"})
"""Operations whose size Inspector itself multiplies by the ranks, for its bandwidths."""


class Inspector:
    """Imports all files of a command as one run, with a rank for each process."""

    name = "nccl_inspector"
    title = "NCCL Inspector, JSON lines"

    def recognises(self, head: bytes, path: Path) -> float:
        first = head.partition(b"\n")[0]
        if b'"coll_perf"' in first or b'"p2p_perf"' in first:
            return 0.95
        return 0.0

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        rows = CollectiveRows(flags=[SMALL_MISSING])
        lines: list[Line] = []
        for path in sources:
            try:
                for line in read_lines(path, LONGEST_LINE):
                    if line.strip():
                        _add_line(line, path, rows, lines)
            except TornError as error:
                rows.flags.append(str(error))
        ranks = _find_ranks(lines, rows)
        untimed: list[tuple[int, CollectiveRow]] = []
        for process, _, own, dumped_ns in lines:
            row = own._replace(rank=ranks.get(process, own.rank))
            rows.hosts.setdefault(row.rank, process.host)
            if row.end_ns:
                rows.add(row)
            else:
                untimed.append((dumped_ns, row))
        if untimed:
            rows.flags.append(ENDS_BY_DUMP)
        # Lines without times lie one after the other, the last one before its dump.
        ends: dict[int, int] = {}
        for dumped_ns, row in sorted(untimed, key=lambda each: (-each[0], -each[1].sequence)):
            end = min(ends.get(row.rank, dumped_ns), dumped_ns)
            ends[row.rank] = end + row.start_ns
            rows.add(row._replace(start_ns=ends[row.rank], end_ns=end))
        if not rows.by_rank:
            raise UnreadableError(
                f"{safe_text(str(sources[0]))}: none of its lines is a collective of NCCL "
                "Inspector; name another format with --format"
            )
        yield write_rows(self.name, sources, target, rows)


class Process(NamedTuple):
    """The writer of a line: a file is usually of one process."""

    path: Path
    host: str
    pid: str


class Line(NamedTuple):
    """A collective, with the rank of its process in the collective's communicator."""

    process: Process
    group: str
    row: CollectiveRow
    dumped_ns: int


def _add_line(line: bytes, path: Path, rows: CollectiveRows, lines: list[Line]) -> None:
    """Read a line, or count it as broken."""
    try:
        found = json.loads(line, parse_float=str)
        perf = _part_of(found, "coll_perf", "p2p_perf")
        header = _part_of(found, "header")
        metadata = _part_of(found, "metadata")
        row = _read_collective(perf, header)
    except (ValueError, RecursionError, KeyError, TypeError):
        rows.dropped[BROKEN] += 1
        return
    process = Process(path, str(metadata.get("hostname", "")), str(metadata.get("pid", "")))
    dumped_ns = count(metadata.get("dump_timestamp_us")) * 1000
    lines.append(Line(process, str(header.get("id") or row.communicator), row, dumped_ns))


def _find_ranks(lines: Sequence[Line], rows: CollectiveRows) -> dict[Process, int]:
    """Return each process' rank in the largest communicator that all processes share.

    A line has the rank in its own communicator only. Processes that share none are numbered, and if
    a process has several ranks, nothing is known, and each line keeps its own.
    """
    shown: dict[str, dict[Process, int]] = {}
    sizes: dict[str, int] = {}
    order: dict[Process, int] = {}
    for process, group, row, _ in lines:
        order.setdefault(process, len(order))
        if shown.setdefault(group, {}).setdefault(process, row.rank) != row.rank:
            rows.flags.append(SEVERAL_RANKS)
            return {}
        sizes[group] = max(row.group_size, sizes.get(group, 0))
    shared = []
    for group, ranks in shown.items():
        if len(ranks) == len(set(ranks.values())) == len(order):
            shared.append(group)
    if shared:
        return shown[max(shared, key=sizes.__getitem__)]
    if order:
        rows.flags.append(NO_COMMON.format(len(order)))
    return order


def _part_of(line: Any, *names: str) -> dict[str, Any]:
    """Return the first of these parts that a line has."""
    for name in names:
        if name in line:
            found: Any = line[name]
            if not isinstance(found, dict):
                raise TypeError(name)
            return found
    raise KeyError(names[0])


def _read_collective(perf: dict[str, Any], header: dict[str, Any]) -> CollectiveRow:
    """Return a line's collective.

    If the line has no times, `start_ns` is minus the duration and `end_ns` is zero.
    """
    kind = "coll" if "coll" in perf else "p2p"
    duration = exact(str(perf[f"{kind}_exec_time_us"]), 3)
    rank = count(header["rank"], -1)
    if duration == MISSING or duration < 0 or not 0 <= rank < MAX_RANKS:
        raise ValueError(kind)
    start, end = -duration, 0
    begun = ended = 0
    traced = perf.get("event_trace_ts")  # only the verbose form has it
    if isinstance(traced, dict):
        for key, value in traced.items():
            if "start" in key:
                begun = max(begun, 1000 * count(value))
            if "stop" in key:
                ended = max(ended, 1000 * count(value))
    if begun:
        end = begun + duration
        if ended >= begun:
            end = ended
        start = end - duration
    op = _OPS.get(str(perf[kind]).casefold(), str(perf[kind]))
    size, ranks = count(perf.get(f"{kind}_msg_size_bytes")), count(header.get("n_ranks"))
    if op in _OF_ONE_PART:
        size = min(size * ranks, MAX_NUMBER - 1)
    return CollectiveRow(
        rank=rank,
        communicator=str(header.get("comm_name") or header.get("id") or ""),
        sequence=count(perf.get(f"{kind}_sn")),
        op=op,
        bytes=size,
        dtype="unknown",
        group_size=ranks,
        ready_ns=None,
        start_ns=start,
        end_ns=end,
    )


IMPORTER = Inspector()
