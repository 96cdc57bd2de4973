"""Reads the tables of an export as one Chrome trace per process and device."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from profkit.analysis.kernels.categories import CUDA_GRAPH
from profkit.errors import UnreadableError
from profkit.importers.nsys.events import (
    PUSH_POP_RANGES,
    NameTable,
    NvtxRange,
    Structs,
    call_events,
    process_of,
    range_events,
    read_payload,
    work_details,
    work_events,
)
from profkit.importers.reading import sqlite
from profkit.importers.reading.chrome import ChromeTrace
from profkit.importers.reading.numbers import MISSING, Ints
from profkit.text import safe_text

_KERNEL_COLUMNS = [
    "deviceId",
    "streamId",
    "start",
    "end",
    "shortName",
    "demangledName",
    "correlationId",
]
_KERNEL_OPTIONAL = [
    "globalPid",
    "registersPerThread",
    "staticSharedMemory",
    "dynamicSharedMemory",
    "gridX",
    "gridY",
    "gridZ",
    "blockX",
    "blockY",
    "blockZ",
]
_GRAPH_COLUMNS = ["deviceId", "streamId", "start", "end", "graphId", "correlationId"]
_COPY_COLUMNS = ["deviceId", "streamId", "start", "end"]
_COPY_OPTIONAL = ["correlationId", "globalPid", "bytes", "copyKind", "srcKind", "dstKind"]
_CALL_COLUMNS = ["start", "end", "globalTid", "correlationId"]
_RANGE_COLUMNS = ["start", "end", "eventType", "globalTid"]
_RANGE_OPTIONAL = ["text", "textId", "jsonText", "jsonTextId", "binaryData"]
_DEVICE_COLUMNS = ["id", "name", "totalMemory", "smCount", "computeMajor", "computeMinor"]
_DEVICE_FIELDS = ["id", "name", "totalGlobalMem", "numSms", "computeMajor", "computeMinor"]
"""The fields of a device in a Chrome trace, in the order of the columns."""
_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_NODES = "--cuda-graph-trace=node"
_COPY_KINDS = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}
_MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static")
Columns = Mapping[str, Ints]


@dataclass(frozen=True)
class Activity:
    """The device work, the calls and the ranges of all processes."""

    kernels: Columns
    graphs: Columns
    """Launches of CUDA graphs, if nsys traced each as a whole."""
    copies: Columns
    fills: Columns
    calls: Columns
    ranges: Sequence[NvtxRange]


class Export:
    """One file's tables, found by their columns."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.flags: list[str] = []
        self._shown = safe_text(str(path))
        self._tables = sqlite.tables(connection)
        self._strings: dict[int, str] = {}
        for number, text in self._rows(
            self._require("StringIds", ("id", "value")), ("id", "value")
        ):
            if isinstance(number, int) and isinstance(text, str):
                self._strings[number] = text

    def _find(self, name: str, columns: Sequence[str]) -> str:
        """Return the table of this name, or of its latest version, that has the columns."""
        for table in sorted(self._versions(name), reverse=True):
            if set(columns) <= set(self._tables[table]):
                return table
        return ""

    def _versions(self, name: str) -> list[str]:
        return [table for table in self._tables if re.fullmatch(rf"{name}(?:_V\d+)?", table)]

    def _require(self, name: str, columns: Sequence[str]) -> str:
        """Return the table that has the columns, or raise an error that says what is missing."""
        table = self._find(name, columns)
        if table:
            return table
        versions = self._versions(name)
        problem = f"it has no table {name}"
        if versions:
            missing = sorted(set(columns) - set(self._tables[versions[0]]))
            problem = f"its table {name} has no column {', '.join(missing)}"
        raise UnreadableError(
            f"{self._shown}: not an export of Nsight Systems that can be read: {problem}; "
            "export it again with `nsys export --type sqlite`"
        )

    def _rows(self, table: str, wanted: Sequence[str]) -> list[tuple[Any, ...]]:
        return sqlite.rows(self._connection, table, self._tables[table], wanted)

    def _columns(self, table: str, wanted: Sequence[str]) -> Columns:
        if not table:
            return {column: np.empty(0, dtype=np.int64) for column in wanted}
        return sqlite.whole_columns(self._connection, table, self._tables[table], wanted)

    def traces(self) -> list[ChromeTrace]:
        """Return one trace for each process and device that trains, in their order."""
        graphs = self._find("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _GRAPH_COLUMNS)
        kernels = ""
        if self._versions(_KERNELS) or not graphs:  # nsys writes no table without rows
            kernels = self._require(_KERNELS, _KERNEL_COLUMNS)
        copies = self._find("CUPTI_ACTIVITY_KIND_MEMCPY", _COPY_COLUMNS)
        fills = self._find("CUPTI_ACTIVITY_KIND_MEMSET", _COPY_COLUMNS)
        calls = self._find("CUPTI_ACTIVITY_KIND_RUNTIME", _CALL_COLUMNS)
        activity = Activity(
            self._columns(kernels, (*_KERNEL_COLUMNS, *_KERNEL_OPTIONAL)),
            self._columns(graphs, (*_GRAPH_COLUMNS, "globalPid")),
            self._columns(copies, (*_COPY_COLUMNS, *_COPY_OPTIONAL)),
            self._columns(fills, (*_COPY_COLUMNS, *_COPY_OPTIONAL)),
            self._columns(calls, (*_CALL_COLUMNS, "nameId")),
            self._ranges(),
        )
        kernels_and_graphs = (activity.kernels, activity.graphs)
        owners = find_owners(count_work(kernels_and_graphs))
        if not owners:
            raise UnreadableError(
                f"{self._shown}: it holds no kernels; profile with `nsys profile "
                f"--trace=cuda,nvtx {_NODES}`"
            )
        if launches := len(activity.graphs["start"]):
            self.flags.append(
                f"CUDA graphs whose kernels are not in the file: {launches:,}; each counts as "
                f"compute, with its communication, copies and pauses; profile with {_NODES}"
            )
        all_work = count_work((*kernels_and_graphs, activity.copies, activity.fills))
        self.flags.extend(flag_rest(owners, all_work))
        traces = []
        for rank, (device, process) in enumerate(owners):
            ranks = {"rank": str(rank), "world_size": str(len(owners))}
            header = {"distributedInfo": ranks, **self._header(device)}
            traces.append(self._trace(header, device, process, activity))
        return traces

    def _trace(
        self, header: dict[str, Any], device: int, process: int, activity: Activity
    ) -> ChromeTrace:
        """Return the activity of one process on one device; all calls if the process is unknown."""
        names = NameTable()
        extras: list[dict[str, Any]] = []
        kernels = _of_device(activity.kernels, device, process)
        graphs = _of_device(activity.graphs, device, process)
        copies = _of_device(activity.copies, device, process)
        fills = _of_device(activity.fills, device, process)
        short_names = kernels["shortName"].tolist()
        kernel_names = []
        for place, string in enumerate(kernels["demangledName"].tolist()):
            kernel_names.append(self._strings.get(string) or self._text(short_names[place]))
        graph_names = [f"{CUDA_GRAPH} {number}" for number in graphs["graphId"].tolist()]
        copy_names = _name_copies(copies)
        calls, ranges = activity.calls, activity.ranges
        if process != MISSING:
            own = process_of(process)
            calls = _choose(calls, process_of(calls["globalTid"]) == own)
            ranges = [each for each in ranges if process_of(each.thread) == own]
        events: list[Structs] = [
            work_events(kernels, names, "kernel", kernel_names),
            work_events(graphs, names, "kernel", graph_names),
            work_events(copies, names, "gpu_memcpy", copy_names),
            work_events(fills, names, "gpu_memset", ["Memset"] * len(fills["start"])),
            call_events(calls, names, list(map(self._text, calls["nameId"].tolist()))),
            range_events(ranges, names, extras),
        ]
        details = np.concatenate(list(map(work_details, (kernels, graphs, copies, fills))))
        details["event"] = np.arange(len(details))
        return ChromeTrace(
            header, np.concatenate(events), details, tuple(names.ids), tuple(extras), 0, 0, 0, ""
        )

    def _text(self, string: int) -> str:
        return self._strings.get(string, "(name lost)")

    def _ranges(self) -> list[NvtxRange]:
        """Return the NVTX ranges that ended, by start."""
        table = self._find("NVTX_EVENTS", _RANGE_COLUMNS)
        if not table:
            return []
        found = []
        for row in self._rows(table, (*_RANGE_COLUMNS, *_RANGE_OPTIONAL)):
            start, end, kind, thread, text, text_id, payload, payload_id, blob = row
            if not isinstance(text, str):
                text = self._strings.get(text_id, "")
            are_numbers = isinstance(start, int) and isinstance(end, int)
            if kind not in PUSH_POP_RANGES or not text:
                continue
            if not are_numbers or not isinstance(thread, int):
                continue
            if not isinstance(payload, str):
                payload = self._strings.get(payload_id, "")
            found.append(NvtxRange(start, end, thread, text, read_payload(text, payload, blob)))
        return sorted(found, key=lambda each: (each.start, each.end))

    def _header(self, device: int) -> dict[str, Any]:
        """Return the time of day at which times begin, and the device; else the first device."""
        header: dict[str, Any] = {"deviceProperties": [], "baseTimeNanoseconds": "0"}
        table = self._find("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))
        if table:
            rows = self._rows(table, ("utcEpochNs",))
            if rows and isinstance(rows[0][0], int):
                header["baseTimeNanoseconds"] = str(rows[0][0])
        table = self._find("TARGET_INFO_GPU", ("id", "name"))
        if table:
            given = self._rows(table, _DEVICE_COLUMNS)
            for row in [row for row in given if row[0] == device] or given[:1]:
                header["deviceProperties"].append(dict(zip(_DEVICE_FIELDS, row, strict=True)))
        return header


def _choose(table: Columns, chosen: Any) -> Columns:
    return {name: values[chosen] for name, values in table.items()}


def _name_copies(copies: Columns) -> list[str]:
    """Return the names that torch.profiler gives to copies, as far as the export knows."""
    names = []
    columns = (copies[name].tolist() for name in ("copyKind", "srcKind", "dstKind"))
    for kind, source, target in zip(*columns, strict=True):
        name = _COPY_KINDS.get(kind, f"Memcpy of kind {kind}")
        if all(0 <= memory < len(_MEMORY_KINDS) for memory in (source, target)):
            name += f" ({_MEMORY_KINDS[source]} -> {_MEMORY_KINDS[target]})"
        names.append(name)
    return names


def _of_device(table: Columns, device: int, process: int) -> Columns:
    return _choose(table, (table["deviceId"] == device) & (table["globalPid"] == process))


# Decides which processes and devices of an export are ranks.
#
# A process trains on one device, or on several of which it is the only user. But what it does
# before it chooses its device runs on the first one: a few kernels there make no further rank.
MIN_SHARE: Final = 0.01
"""A process trains on a device if it has this share of the kernels that its busiest one has."""

MIN_SHARE_OF_ANOTHER: Final = 0.5
"""The same, if the device is the busiest one of another process."""

MOST_NAMED: Final = 3

Owner = tuple[int, int]
"""A device and a global process id, which is `MISSING` in exports without processes."""


def count_work(tables: Sequence[Mapping[str, Ints]]) -> Counter[Owner]:
    """Return the rows of each process on each device."""
    counts: Counter[Owner] = Counter()
    for table in tables:
        pairs = zip(table["deviceId"].tolist(), table["globalPid"].tolist(), strict=True)
        counts.update(pairs)
    return counts


def find_owners(counts: Counter[Owner]) -> list[Owner]:
    """Return the owner of each rank, from the number of kernels of each process and device."""
    busiest: dict[int, int] = {}
    for (device, process), _ in counts.most_common():
        busiest.setdefault(process, device)
    users = Counter(busiest.values())
    owners = []
    for (device, process), count in sorted(counts.items()):
        own = busiest[process]
        least = MIN_SHARE_OF_ANOTHER if users[device] else MIN_SHARE
        is_busy = count > least * counts[own, process]
        if process == MISSING or device == own or is_busy:
            owners.append((device, process))
    return owners


def flag_rest(owners: Sequence[Owner], counts: Counter[Owner]) -> Iterator[str]:
    """Yield what ran on devices that are not those of its rank, from the counts of all work."""
    ranks: dict[int, int] = {}
    for rank, (_, process) in enumerate(owners):
        ranks.setdefault(process, rank)
    rest = []
    for (device, process), count in counts.items():
        if process in ranks and (device, process) not in owners:
            rest.append((ranks[process], device, count))
    if not rest:
        return
    named = [f"{count:,} of rank {rank} on cuda:{device}" for rank, device, count in sorted(rest)]
    more = ", ..." if len(named) > MOST_NAMED else ""
    yield (
        "kernels and copies that a process ran on another device than its own device are in no "
        f"figure: {', '.join(named[:MOST_NAMED])}{more}; let it choose its device before its "
        "first tensor"
    )
