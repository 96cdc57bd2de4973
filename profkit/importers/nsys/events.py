"""Turns device work, calls and NVTX ranges of an export into events of a Chrome trace."""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from profkit.importers.kineto.collectives import COMMUNICATOR, MESSAGE_BYTES, ONE_PART
from profkit.importers.reading.chrome import EVENT, WORK
from profkit.importers.reading.numbers import MISSING, MISSING_SMALL, Ints

Structs = npt.NDArray[np.void]
Number = TypeVar("Number", int, Ints)

_PROCESS_SHIFT, _PROCESS_MASK = 24, 0xFFFFFF
"""A global thread id has the process in the bits above these 24, and the thread in them."""
_LONGEST_NS = 2**62
_SMALLEST_TOO_LARGE = 2**31
PUSH_POP_RANGES = (59, 60)
"""The event types of ranges that have an end."""
_OPERATOR = re.compile(
    r",(?: seq = \d+,?)?(?: op_id = \d+)?(?:, sizes = .*)?$|, (?:seq|op_id) = \d+.*$", re.DOTALL
)
_STEP = re.compile(r"(?:train[_ ]?)?(?:iter(?:ation)?|step)[ _#:=-]*(\d{1,9})$", re.IGNORECASE)
_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_SEND, _RECEIVE = "ncclSend", "ncclRecv"
_OF_ONE_PART = frozenset(
    {"ncclAllGather", "ncclReduceScatter", "ncclAlltoAll", "ncclAllToAll"}
    | {"ncclGather", "ncclScatter"}
)
"""Calls that state the size of one rank's part, and not that of all parts together."""
_SHORT_PAYLOADS = frozenset({"ncclAllGather", "ncclAlltoAll", "ncclAllToAll"})
"""Their payload is 16 bytes long; that of other calls has a third field and 24 bytes."""
_MAX_SIZE_DIGITS = 18


