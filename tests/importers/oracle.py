"""Device time from the text of a trace, added up slowly and by nothing of profkit.

Times are whole nanoseconds, read from the decimal text. Each moment between two boundaries of any
work is looked at once: what runs in it, and if nothing does, what launched the work that ends it.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from bisect import bisect_left
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

LATENCY = 20_000
WORK = {"kernel": "compute", "gpu_memcpy": "move", "memcpy": "move"}
WORK |= {"gpu_memset": "move", "memset": "move"}
CALLS = {"cuda_runtime", "cuda_driver", "runtime", "driver"}


@dataclass(frozen=True)
class Work:
    kind: str
    begin: int
    end: int
    launched: int | None


def nanoseconds(value: Any) -> int:
    return int(Decimal(str(value)) * 1000)


def read_kineto(path: Path) -> tuple[list[Work], list[tuple[int, int]]]:
    """The work of a file's only device, and the calls in which the host may wait for it."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events = json.loads(text, parse_float=Decimal)["traceEvents"]
    launches: dict[int, int] = {}
    waits, rows = [], []
    for event in events:
        category = str(event.get("cat", "")).casefold()
        if event.get("ph") != "X" or category not in {*WORK, *CALLS}:
            continue
        begin = nanoseconds(event["ts"])
        end = begin + nanoseconds(event["dur"])
        number = event.get("args", {}).get("correlation")
        if category in CALLS:
            if number is not None and int(number) not in launches:
                launches[int(number)] = begin
            if may_wait(event["name"]):
                waits.append((begin, end))
        else:
            kind = WORK[category]
            if kind == "compute" and "nccl" in event["name"].casefold():
                kind = "exchange"
            rows.append((kind, begin, end, number))
    work = []
    for kind, begin, end, number in rows:
        work.append(Work(kind, begin, end, None if number is None else launches.get(int(number))))
    return work, waits


def read_nsys(path: Path, device: int) -> tuple[list[Work], list[tuple[int, int]]]:
    """The same of one device of an export; every process has a device of its own there."""
    base = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    names = dict(base.execute("SELECT id, value FROM StringIds"))
    tables = {"KERNEL": "demangledName", "MEMCPY": "NULL", "MEMSET": "NULL"}
    prefix = "CUPTI_ACTIVITY_KIND_"
    owners, rows = set(), []
    for table, column in tables.items():
        found = base.execute(
            f"SELECT {column}, start, end, correlationId, globalPid FROM {prefix}{table}"
            " WHERE deviceId = ?",
            (device,),
        )
        for name, begin, end, number, process in found:
            kind = "move"
            if table == "KERNEL":
                kind = "exchange" if "nccl" in names[name].casefold() else "compute"
            owners.add(process >> 24)
            rows.append((kind, begin, end, number))
    launches: dict[int, int] = {}
    waits = []
    calls = (
        f"SELECT start, end, correlationId, nameId, globalTid FROM {prefix}RUNTIME ORDER BY rowid"
    )
    for begin, end, number, name, thread in base.execute(calls):
        if thread >> 24 in owners:
            launches.setdefault(number, begin)
            if may_wait(names[name]):
                waits.append((begin, end))
    base.close()
    return [
        Work(kind, begin, end, launches.get(number)) for kind, begin, end, number in rows
    ], waits


def may_wait(name: str) -> bool:
    return "Synchronize" in name or bool(
        re.match(r"(cuda|cu|hip)(Memcpy|Free|Malloc(?!Async))", name)
    )


def device_table(
    work: list[Work], waits: list[tuple[int, int]], steps: list[tuple[int, int]]
) -> dict[str, int]:
    """Add up each moment of these steps."""
    parts = "busy compute exchange move exposed hidden alone idle late synchronised other"
    table = dict.fromkeys(["window", *parts.split()], 0)
    changes = changes_of(work, steps)
    running, inside = {"compute": 0, "exchange": 0, "move": 0}, 0
    begins = sorted(each.begin for each in work)
    since = min(begin for begin, _ in steps)
    for time, later in pairwise(sorted(changes)):
        inside += changes[time].pop("inside", 0)
        for kind, change in changes[time].items():
            running[kind] += change
        active = {kind for kind, count in running.items() if count}
        since = later if active else since
        length = (later - time) * bool(inside)
        table["window"] += length
        for kind in active:
            table[kind] += length
        if not active:
            table["idle"] += length
            ends = begins[bisect_left(begins, later) :][:1]
            table[why_idle(since, ends[0], work, waits) if ends else "other"] += length
            continue
        table["busy"] += length
        if "exchange" in active:
            table["hidden" if "compute" in active else "exposed"] += length
        if active == {"move"}:
            table["alone"] += length
    return table


def changes_of(work: list[Work], steps: list[tuple[int, int]]) -> dict[int, dict[str, int]]:
    """What begins and ends at each time; `inside` counts the steps."""
    spans = [(each.kind, each.begin, each.end) for each in work]
    spans += [("inside", *step) for step in steps]
    changes: dict[int, dict[str, int]] = {}
    for kind, begin, end in spans:
        for time, change in ((begin, 1), (end, -1)):
            at = changes.setdefault(time, {})
            at[kind] = at.get(kind, 0) + change
    return changes


def why_idle(begin: int, end: int, work: list[Work], waits: list[tuple[int, int]]) -> str:
    known = [each.launched for each in work if each.begin == end and each.launched is not None]
    if not known:
        return "other"
    launched = min(known)
    if launched < begin and end - launched >= LATENCY:
        return "other"
    for since, until in waits:
        if since <= begin <= until:
            return "synchronised"
    return "late"
