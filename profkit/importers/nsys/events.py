"""Turns columns of an export into the events of a Chrome trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from profkit.importers.reading.chrome import EVENT, WORK
from profkit.importers.reading.numbers import MISSING, MISSING_SMALL, Ints

Structs = npt.NDArray[np.void]
Number = TypeVar("Number", int, Ints)

_PROCESS_SHIFT, _PROCESS_MASK = 24, 0xFFFFFF
"""A global thread id has the process in the bits above these 24, and the thread in them."""
_LONGEST_NS = 2**62
_SMALLEST_TOO_LARGE = 2**31


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
    return np.where(np.abs(values) < _SMALLEST_TOO_LARGE, values, MISSING_SMALL)


def call_events(table: Mapping[str, Ints], names: NameTable, texts: Sequence[str]) -> Structs:
    """Return calls of the CUDA runtime as events."""
    events = make_events(table["start"], table["end"], names.number("cuda_runtime"))
    events["correlation"] = table["correlationId"]
    events["name"] = names.numbers(texts)
    events["thread"] = names.numbers([thread_name(each) for each in table["globalTid"].tolist()])
    return events
