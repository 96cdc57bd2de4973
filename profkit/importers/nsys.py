"""Nsight Systems exports (`nsys export --type sqlite`), schemas 3.13 and later: each process and device is a rank.

The schema changes from version to version, so a table is known by its columns: what is required is
checked, everything else is optional. Environment variables, command lines and user names stand in
tables that are never read.
"""

from __future__ import annotations

import json
import re
import sqlite3
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profkit.errors import UnreadableError
from profkit.importers.base import Imported, Target
from profkit.importers.kineto.tables import COMMUNICATOR, MESSAGE_BYTES
from profkit.importers.reading import sqlite as _sqlite
from profkit.importers.reading.chrome import EVENT, MISSING, MISSING_SMALL, WORK, ChromeTrace, Ints
from profkit.importers.reading.rank_files import RankFile, Summary, write_rank
from profkit.text import safe_text

KERNEL_NEEDS = (
    "deviceId",
    "streamId",
    "start",
    "end",
    "shortName",
    "demangledName",
    "correlationId",
)
_KERNEL_MORE = (
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
)
_MOVE = ("deviceId", "streamId", "start", "end", "correlationId", "globalPid", "bytes", "copyKind")
_COPY_KINDS = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}
_OPERATOR = re.compile(
    r",(?: seq = \d+,?)?(?: op_id = \d+)?(?:, sizes = .*)?$|, (?:seq|op_id) = \d+.*$", re.DOTALL
)
_STEP = re.compile(r"(?:train[_ ]?)?(?:iter(?:ation)?|step)[ _#:=-]*(\d{1,9})$", re.IGNORECASE)
_RANGES = (59, 60)
_PID_SHIFT, _PID_MASK = 24, 0xFFFFFF


class Nsys:
    """One file is one run, with a rank for each process and device that ran kernels."""

    name = "nsys"
    title = "Nsight Systems, exported to SQLite"

    def recognises(self, head: bytes, path: Path) -> float:
        if not head.startswith(b"SQLite format 3\0"):
            return 0.0
        return 0.9 if b"CUPTI_ACTIVITY" in head or b"StringIds" in head else 0.5

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        for path in sources:
            with target.new_run(self.name, [path]) as draft:
                summary = Summary()
                with _sqlite.open_read_only(path) as connection:
                    traces = Export(connection, path).traces()
                for trace in traces:
                    write_rank(draft, RankFile(path, trace), len(traces), target, summary)
                draft.flags.extend(summary.flags)
                yield draft.finish(summary.manifest(len(traces)))


@dataclass
class Names:
    """Texts by number, as a trace has them."""

    ids: dict[str, int]

    def __call__(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids))


