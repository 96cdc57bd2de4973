"""One rank's events as tables of the contract: device work, steps, phases, collectives."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from profkit.analysis.kernels.categories import (
    COMMUNICATION,
    MEMSET,
    categorise,
    copy_category,
    uses_tensor_cores,
)
from profkit.importers.kineto.events import (
    WORK_ROLES,
    Bools,
    Events,
    Ints,
    Role,
    thread_names,
    whole,
)
from profkit.importers.kineto.phases import Region, Steps
from profkit.importers.reading import columns
from profkit.importers.reading.chrome import MISSING, MISSING_SMALL
from profkit.importers.reading.sanity import Gate

NO_STREAM = 2**32 - 1
"""How some versions write -1."""
MOST_PARENTS = 64
"""Operators that are looked at for the one around a launch, where the file does not name it."""


@dataclass(frozen=True)
class Work:
    """Everything that ran on a device, oldest first. `place` is the row in the events, `launch` that of the call or -1."""

    place: Ints
    start: Ints
    end: Ints
    device: Ints
    stream: Ints
    detail: Ints
    launch: Ints
    op: Ints
    launch_time: Ints
    """The call's beginning; the work's own where the call is not known."""


def find_work(events: Events, gate: Gate) -> Work:
    place = events.of(*WORK_ROLES)
    place = place[np.argsort(events.start[place], kind="stable")]
    detail = _details(events, place)
    device, stream = _where(events, place, detail)
    end = gate.clip_overlaps(device * 2**32 + stream, events.start[place], events.end[place])
    launch = _launches(events, events.column("correlation", place))
    launch_time = np.where(launch >= 0, events.start[launch], events.start[place])
    return Work(
        place,
        events.start[place],
        end,
        device,
        stream,
        detail,
        launch,
        _ops(events, place, launch, launch_time),
        launch_time,
    )


def _details(events: Events, place: Ints) -> Ints:
    """Where each event's device columns stand, -1 for one that has none."""
    rows = np.full(len(events.trace.events) + 1, -1, dtype=np.int64)
    rows[events.trace.works["event"]] = np.arange(len(events.trace.works))
    return np.asarray(rows[events.row[place]])


def _where(events: Events, place: Ints, detail: Ints) -> tuple[Ints, Ints]:
    """Device and stream: from the arguments, else from the process and thread, which are named after them."""
    works = events.trace.works
    if not len(works):
        return _numbers_in(events, events.column("process", place)), _numbers_in(
            events, events.column("thread", place)
        )
    device, stream = works["device"][detail].astype(np.int64), works["stream"][detail]
    no_device, no_stream = (
        (detail < 0) | (device == MISSING_SMALL),
        (detail < 0) | (stream == MISSING),
    )
    device = np.where(no_device, _numbers_in(events, events.column("process", place)), device)
    stream = np.where(no_stream, _numbers_in(events, events.column("thread", place)), stream)
    stream = np.where(stream == NO_STREAM, -1, stream)
    return np.clip(device, -1, 2**20), np.where(np.abs(stream) < 2**40, stream, -1)


def _numbers_in(events: Events, ids: Ints) -> Ints:
    """The number in each name (`stream 7` is 7), 0 where there is none."""
    known = {
        each: int(found[0]) if (found := re.search(r"\d{1,9}", events.names[each])) else 0
        for each in np.unique(ids).tolist()
    }
    return np.array([known[each] for each in ids.tolist()], dtype=np.int64)


def _launches(events: Events, correlation: Ints) -> Ints:
    calls = events.of(Role.LAUNCH)
    return _match(events.column("correlation", calls), calls, correlation)


def _match(keys: Ints, places: Ints, wanted: Ints) -> Ints:
    """For each wanted key, the first place that has it; -1 where none does."""
    given = keys != MISSING
    keys, places = keys[given], places[given]
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    found = order[at]
    return np.where((keys[found] == wanted) & (wanted != MISSING), places[found], -1)


def _ops(events: Events, place: Ints, launch: Ints, launch_time: Ints) -> Ints:
    """The operator that launched each piece of work: the one of its external id if it was running then, else the innermost one that was."""
    ops = events.of(Role.OP)
    external = events.column("external", place)
    called = np.where(
        launch >= 0,
        events.column("external", np.maximum(launch, 0)) if len(events.start) else MISSING,
        MISSING,
    )
    found = _match(
        events.column("external", ops),
        ops,
        np.where((external == MISSING) | (external == 0), called, external),
    )
    found = np.where(_runs(events, found, launch, launch_time), found, -1)
    missing = np.flatnonzero((found < 0) & (launch >= 0))
    found[missing] = _innermost(events, ops, events.lane[launch[missing]], launch_time[missing])
    return found


