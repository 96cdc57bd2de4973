"""Collectives of one rank, from a dump of PyTorch's flight recorder."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from profkit.hangs.status import MOST_CALLS, Call

DTYPE_BYTES = {
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
}
"""Bytes of an element, by the names that the recorder uses."""

_TORCH_NAMES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Byte": "uint8",
    "Char": "int8",
    "Bool": "bool",
}

OP_NAMES = {"allreduce": "all_reduce", "allgather": "all_gather", "ALLREDUCE": "all_reduce"}
"""Names of the recorder that differ from the functions that a job calls."""

BATCH_END = re.compile(r":([A-Z_]+_)?coalesced$")
"""Names of the entry with which torch closes a batch: `nccl:coalesced`, `nccl:ALLGATHER_...`."""

DEFAULT_GROUP = "default_pg"
"""torch's description of the group of all ranks, in which each has its number in the job."""

MOST_ENTRIES = 4096
MOST_NAME_CHARS = 100
_MOST_TENSORS = 1024
_MOST_DIMENSIONS = 16
_LARGEST = 2**62
_LARGEST_SIZE = 2**40
MOST_MEMBERS = 20_000


def calls_of_dump(dump: Mapping[str, Any]) -> list[Call]:
    """Return the last collectives in a dump, in their order.

    Damaged entries are left out. A collective is over if the recorder has retired it: some backends
    never say when it ended.
    """
    entries = dump.get("entries")
    groups = dump.get("pg_config")
    if not isinstance(entries, Sequence):
        return []
    calls = []
    members: dict[str, tuple[int, ...]] = {}
    for entry, is_end in settle_batches(entries[-MOST_ENTRIES:]):
        if is_end:
            continue
        try:
            group = group_of(entry)
            if group not in members:
                known = groups if isinstance(groups, Mapping) else {}
                members[group] = members_of(entry, known)
            calls.append(_read(entry, members[group]))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            continue
    return end_earlier_calls(calls)


def end_earlier_calls(calls: list[Call]) -> list[Call]:
    """Return calls of which those of NCCL are over if a later one of the group is.

    NCCL keeps their order. The recorder never updates those that a graph has captured.
    """
    over = set()
    found = []
    for call in reversed(calls):
        key = call.group, call.is_message, call.peer
        if call.done:
            over.add(key)
        elif call.started is not None and key in over:
            call = dataclasses.replace(call, done=True)  # noqa: PLW2901  # the same call, over
        found.append(call)
    return found[::-1]


def cut_calls(calls: Sequence[Call]) -> tuple[Call, ...]:
    """Return the last calls and the first open one of each group, in their order.

    A host may hand over thousands of collectives to a device after the one that hangs.
    """
    first: dict[tuple[str, bool], int] = {}
    for place, call in enumerate(calls):
        if not call.done:
            first.setdefault((call.group, call.is_message), place)
    kept = set(list(first.values())[: MOST_CALLS // 2])
    for place in reversed(range(len(calls))):
        if len(kept) == MOST_CALLS:
            break
        kept.add(place)
    return tuple(calls[place] for place in sorted(kept))


def settle_batches(entries: Sequence[Any]) -> list[tuple[Any, bool]]:
    """Return entries with the state of their batch, and whether they only close one.

    torch starts the parts of a batch together, and updates only the entry that closes it. If torch
    did not record the parts of a collective, that entry is the collective.
    """
    settled: list[tuple[Any, bool]] = []
    parts: dict[Any, list[int]] = {}
    for entry in entries:
        try:
            is_point = bool(entry.get("is_p2p"))
            number = entry.get("p2p_seq_id" if is_point else "collective_seq_id")
            own = parts.setdefault((group_of(entry), is_point, number), [])
            closes = BATCH_END.search(str(entry.get("profiling_name")))
        except (AttributeError, TypeError):
            settled.append((entry, False))
            continue
        is_end = bool(closes and (own or is_point))
        if is_end:
            state = {"state": entry.get("state"), "retired": entry.get("retired")}
            for place in own:
                part, _ = settled[place]
                if not is_over(part):
                    settled[place] = {**part, **state}, False
            own.clear()
        else:
            own.append(len(settled))
        settled.append((entry, is_end))
    return settled


def is_over(entry: Mapping[str, Any]) -> bool:
    """Return true if a collective of a dump has ended on its rank."""
    return entry.get("retired") is True or entry.get("state") == "completed"


def members_of(entry: Mapping[str, Any], groups: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ranks of an entry's group; empty if the dump does not say."""
    group = groups.get(group_of(entry))
    if group is None and len(groups) == 1:  # gloo's dumps name their only group differently
        group = next(iter(groups.values()))
    ranks = group.get("ranks") if isinstance(group, Mapping) else None
    if isinstance(ranks, str):
        ranks = re.findall(r"\d{1,7}", ranks[:1_000_000])
    if isinstance(ranks, list | tuple):
        return tuple(map(int, ranks[:MOST_MEMBERS]))
    return ()


def group_of(entry: Mapping[str, Any]) -> str:
    group = entry.get("process_group")
    if isinstance(group, list | tuple) and group:
        return str(group[0])
    return str(entry.get("pg_id", ""))


def message_of(entry: Mapping[str, Any]) -> tuple[int, str]:
    """Return the bytes and the type of an entry's inputs."""
    shapes, dtypes = entry.get("input_sizes"), entry.get("input_dtypes")
    if not isinstance(shapes, list | tuple) or not isinstance(dtypes, list | tuple) or not dtypes:
        return 0, ""
    elements = 0
    for shape in shapes[:_MOST_TENSORS]:
        if isinstance(shape, list | tuple):
            sizes = []
            for size in shape[:_MOST_DIMENSIONS]:
                sizes.append(min(max(0, int(size)), _LARGEST_SIZE))
            elements += math.prod(sizes)
    dtype = str(dtypes[0])
    return min(elements * DTYPE_BYTES.get(dtype, 0), _LARGEST), _TORCH_NAMES.get(dtype, dtype)


def _read(entry: Any, members: tuple[int, ...]) -> Call:
    is_point = bool(entry.get("is_p2p"))
    name = str(entry["profiling_name"])
    op = name.partition(":")[2] or name
    peer = None
    if is_point:
        op, _, ends = op.partition(" ")
        peer = peer_of(ends, entry, members)
    size, dtype = message_of(entry)
    return Call(
        group_of(entry),
        int(entry["p2p_seq_id" if is_point else "collective_seq_id"]),
        OP_NAMES.get(op, op.lstrip("_"))[:MOST_NAME_CHARS],
        size,
        dtype,
        members,
        is_over(entry),
        int(entry.get("time_created_ns") or 0),
        peer,
        started=is_started(entry, name),
    )


def peer_of(ends: str, entry: Mapping[str, Any], members: tuple[int, ...]) -> int | None:
    """Return the other rank of a message, or nothing if the dump does not say which one it is.

    Behind the arrow of `0->1` and of `0<-1` is the other rank's number in the group.
    """
    found = re.search(r"(?:->|<-)(\d{1,7})$", ends)
    if found is None:
        return None
    number = int(found[1])
    if members:
        return members[number] if number < len(members) else None
    return number if DEFAULT_GROUP in (entry.get("process_group") or ()) else None


def is_started(entry: Mapping[str, Any], name: str) -> bool | None:
    """Return true if the kernel runs; only NCCL's dumps say so."""
    if not name.startswith("nccl:"):
        return None
    return entry.get("state") in {"started", "completed"}