class Export:
    """One file's tables, by their columns."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._shown = safe_text(str(path))
        self._tables = _sqlite.tables(connection)
        strings = self._find("StringIds", ("id", "value"))
        given = _sqlite.rows(connection, strings, self._tables[strings], ("id", "value"))
        self._strings = {
            row[0]: row[1] for row in given if isinstance(row[0], int) and isinstance(row[1], str)
        }

    def _find(self, name: str, needs: Sequence[str], *, must: bool = True) -> str:
        """The table of this name, or of this name with a version behind it, that has the columns."""
        versions = [table for table in self._tables if re.fullmatch(rf"{name}(?:_V\d+)?", table)]
        for table in sorted(versions, reverse=True):
            if set(needs) <= set(self._tables[table]):
                return table
        if not must:
            return ""
        lacking = sorted(set(needs) - set(self._tables[versions[0]])) if versions else []
        what = (
            f"its table {name} lacks {', '.join(lacking)}" if lacking else f"it has no table {name}"
        )
        raise UnreadableError(
            f"{self._shown}: not an export of Nsight Systems that can be read: {what}"
        )

    def _columns(
        self, name: str, needs: Sequence[str], more: Sequence[str], *, must: bool = False
    ) -> Mapping[str, Ints]:
        table = self._find(name, needs, must=must)
        wanted = (*needs, *more)
        if not table:
            return {column: np.empty(0, dtype=np.int64) for column in wanted}
        return _sqlite.whole_columns(self._connection, table, self._tables[table], wanted)

    def traces(self) -> list[ChromeTrace]:
        """One trace for each process and device that ran kernels, by device and process."""
        kernels = self._columns("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL_NEEDS, _KERNEL_MORE, must=True)
        copies = self._columns("CUPTI_ACTIVITY_KIND_MEMCPY", _MOVE[:4], _MOVE[4:])
        fills = self._columns("CUPTI_ACTIVITY_KIND_MEMSET", _MOVE[:4], _MOVE[4:])
        calls = self._columns(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            ("start", "end", "globalTid", "correlationId"),
            ("nameId",),
        )
        owners = sorted(
            {*zip(kernels["deviceId"].tolist(), kernels["globalPid"].tolist(), strict=True)}
        )
        if not owners:
            raise UnreadableError(f"{self._shown}: no kernel is in it")
        ranges = self._ranges()
        return [
            self._trace(rank, len(owners), device, process, (kernels, copies, fills, calls), ranges)
            for rank, (device, process) in enumerate(owners)
        ]

    def _trace(
        self,
        rank: int,
        ranks: int,
        device: int,
        process: int,
        tables: Sequence[Mapping[str, Ints]],
        ranges: Sequence[tuple[Any, ...]],
    ) -> ChromeTrace:
        names, extras = Names({}), list[dict[str, Any]]()
        kernels, copies, fills, calls = tables
        mine = [
            _rows(table, (table["deviceId"] == device) & (table["globalPid"] == process))
            for table in (kernels, copies, fills)
        ]
        called = _rows(
            calls,
            _pid(calls["globalTid"]) == _pid(np.array([process]))[0]
            if process != MISSING
            else np.ones(len(calls["start"]), dtype=bool),
        )
        work = [
            self._work(table, names, category)
            for table, category in zip(mine, ("kernel", "gpu_memcpy", "gpu_memset"), strict=True)
        ]
        details = np.concatenate([detail for _, detail in work])
        details["event"] = np.arange(len(details))
        own_ranges = [
            row
            for row in ranges
            if process == MISSING
            or (row[2] >> _PID_SHIFT) & _PID_MASK == (process >> _PID_SHIFT) & _PID_MASK
        ]
        events = [
            *(events for events, _ in work),
            self._calls(called, names),
            _range_events(own_ranges, names, extras),
        ]
        header = {
            "distributedInfo": {"rank": str(rank), "world_size": str(ranks)},
            "deviceProperties": self._devices(device),
            "baseTimeNanoseconds": self._epoch(),
        }
        return ChromeTrace(
            header, np.concatenate(events), details, tuple(names.ids), tuple(extras), 0, 0, 0, ""
        )

    def _text(self, string: int) -> str:
        return self._strings.get(string, "(name lost)")

    def _work(
        self, table: Mapping[str, Ints], names: Names, category: str
    ) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
        count = len(table["start"])
        events = _events(table["start"], table["end"], names(category), count)
        events["correlation"] = table["correlationId"]
        events["name"] = self._names(table, names, category)
        details = np.zeros(count, WORK)
        details["device"], details["stream"] = _small(table["deviceId"]), table["streamId"]
        details["bytes"] = table.get("bytes", MISSING)
        details["registers"] = details["shared"] = details["grid"][:, 0] = details["block"][
            :, 0
        ] = MISSING_SMALL
        if category == "kernel":
            details["registers"] = _small(table["registersPerThread"])
            details["shared"] = _small(
                np.where(
                    table["staticSharedMemory"] >= 0,
                    table["staticSharedMemory"] + np.maximum(table["dynamicSharedMemory"], 0),
                    MISSING,
                )
            )
            for place, axis in enumerate("XYZ"):
                details["grid"][:, place], details["block"][:, place] = (
                    _small(table[f"grid{axis}"]),
                    _small(table[f"block{axis}"]),
                )
        return events, details

    def _names(self, table: Mapping[str, Ints], names: Names, category: str) -> list[int]:
        if category == "kernel":
            return [
                names(self._strings.get(full) or self._text(short))
                for full, short in zip(
                    table["demangledName"].tolist(), table["shortName"].tolist(), strict=True
                )
            ]
        if category == "gpu_memcpy":
            return [
                names(_COPY_KINDS.get(kind, f"Memcpy of kind {kind}"))
                for kind in table["copyKind"].tolist()
            ]
        return [names("Memset")] * len(table["start"])

    def _calls(self, table: Mapping[str, Ints], names: Names) -> npt.NDArray[np.void]:
        events = _events(table["start"], table["end"], names("cuda_runtime"), len(table["start"]))
        events["correlation"] = table["correlationId"]
        events["name"] = [names(self._text(each)) for each in table["nameId"].tolist()]
        events["thread"] = [names(str(each & _PID_MASK)) for each in table["globalTid"].tolist()]
        return events

    def _ranges(self) -> list[tuple[Any, ...]]:
        """NVTX ranges that ended: start, end, thread, text, payload; by start."""
        table = self._find("NVTX_EVENTS", ("start", "end", "eventType", "globalTid"), must=False)
        if not table:
            return []
        wanted = (
            "start",
            "end",
            "globalTid",
            "eventType",
            "text",
            "textId",
            "jsonText",
            "jsonTextId",
            "binaryData",
        )
        found = []
        for start, end, thread, kind, text, string, payload, payload_string, blob in _sqlite.rows(
            self._connection, table, self._tables[table], wanted
        ):
            shown = text if isinstance(text, str) else self._strings.get(string, "")
            if (
                kind in _RANGES
                and shown
                and all(isinstance(each, int) for each in (start, end, thread))
            ):
                told = (
                    payload if isinstance(payload, str) else self._strings.get(payload_string, "")
                )
                found.append((start, end, thread, shown, read_payload(shown, told, blob)))
        return sorted(found, key=lambda row: row[:2])

    def _epoch(self) -> str:
        table = self._find("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",), must=False)
        found = (
            _sqlite.rows(self._connection, table, self._tables[table], ("utcEpochNs",))
            if table
            else []
        )
        return str(found[0][0]) if found and isinstance(found[0][0], int) else "0"

    def _devices(self, device: int) -> list[dict[str, Any]]:
        table = self._find("TARGET_INFO_GPU", ("id", "name"), must=False)
        if not table:
            return []
        wanted = ("id", "name", "totalMemory", "smCount", "computeMajor", "computeMinor")
        given = _sqlite.rows(self._connection, table, self._tables[table], wanted)
        ours = ("id", "name", "totalGlobalMem", "numSms", "computeMajor", "computeMinor")
        return [dict(zip(ours, row, strict=True)) for row in given if row[0] == device] or [
            dict(zip(ours, row, strict=True)) for row in given[:1]
        ]


def _rows(table: Mapping[str, Ints], chosen: npt.NDArray[np.bool_]) -> dict[str, Ints]:
    return {name: values[chosen] for name, values in table.items()}


def _pid(thread: Ints) -> Ints:
    return np.asarray((thread >> _PID_SHIFT) & _PID_MASK)


def _small(values: Ints) -> Ints:
    return np.where(np.abs(values) < 2**31, values, MISSING_SMALL)


def _events(start: Ints, end: Ints, category: int, count: int) -> npt.NDArray[np.void]:
    events = np.zeros(count, EVENT)
    known = (start != MISSING) & (end != MISSING)
    apart = np.abs(end.astype(np.float64) - start) < 2.0**62
    events["start"], events["duration"] = (
        start,
        np.where(known & apart, end - start, np.where(known, 2**62, MISSING)),
    )
    events["correlation"] = events["external"] = MISSING
    events["category"], events["extra"], events["kind"] = category, -1, ord("X")
    return events


def _range_events(
    ranges: Sequence[tuple[Any, ...]], names: Names, extras: list[dict[str, Any]]
) -> npt.NDArray[np.void]:
    """Ranges as annotations; those that PyTorch emits for operators (they end in `op_id = 7`) as operators."""
    times = np.array([row[:2] for row in ranges], dtype=np.int64).reshape(-1, 2)
    events = _events(times[:, 0], times[:, 1], names("user_annotation"), len(ranges))
    groups: dict[int, list[dict[str, Any]]] = {}
    for place, (_, _, thread, text, payload) in enumerate(ranges):
        bare = _OPERATOR.sub("", text)
        if bare != text:
            events[place]["category"] = names("cpu_op")
        elif step := _STEP.match(text):
            bare = f"ProfilerStep#{step[1]}"
        events[place]["name"], events[place]["thread"] = names(bare), names(str(thread & _PID_MASK))
        told = _group_payload(groups.setdefault(thread, []), text, payload)
        if told:
            events[place]["extra"] = len(extras)
            extras.append(told)
    return events


def _group_payload(
    waiting: list[dict[str, Any]], text: str, payload: dict[str, Any]
) -> dict[str, Any]:
    """A range's own payload; of a group's end, which is what launches, the sum of what the group holds."""
    if text == "ncclGroupStart":
        waiting.clear()
    elif text == "ncclGroupEnd" and waiting:
        total = {
            **waiting[0],
            MESSAGE_BYTES: str(sum(int(each[MESSAGE_BYTES]) for each in waiting)),
        }
        waiting.clear()
        return total
    elif payload:
        waiting.append(payload)
    return payload


_NAME_ONLY = frozenset({"ncclAllGather", "ncclAlltoAll", "ncclAllToAll"})


def read_payload(name: str, told: str, blob: Any) -> dict[str, Any]:
    """Communicator and message size of an NCCL call: from the JSON of newer exports, else from the payload's bytes."""
    if not name.startswith("nccl"):
        return {}
    if told:
        try:
            found = json.loads(told, parse_int=str, parse_float=str)
        except (ValueError, RecursionError):
            return {}
        return _sized(found) if isinstance(found, dict) else {}
    size = 16 if name in _NAME_ONLY else 24
    if (
        not isinstance(blob, bytes)
        or len(blob) < size
        or name in {"ncclGroupStart", "ncclGroupEnd"}
    ):
        return {}
    communicator, count = struct.unpack_from("<QQ", blob, len(blob) - size)
    return _sized({COMMUNICATOR: f"{communicator:x}", MESSAGE_BYTES: str(count)})


def _sized(found: dict[str, Any]) -> dict[str, Any]:
    size = str(found.get(MESSAGE_BYTES, ""))
    if not (size.isascii() and size.isdecimal() and len(size) < 19):
        return {}
    return {COMMUNICATOR: str(found.get(COMMUNICATOR, "")), MESSAGE_BYTES: size}


IMPORTER = Nsys()