def _runs(events: Events, op: Ints, launch: Ints, time: Ints) -> Bools:
    """Whether the operator ran on the call's thread at the time; without a call, whether it had begun."""
    same = (launch < 0) | (events.lane[op] == events.lane[launch])
    return np.asarray(
        (op >= 0) & same & (events.start[op] <= time) & ((launch < 0) | (events.end[op] >= time))
    )


def _innermost(events: Events, ops: Ints, lane: Ints, time: Ints) -> Ints:
    """The operator around each time on its lane that began last."""
    found = np.full(len(time), -1, dtype=np.int64)
    if not len(ops) or not len(time):
        return found
    order = ops[np.lexsort((-events.end[ops], events.start[ops], events.lane[ops]))]
    lanes, lane_of = np.unique(events.lane[order], return_inverse=True)
    moments, moment_of = np.unique(np.concatenate([events.start[order], time]), return_inverse=True)
    key = lane_of * len(moments) + moment_of[: len(order)]
    lane_place = np.minimum(np.searchsorted(lanes, lane), len(lanes) - 1)
    at = np.searchsorted(key, lane_place * len(moments) + moment_of[len(order) :], side="right") - 1
    open_ = np.flatnonzero((at >= 0) & (lanes[lane_place] == lane))
    for _ in range(MOST_PARENTS):
        candidate = order[at[open_]]
        holds = (events.end[candidate] >= time[open_]) & (events.lane[candidate] == lane[open_])
        found[open_[holds]] = candidate[holds]
        open_ = open_[~holds]
        at[open_] -= 1
        open_ = open_[at[open_] >= 0]
        if not len(open_):
            break
    return found


