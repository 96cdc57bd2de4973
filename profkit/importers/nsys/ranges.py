"""Turns NVTX ranges into annotations and operators, with the payloads that NCCL adds to them."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from profkit.importers.kineto.collectives import COMMUNICATOR, MESSAGE_BYTES
from profkit.importers.nsys.events import NameTable, Structs, make_events, thread_name

PUSH_POP_RANGES = (59, 60)
"""The event types of ranges that have an end."""
_OPERATOR = re.compile(
    r",(?: seq = \d+,?)?(?: op_id = \d+)?(?:, sizes = .*)?$|, (?:seq|op_id) = \d+.*$", re.DOTALL
)
_STEP = re.compile(r"(?:train[_ ]?)?(?:iter(?:ation)?|step)[ _#:=-]*(\d{1,9})$", re.IGNORECASE)
_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_SHORT_PAYLOADS = frozenset({"ncclAllGather", "ncclAlltoAll", "ncclAllToAll"})
"""Their payload is 16 bytes long; that of other calls has a third field and 24 bytes."""
_MAX_SIZE_DIGITS = 18


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
    groups: dict[int, list[dict[str, Any]]] = {}
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


def _add_to_group(group: list[dict[str, Any]], call: NvtxRange) -> dict[str, Any]:
    """Return a call's payload; that of a group's end is the sum of the group.

    The group's end is the call that launches.
    """
    if call.text == _GROUP_START:
        group.clear()
    elif call.text == _GROUP_END and group:
        size = sum(int(each[MESSAGE_BYTES]) for each in group)
        total = {**group[0], MESSAGE_BYTES: str(size)}
        group.clear()
        return total
    elif call.payload:
        group.append(call.payload)
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
        return _check_size(found) if isinstance(found, dict) else {}
    size = 16 if name in _SHORT_PAYLOADS else 24
    is_group = name in {_GROUP_START, _GROUP_END}
    if is_group or not isinstance(blob, bytes) or len(blob) < size:
        return {}
    communicator, count = struct.unpack_from("<QQ", blob, len(blob) - size)
    return _check_size({COMMUNICATOR: f"{communicator:x}", MESSAGE_BYTES: str(count)})


def _check_size(found: dict[str, Any]) -> dict[str, Any]:
    """Return the payload if its message size is a number, else nothing."""
    size = str(found.get(MESSAGE_BYTES, ""))
    if not size.isascii() or not size.isdecimal() or len(size) > _MAX_SIZE_DIGITS:
        return {}
    return {COMMUNICATOR: str(found.get(COMMUNICATOR, "")), MESSAGE_BYTES: size}
