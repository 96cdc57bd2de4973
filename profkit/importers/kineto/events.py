"""The events of one rank's Kineto or Paddle trace, with the role that each plays, in the spellings of all versions."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from profkit.importers.reading.chrome import MISSING, ChromeTrace, Ints
from profkit.importers.reading.sanity import Gate

Bools = npt.NDArray[np.bool_]


class Role(IntEnum):
    """What an event is to us."""

    UNKNOWN = 0
    KERNEL = 1
    COPY = 2
    FILL = 3
    LAUNCH = 4
    OP = 5
    ANNOTATION = 6
    STEP = 7
    SYNC = 8
    STACK = 9
    DEVICE_ANNOTATION = 10
    OWN = 11


_ROLES = {
    "kernel": Role.KERNEL,
    "gpu_memcpy": Role.COPY,
    "memcpy": Role.COPY,
    "gpu_memset": Role.FILL,
    "memset": Role.FILL,
    "cuda_runtime": Role.LAUNCH,
    "cuda_driver": Role.LAUNCH,
    "runtime": Role.LAUNCH,
    "driver": Role.LAUNCH,
    "hip_runtime": Role.LAUNCH,
    "cudaruntime": Role.LAUNCH,
    "privateuse1_runtime": Role.LAUNCH,
    "cpu_op": Role.OP,
    "operator": Role.OP,
    "operatorinner": Role.OP,
    "pythonop": Role.OP,
    "user_annotation": Role.ANNOTATION,
    "dataloader": Role.ANNOTATION,
    "forward": Role.ANNOTATION,
    "backward": Role.ANNOTATION,
    "optimization": Role.ANNOTATION,
    "communication": Role.ANNOTATION,
    "pythonuserdefined": Role.ANNOTATION,
    "userdefined": Role.OP,
    "profilestep": Role.STEP,
    "cuda_sync": Role.SYNC,
    "gpu_user_annotation": Role.DEVICE_ANNOTATION,
    "trace": Role.OWN,
    "overhead": Role.OWN,
    "python_function": Role.STACK,
}
"""By category in small letters: Kineto's two generations, then Paddle's own."""

WORK_ROLES = (Role.KERNEL, Role.COPY, Role.FILL)
PADDLE = frozenset(
    {"profilestep", "dataloader", "pythonuserdefined", "operatorinner", "optimization"}
)

STEP_NAME = re.compile(r"Profile(?:r)?Step#(\d{1,9})\b")
_PADDLE_DURATION = re.compile(r"\[[\d.]+ (?:ns|us|ms|s)\]$")


@dataclass(frozen=True)
class Events:
    """One rank's events with times that can be. A lane is a thread of a process, by number."""

    trace: ChromeTrace
    start: Ints
    end: Ints
    name: npt.NDArray[np.int32]
    role: npt.NDArray[np.int8]
    lane: Ints
    row: Ints
    """Where each stands in the trace's own events."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.trace.names

    def of(self, *roles: Role) -> Ints:
        """The places of the events of these roles."""
        chosen = np.zeros(len(Role), dtype=bool)
        chosen[list(roles)] = True
        return np.flatnonzero(chosen[self.role])

    def column(self, name: str, places: Ints) -> Ints:
        return np.asarray(self.trace.events[name][self.row[places]].astype(np.int64))

    @functools.cached_property
    def framework(self) -> str:
        """Paddle has categories of its own, PyTorch names its operators after its library; else it is not known."""
        if any(
            self.names[each].casefold() in PADDLE
            for each in np.unique(self.trace.events["category"])
        ):
            return "paddle"
        return (
            "pytorch"
            if any(
                name.startswith(("aten::", "ProfilerStep#", "PyTorch Profiler"))
                for name in self.names
            )
            else ""
        )


def sort_out(trace: ChromeTrace, gate: Gate) -> Events:
    """The complete events of a file that pass the gate, each with its role."""
    rows = np.flatnonzero(trace.events["kind"] == ord("X"))
    name = trace.events["name"][rows]
    role = _roles(trace)[trace.events["category"][rows]]
    role[_step_names(trace)[name] & np.isin(role, (Role.OP, Role.ANNOTATION))] = Role.STEP
    start, duration = trace.events["start"][rows], trace.events["duration"][rows]
    kept = gate.keep(start, duration, np.isin(role, WORK_ROLES)) & (role != Role.OWN)
    if kept.all():
        kept = slice(None)  # most files are sound, and large
    rows, start = rows[kept], start[kept]
    lane = (
        trace.events["process"][rows].astype(np.int64) * len(trace.names)
        + trace.events["thread"][rows]
    )
    return Events(trace, start, start + duration[kept], name[kept], role[kept], lane, rows)


def _roles(trace: ChromeTrace) -> npt.NDArray[np.int8]:
    """The role of each name, taken as a category."""
    roles = np.zeros(len(trace.names), dtype=np.int8)
    for category in np.unique(trace.events["category"]):
        roles[category] = _ROLES.get(trace.names[category].casefold(), Role.UNKNOWN)
    return roles


def _step_names(trace: ChromeTrace) -> Bools:
    return np.array(
        [name.startswith("Profile") and STEP_NAME.match(name) is not None for name in trace.names],
        dtype=bool,
    )


def plain_name(name: str) -> str:
    """The name without the duration that Paddle writes behind it."""
    return _PADDLE_DURATION.sub("", name) if name.endswith("]") else name


def thread_names(trace: ChromeTrace) -> dict[tuple[int, int], str]:
    """What the file calls its threads, by process and thread."""
    found: dict[tuple[int, int], str] = {}
    events = trace.events[trace.events["kind"] == ord("M")]
    for event in events[events["extra"] >= 0]:
        if trace.names[event["name"]] == "thread_name":
            found[int(event["process"]), int(event["thread"])] = str(
                trace.extras[event["extra"]].get("name", "")
            )
    return found


def whole(value: Any, default: int = 0) -> int:
    """A number of the file, which may be text; `default` for what is none."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return default


__all__ = [
    "MISSING",
    "STEP_NAME",
    "WORK_ROLES",
    "Bools",
    "Events",
    "Ints",
    "Role",
    "plain_name",
    "sort_out",
    "thread_names",
    "whole",
]