def describe_names(events: Events, work: Work) -> tuple[list[str], list[int], Ints]:
    """The distinct categories, each piece of work's place among them, and 1, 0 or -1 for whether it used Tensor Cores."""
    role, name = events.role[work.place], events.name[work.place]
    pairs, which = np.unique(role.astype(np.int64) * len(events.names) + name, return_inverse=True)
    told = [
        _describe(Role(int(pair) // len(events.names)), events.names[int(pair) % len(events.names)])
        for pair in pairs
    ]
    categories = list(dict.fromkeys(category for category, _ in told))
    place = np.array([categories.index(category) for category, _ in told], dtype=np.int64)
    cores = np.array([-1 if used is None else int(used) for _, used in told], dtype=np.int64)
    return categories, place[which].tolist() if told else [], cores[which] if told else cores


def _describe(role: Role, name: str) -> tuple[str, bool | None]:
    if role is Role.KERNEL:
        category = categorise(name)
        return category, uses_tensor_cores(name, category)
    return (copy_category(name), False) if role is Role.COPY else (MEMSET, False)


def kernel_columns(events: Events, work: Work, steps: Steps, phases: Phases) -> dict[str, Any]:
    works, has = events.trace.works, work.detail >= 0
    detail = (
        works[np.maximum(work.detail, 0)] if len(works) else np.zeros(len(work.place), works.dtype)
    )
    categories, category, cores = describe_names(events, work)
    devices, device = np.unique(work.device, return_inverse=True)
    correlation = events.column("correlation", work.place)
    step = steps.at(work.launch_time)
    return {
        "device": columns.names(device, [f"cuda:{each}" for each in devices.tolist()]),
        "stream": work.stream,
        "start_ns": work.start,
        "end_ns": work.end,
        "name": columns.names(events.name[work.place], events.names),
        "category": columns.names(np.array(category, dtype=np.int64), categories),
        "correlation": columns.numbers(correlation, correlation != MISSING),
        "launch_ns": columns.numbers(work.launch_time, work.launch >= 0),
        "step": columns.numbers(steps.number[step] if len(steps.number) else step, step >= 0),
        "phase": phases.column(work, events),
        "op": columns.names(
            np.where(work.op >= 0, events.name[work.op], columns.NULL)
            if len(events.name)
            else work.op,
            events.names,
        ),
        "grid": columns.triples(detail["grid"], has & (detail["grid"] > 0).all(axis=1)),
        "block": columns.triples(detail["block"], has & (detail["block"] > 0).all(axis=1)),
        "registers": columns.numbers(detail["registers"], has & (detail["registers"] >= 0)),
        "shared_bytes": columns.numbers(
            detail["shared"].astype(np.int64), has & (detail["shared"] >= 0)
        ),
        "bytes": columns.numbers(detail["bytes"], has & (detail["bytes"] >= 0)),
        "tensor_core": columns.flags(cores > 0, cores >= 0),
    }


class Phases:
    """The outermost phases of the training thread, to be asked which of them launched something.

    The engine's thread launches during backward, so what another thread launches counts for the
    phase that the training thread is in.
    """

    def __init__(self, regions: Sequence[Region], main: int) -> None:
        top = [region for region in regions if region.depth == 0 and region.span.lane == main]
        self._names = list(dict.fromkeys(region.phase for region in top))
        self._start = np.array([region.span.start for region in top], dtype=np.int64)
        self._end = np.array([region.span.end for region in top], dtype=np.int64)
        self._phase = np.array([self._names.index(region.phase) for region in top], dtype=np.int64)

    def column(self, work: Work, events: Events) -> Any:
        if not len(self._start):
            return columns.constant(None, len(work.place))
        at = np.searchsorted(self._start, work.launch_time, side="right") - 1
        inside = (at >= 0) & (work.launch_time < self._end[np.maximum(at, 0)]) & (work.launch >= 0)
        return columns.names(np.where(inside, self._phase[at], columns.NULL), self._names)


def span_columns(events: Events, regions: Sequence[Region], steps: Steps) -> dict[str, Any]:
    start = np.array([region.span.start for region in regions], dtype=np.int64)
    step = steps.at(start)
    threads = _thread_labels(events)
    return {
        "step": columns.numbers(steps.number[step] if len(steps.number) else step, step >= 0),
        "phase": [region.phase for region in regions],
        "name": [region.span.name for region in regions],
        "depth": np.array([region.depth for region in regions], dtype=np.int16),
        "thread": [threads(region.span.lane) for region in regions],
        "start_ns": start,
        "end_ns": np.array([region.span.end for region in regions], dtype=np.int64),
    }


def _thread_labels(events: Events) -> Any:
    known = thread_names(events.trace)
    count = len(events.names)

    def label(lane: int) -> str:
        return known.get((lane // count, lane % count)) or f"thread {events.names[lane % count]}"

    return label


def host_work(events: Events, steps: Steps) -> dict[str, Any]:
    """Operators as kernels, for a file in which no device ran: the outermost ones of each thread."""
    ops = events.of(Role.OP)
    order = ops[np.lexsort((-events.end[ops], events.start[ops], events.lane[ops]))]
    lanes, stream = np.unique(events.lane[order], return_inverse=True)
    outer = np.ones(len(order), dtype=bool)
    for each in range(len(lanes)):
        own = np.flatnonzero(stream == each)
        reach = np.maximum.accumulate(events.end[order[own]])
        outer[own[1:]] = events.start[order[own[1:]]] >= reach[:-1]
    place, stream = order[outer], stream[outer]
    step = steps.at(events.start[place])
    name = columns.names(events.name[place], events.names)
    return {
        "device": columns.constant("cpu", len(place)),
        "stream": stream,
        "start_ns": events.start[place],
        "end_ns": events.end[place],
        "name": name,
        "category": columns.constant("operator", len(place)),
        "launch_ns": events.start[place],
        "step": columns.numbers(steps.number[step] if len(steps.number) else step, step >= 0),
        "op": name,
        "tensor_core": columns.flags(np.zeros(len(place), dtype=bool)),
    }


DTYPE_BYTES = {
    "float": 4, "float32": 4, "half": 2, "float16": 2, "bfloat16": 2, "c10::bfloat16": 2, "c10::half": 2, "double": 8, "float64": 8,
    "int": 4, "int32": 4, "long": 8, "long int": 8, "int64": 8, "byte": 1, "char": 1, "uint8": 1, "int8": 1, "unsigned char": 1, "signed char": 1,
    "bool": 1, "short": 2, "int16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1,
}  # fmt: skip
_KERNEL_OP = re.compile(
    r"nccl(?:Dev)?Kernel_?(AllReduce|AllGather|ReduceScatter|Broadcast|SendRecv|Reduce|AllToAll)",
    re.IGNORECASE,
)
_OPS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "broadcast": "broadcast",
    "sendrecv": "send_recv", "reduce": "reduce", "alltoall": "all_to_all",
}  # fmt: skip
UNKNOWN = "unknown"
MESSAGE_BYTES = "Message size [bytes]"
COMMUNICATOR = "NCCL communicator ID"
"""What NCCL calls these in its NVTX ranges."""
SIZES_UNKNOWN = "collectives whose size the file does not tell (zero bytes stand for it)"


def collective_columns(
    events: Events, work: Work, steps: Steps, world_size: int
) -> tuple[dict[str, Any], int]:
    """The communication kernels as collectives, and how many of them have no size."""
    communicates = (
        np.array([categorise(name) == COMMUNICATION for name in events.names], dtype=bool)
        if len(work.place)
        else np.zeros(1, dtype=bool)
    )
    mine = np.flatnonzero(
        communicates[events.name[work.place]] & (events.role[work.place] == Role.KERNEL)
    )
    extras = events.column("extra", work.place[mine])
    called = _annotated(events, work, mine)
    rows = [
        _collective(events, int(work.place[at]), int(extra), note, world_size)
        for at, extra, note in zip(mine, extras, called, strict=True)
    ]
    step = steps.at(work.launch_time[mine])
    groups = [
        row["communicator"] or f"stream {work.stream[at]}"
        for at, row in zip(mine.tolist(), rows, strict=True)
    ]
    made = {
        "communicator": groups,
        "sequence": _sequences(groups),
        "op": [row["op"] for row in rows],
        "bytes": np.array([max(0, row["bytes"]) for row in rows], dtype=np.int64),
        "dtype": [row["dtype"] for row in rows],
        "group_size": np.array([row["group_size"] for row in rows], dtype=np.int32),
        "start_ns": work.start[mine],
        "end_ns": work.end[mine],
        "backend": columns.constant("nccl", len(mine)),
        "step": columns.numbers(steps.number[step] if len(steps.number) else step, step >= 0),
    }
    return made, sum(row["bytes"] < 0 for row in rows)


def _annotated(events: Events, work: Work, mine: Ints) -> Ints:
    """The extras of the `nccl:` range around each launch, -1 where there is none; older files tell sizes only there."""
    ranges = events.of(Role.ANNOTATION, Role.OP)
    ranges = ranges[events.column("extra", ranges) >= 0]
    launch = work.launch[mine]
    found = _innermost(
        events, ranges, np.where(launch >= 0, events.lane[launch], -1), work.launch_time[mine]
    )
    return np.where(
        found >= 0, events.column("extra", np.maximum(found, 0)) if len(events.row) else -1, -1
    )


def _collective(
    events: Events, place: int, extra: int, annotation: int, world_size: int
) -> dict[str, Any]:
    args = (
        events.trace.extras[extra]
        if extra >= 0
        else events.trace.extras[annotation]
        if annotation >= 0
        else {}
    )
    name = events.names[int(events.name[place])]
    dtype = str(args.get("dtype") or _first(args.get("Input type")) or UNKNOWN)
    elements = max(
        whole(args.get("In msg nelems"), -1),
        whole(args.get("Out msg nelems"), -1),
        _elements(args.get("Input Dims")),
    )
    size = DTYPE_BYTES.get(dtype.casefold(), 0)
    known = elements * size if size > 0 and elements >= 0 else whole(args.get(MESSAGE_BYTES), -1)
    return {
        "communicator": str(
            args.get("Process Group Name")
            or args.get("Process Group Description")
            or args.get(COMMUNICATOR)
            or ""
        ),
        "op": _operation(name, args),
        "bytes": min(known, 2**62),
        "dtype": dtype if dtype.casefold() in DTYPE_BYTES else UNKNOWN,
        "group_size": min(max(0, whole(args.get("Group size"), world_size)), 2**31 - 1),
    }


def _operation(name: str, args: dict[str, Any]) -> str:
    told = (
        str(args.get("Collective name") or "")
        .removeprefix("_")
        .replace("allreduce", "all_reduce")
        .replace("allgather", "all_gather")
    )
    if told:
        return told.replace("reducescatter", "reduce_scatter")
    found = _KERNEL_OP.search(name)
    return _OPS[found[1].casefold()] if found else "other"


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value and isinstance(value[0], str) else None


def _elements(shapes: Any) -> int:
    """The elements of the first input, -1 where its shape is not told."""
    first = shapes[0] if isinstance(shapes, list) and shapes else None
    if not isinstance(first, list) or not all(
        isinstance(each, str) and each.isdecimal() and len(each) < 16 for each in first
    ):
        return -1
    return math.prod(map(int, first[:16]))


def _sequences(groups: Sequence[str]) -> Ints:
    counts: dict[str, int] = {}
    numbers = []
    for group in groups:
        numbers.append(counts.get(group, 0))
        counts[group] = numbers[-1] + 1
    return np.array(numbers, dtype=np.int64)
