"""The events of one rank's Kineto or Paddle trace, each with its role."""

from __future__ import annotations

import dataclasses
import functools
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from profkit.clock import Anchor
from profkit.importers.reading.chrome import ChromeTrace
from profkit.importers.reading.numbers import Bools, Ints
from profkit.importers.reading.sanity import TimeGate


class Role(IntEnum):
    """The kinds of events that the import tells apart."""

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
    PROFILER = 11
    """The profiler's own work."""


_CATEGORIES = {
    Role.KERNEL: "kernel",
    Role.COPY: "gpu_memcpy memcpy",
    Role.FILL: "gpu_memset memset",
    Role.LAUNCH: "cuda_runtime cuda_driver runtime driver hip_runtime cudaruntime"
    " privateuse1_runtime",
    Role.OP: "cpu_op operator operatorinner pythonop userdefined",
    Role.ANNOTATION: "user_annotation dataloader forward backward optimization communication"
    " pythonuserdefined",
    Role.STEP: "profilestep",
    Role.SYNC: "cuda_sync",
    Role.DEVICE_ANNOTATION: "gpu_user_annotation",
    Role.PROFILER: "trace overhead",
    Role.STACK: "python_function",
}
"""Categories in small letters, in the spellings of Kineto's versions and of Paddle."""
_ROLES = {word: role for role, words in _CATEGORIES.items() for word in words.split()}

WORK_ROLES = (Role.KERNEL, Role.COPY, Role.FILL)
PADDLE_CATEGORIES = frozenset(
    {"profilestep", "dataloader", "pythonuserdefined", "operatorinner", "optimization"}
)
_PYTORCH_NAMES = ("aten::", "ProfilerStep#", "PyTorch Profiler")

STEP_NAME = re.compile(r"Profile(?:r)?Step#(\d{1,9})\b")
_AUTOGRAD = re.compile(r"autograd::engine|torch::autograd::|\w+Backward\d*$")
_LATEST_MONOTONIC_NS = 10**18
"""Later times are those of the day: no clock that starts with its machine shows them."""
_LATEST_BASE_NS = 2**62
_PADDLE_DURATION = re.compile(r"\[[\d.]+ (?:ns|us|ms|s)\]$")


@dataclass(frozen=True)
class Events:
    """One rank's events with possible times. A lane is a number for a thread of a process."""

    trace: ChromeTrace
    start: Ints
    end: Ints
    name: npt.NDArray[np.int32]
    role: npt.NDArray[np.int8]
    lane: Ints
    row: Ints
    """Each event's row in the trace's own events."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.trace.names

    def of(self, *roles: Role) -> Ints:
        """Return the places of the events with these roles."""
        chosen = np.zeros(len(Role), dtype=bool)
        chosen[list(roles)] = True
        return np.flatnonzero(chosen[self.role])

    def column(self, name: str, places: Ints) -> Ints:
        """Return a column of the trace's own events at these places."""
        return np.asarray(self.trace.events[name][self.row[places]].astype(np.int64))

    @functools.cached_property
    def framework(self) -> str:
        """The framework: Paddle has its own categories, PyTorch its own names; else empty."""
        for category in np.unique(self.trace.events["category"]):
            if self.names[category].casefold() in PADDLE_CATEGORIES:
                return "paddle"
        for name in self.names:
            if name.startswith(_PYTORCH_NAMES):
                return "pytorch"
        return ""


def sort_out(trace: ChromeTrace, gate: TimeGate) -> Events:
    """Return the complete events of a file that pass the gate, each with its role."""
    trace, code = _without_durations(trace)
    category = trace.events["category"]
    roles = np.zeros(len(trace.names), dtype=np.int8)
    for each in np.unique(category):
        roles[each] = _ROLES.get(trace.names[each].casefold(), Role.UNKNOWN)
    is_frame = roles[category] == Role.STACK
    rows = np.flatnonzero((trace.events["kind"] == ord("X")) & ~is_frame)
    name, role = code[trace.events["name"][rows]], roles[category[rows]]
    is_step_name = np.zeros(len(trace.names), dtype=bool)
    for place, text in enumerate(trace.names):
        is_step_name[place] = text.startswith("Profile") and STEP_NAME.match(text) is not None
    role[is_step_name[name] & np.isin(role, (Role.OP, Role.ANNOTATION))] = Role.STEP
    start, duration = trace.events["start"][rows], trace.events["duration"][rows]
    kept = gate.keep(start, duration, np.isin(role, WORK_ROLES)) & (role != Role.PROFILER)
    if kept.all():
        kept = slice(None)  # most files are sound, and large: no copies
    rows, start = rows[kept], start[kept]
    process = trace.events["process"][rows].astype(np.int64)
    lane = process * len(trace.names) + trace.events["thread"][rows]
    return Events(trace, start, start + duration[kept], name[kept], role[kept], lane, rows)


def is_autograd(events: Events, places: Ints) -> Bools:
    """Return which of these events are operators of the autograd engine."""
    known = np.array([_AUTOGRAD.match(name) is not None for name in events.names], dtype=bool)
    return np.asarray(known[events.name[places]])


def _without_durations(trace: ChromeTrace) -> tuple[ChromeTrace, npt.NDArray[np.int32]]:
    """Return the file without the durations that Paddle adds to names, and each name's code."""
    code, names = np.arange(len(trace.names), dtype=np.int32), list(trace.names)
    first: dict[str, int] = {}
    for place, name in enumerate(names):
        if name.endswith("]"):
            names[place] = _PADDLE_DURATION.sub("", name)
            code[place] = first.setdefault(names[place], place)
    return dataclasses.replace(trace, names=tuple(names)), code


def thread_names(trace: ChromeTrace) -> dict[tuple[int, int], str]:
    """Return the file's names of its threads, by process and thread."""
    found: dict[tuple[int, int], str] = {}
    events = trace.events[trace.events["kind"] == ord("M")]
    for event in events[events["extra"] >= 0]:
        if trace.names[event["name"]] == "thread_name":
            name = trace.extras[event["extra"]].get("name", "")
            found[int(event["process"]), int(event["thread"])] = str(name)
    return found


def whole(value: Any, default: int = 0) -> int:
    """Return a whole number of the file, which may be text; `default` if it is none."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return default


def find_anchor(events: Events) -> Anchor:
    """Tie the file's clock to the time of day, by its stated base or its own times."""
    base = whole(events.trace.header.get("baseTimeNanoseconds"))
    if 0 < base < _LATEST_BASE_NS:
        return Anchor(0, base, 0)
    if len(events.start) and int(events.start.min()) > _LATEST_MONOTONIC_NS:
        return Anchor(int(events.start.min()), int(events.start.min()), 0)
    return Anchor(0, 0, 0)