class NameTable:
    """Numbers texts, as a Chrome trace has them."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids))

    def numbers(self, texts: Sequence[str]) -> list[int]:
        return list(map(self.number, texts))


def process_of(thread: Number) -> Number:
    """Return the process of a global process or thread id."""
    return (thread >> _PROCESS_SHIFT) & _PROCESS_MASK


def thread_name(thread: int) -> str:
    return str(thread & _PROCESS_MASK)


def make_events(start: Ints, end: Ints, category: int) -> Structs:
    """Return complete events of a category, without names and threads."""
    events = np.zeros(len(start), EVENT)
    known = (start != MISSING) & (end != MISSING)
    fits = np.abs(end.astype(np.float64) - start) < float(_LONGEST_NS)
    events["start"] = start
    duration = np.where(known, _LONGEST_NS, MISSING)
    events["duration"] = np.where(known & fits, end - start, duration)
    events["correlation"] = events["external"] = MISSING
    events["category"], events["extra"], events["kind"] = category, -1, ord("X")
    return events


def work_events(
    table: Mapping[str, Ints], names: NameTable, category: str, texts: Sequence[str]
) -> Structs:
    """Return device work as events."""
    events = make_events(table["start"], table["end"], names.number(category))
    events["correlation"] = table["correlationId"]
    events["name"] = names.numbers(texts)
    return events


def work_details(table: Mapping[str, Ints]) -> Structs:
    """Return the device columns of work; those of kernels only if the table has them."""
    details = np.zeros(len(table["start"]), WORK)
    details["device"], details["stream"] = _small(table["deviceId"]), table["streamId"]
    details["bytes"] = table.get("bytes", MISSING)
    if "gridX" not in table:
        details["registers"] = details["shared"] = MISSING_SMALL
        details["grid"][:, 0] = details["block"][:, 0] = MISSING_SMALL
        return details
    static, dynamic = table["staticSharedMemory"], table["dynamicSharedMemory"]
    shared = np.where(static >= 0, static + np.maximum(dynamic, 0), MISSING)
    details["registers"], details["shared"] = _small(table["registersPerThread"]), _small(shared)
    for place, axis in enumerate("XYZ"):
        details["grid"][:, place] = _small(table[f"grid{axis}"])
        details["block"][:, place] = _small(table[f"block{axis}"])
    return details


def _small(values: Ints) -> Ints:
    """Return numbers of 32 bits; larger ones become missing."""
    fits = (values > -_SMALLEST_TOO_LARGE) & (values < _SMALLEST_TOO_LARGE)
    return np.where(fits, values, MISSING_SMALL)  # np.abs(MISSING) is negative


def call_events(table: Mapping[str, Ints], names: NameTable, texts: Sequence[str]) -> Structs:
    """Return calls of the CUDA runtime as events."""
    events = make_events(table["start"], table["end"], names.number("cuda_runtime"))
    events["correlation"] = table["correlationId"]
    events["name"] = names.numbers(texts)
    events["thread"] = names.numbers(list(map(thread_name, table["globalTid"].tolist())))
    return events


class NvtxRange(NamedTuple):
    """One NVTX range; `payload` is what NCCL says about its collective."""

    start: int
    end: int
    thread: int
    text: str
    payload: dict[str, Any]


def range_events(
    ranges: Sequence[NvtxRange], names: NameTable, extras: list[dict[str, Any]]
) -> Structs:
    """Return ranges as events; those that PyTorch emits for operators end in `op_id = 7`."""
    times = np.array([each[:2] for each in ranges], dtype=np.int64).reshape(-1, 2)
    events = make_events(times[:, 0], times[:, 1], names.number("user_annotation"))
    groups: dict[int, list[NvtxRange]] = {}
    for place, each in enumerate(ranges):
        text = _OPERATOR.sub("", each.text)
        if text != each.text:
            events[place]["category"] = names.number("cpu_op")
        elif step := _STEP.match(each.text):
            text = f"ProfilerStep#{step[1]}"
        events[place]["name"] = names.number(text)
        events[place]["thread"] = names.number(thread_name(each.thread))
        payload = _add_to_group(groups.setdefault(each.thread, []), each)
        if payload:
            events[place]["extra"] = len(extras)
            extras.append(payload)
    return events


def _add_to_group(group: list[NvtxRange], call: NvtxRange) -> dict[str, Any]:
    """Return a call's payload; that of a group's end, which launches, is the group's sum.

    Messages that are received are no further ones: as elsewhere, the larger side counts.
    """
    if call.text == _GROUP_START:
        group.clear()
    elif call.text == _GROUP_END and group:
        sizes: Counter[str] = Counter()
        for each in group:
            sizes[each.text] += int(each.payload[MESSAGE_BYTES])
        size = sizes.total() - min(sizes[_SEND], sizes[_RECEIVE])
        total = {**group[0].payload, MESSAGE_BYTES: str(size)}
        group.clear()
        return total
    elif call.payload:
        group.append(call)
    return call.payload


def read_payload(name: str, text: str, blob: Any) -> dict[str, Any]:
    """Return communicator and message size of an NCCL call; nothing if they are unknown.

    Newer exports have them as JSON, older ones as the payload's bytes.
    """
    if not name.startswith("nccl"):
        return {}
    if text:
        try:
            found = json.loads(text, parse_int=str, parse_float=str)
        except (ValueError, RecursionError):
            return {}
        if isinstance(found, dict):
            return _check_size(name, found)
        return {}
    size = 16 if name in _SHORT_PAYLOADS else 24
    is_group = name in {_GROUP_START, _GROUP_END}
    if is_group or not isinstance(blob, bytes) or len(blob) < size:
        return {}
    communicator, count = struct.unpack_from("<QQ", blob, len(blob) - size)
    return _check_size(name, {COMMUNICATOR: f"{communicator:x}", MESSAGE_BYTES: str(count)})


def _check_size(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return the payload if its message size is a number, else nothing."""
    size = str(found.get(MESSAGE_BYTES, ""))
    if not size.isascii() or not size.isdecimal() or len(size) > _MAX_SIZE_DIGITS:
        return {}
    made = {COMMUNICATOR: str(found.get(COMMUNICATOR, "")), MESSAGE_BYTES: size}
    if name in _OF_ONE_PART:
        made[ONE_PART] = name
    return made
