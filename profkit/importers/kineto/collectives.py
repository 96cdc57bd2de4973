"""Turns one rank's communication kernels into rows of the table `collectives`."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from profkit.analysis.kernels.categories import COMMUNICATION, categorise
from profkit.frame.device_clock import Bools
from profkit.importers.kineto.aligning import use_stated_numbers
from profkit.importers.kineto.events import Events, Role, whole
from profkit.importers.kineto.steps import Steps
from profkit.importers.kineto.work import DeviceWork, find_innermost
from profkit.importers.reading import columns
from profkit.importers.reading.numbers import Ints

DTYPE_BYTES = {
    "float": 4, "float32": 4, "half": 2, "float16": 2, "bfloat16": 2, "c10::bfloat16": 2,
    "c10::half": 2, "double": 8, "float64": 8, "int": 4, "int32": 4, "long": 8, "long int": 8,
    "int64": 8, "byte": 1, "char": 1, "uint8": 1, "int8": 1, "unsigned char": 1, "signed char": 1,
    "bool": 1, "short": 2, "int16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1,
}  # fmt: skip
OPS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "broadcast": "broadcast", "sendrecv": "send_recv", "reduce": "reduce",
    "alltoall": "all_to_all",
}  # fmt: skip
"""profkit's names of collectives, by those of NCCL in small letters."""
UNKNOWN = "unknown"
MESSAGE_BYTES = "Message size [bytes]"
COMMUNICATOR = "NCCL communicator ID"
"""NCCL uses these names in its NVTX ranges."""
SEQUENCE = "Seq"
"""Newer versions of torch give each collective of a process group its number, from one on."""
ONE_PART = "one part"
"""An argument of our own: the message size is that of one rank's part."""
SIZES_UNKNOWN = "collectives of unknown size, which count as zero bytes"
UNGROUPED = "collectives that do not state their group"
MAX_BYTES = 2**62
MAX_GROUP_SIZE = 2**31 - 1
_MAX_DIMENSIONS = 16
_MAX_DIGITS = 15

_KERNEL_OP = re.compile(
    r"nccl(?:Dev)?Kernel_?(AllReduce|AllGather|ReduceScatter|Broadcast|SendRecv|Reduce|AllToAll)",
    re.IGNORECASE,
)
_ALL_TO_ALL = re.compile(r"all_?(?:to|2)_?all", re.IGNORECASE)


class Message(NamedTuple):
    """A message's type and its bytes, which are negative if they are unknown."""

    dtype: str
    bytes: int
    is_part: bool = False
    """True if other ranks have further parts."""


class Collectives(NamedTuple):
    """The rows of one rank; their sizes must be settled when the groups are known."""

    columns: dict[str, Any]
    is_part: Bools
    flag: str = ""
    """The groups that are not stated, unless they are still to be found."""

    def settle_sizes(self) -> str:
        """Turn sizes of parts into those of all ranks; return what to flag."""
        sizes, group_sizes = self.columns["bytes"], self.columns["group_size"]
        parts = np.where(self.is_part, group_sizes.astype(np.int64), 1)
        settled = np.minimum(sizes, MAX_BYTES // np.maximum(parts, 1)) * parts
        unknown = (sizes < 0) | (parts == 0)
        self.columns["bytes"] = np.where(unknown, 0, settled)
        return f"{SIZES_UNKNOWN}: {unknown.sum():,}" if unknown.any() else ""


def collective_columns(
    events: Events, work: DeviceWork, steps: Steps, world_size: int | None
) -> Collectives:
    """Return the communication kernels as collectives.

    If one does not state how many ranks take part, all ranks of the job are assumed, or no number
    if the job has one rank. Without a world size, the groups are still to be found.
    """
    mine = find_communication(events, work)
    place = work.place[mine]
    extras = find_arguments(events, work, mine, events.column("extra", place))
    communicators, ops, dtypes = [], [], []
    sizes = np.zeros(len(mine), dtype=np.int64)
    is_part = np.zeros(len(mine), dtype=bool)
    group_sizes = np.zeros(len(mine), dtype=np.int32)
    sequences = np.zeros(len(mine), dtype=np.int64)
    stated = np.zeros(len(mine), dtype=np.int64)
    counts: dict[str, int] = {}
    for row, extra in enumerate(extras.tolist()):
        args = events.trace.extras[extra] if extra >= 0 else {}
        communicator = f"stream {work.stream[mine[row]]}"
        for key in ("Process Group Name", "Process Group Description", COMMUNICATOR):
            if args.get(key):
                communicator = str(args[key])
                break
        communicators.append(communicator)
        sequences[row] = counts.get(communicator, 0)
        counts[communicator] = int(sequences[row]) + 1
        stated[row] = min(max(0, whole(args.get(SEQUENCE))), MAX_BYTES)
        around = work.op[mine[row]]
        operator = events.names[events.name[around]] if around >= 0 else ""
        ops.append(operation_of(args, events.names[int(events.name[place[row]])], operator))
        dtype, sizes[row], is_part[row] = message_of(args, ops[row])
        dtypes.append(dtype)
        group_sizes[row] = min(max(0, whole(args.get("Group size"))), MAX_GROUP_SIZE)
    flag = _assume_groups(group_sizes, world_size)
    made = {
        "communicator": communicators,
        "sequence": sequences,
        "op": ops,
        "bytes": sizes,
        "dtype": dtypes,
        "group_size": group_sizes,
        "start_ns": work.start[mine],
        "end_ns": work.end[mine],
        "backend": columns.constant("nccl", len(mine)),
        "step": steps.column_at(work.launch_time[mine]),
    }
    use_stated_numbers(made, stated)
    return Collectives(made, is_part, flag)


def _assume_groups(group_sizes: npt.NDArray[np.int32], world_size: int | None) -> str:
    """Fill the sizes of groups that are not stated; return what to flag."""
    ungrouped = group_sizes == 0
    if world_size is None or not ungrouped.any():
        return ""
    how = "it is not known how many ranks take part, so bus bandwidth and waiting are not known"
    if world_size > 1:
        group_sizes[ungrouped] = world_size
        how = (
            f"all {world_size} ranks of the job are assumed; if fewer take part, bus bandwidth and "
            "waiting are wrong"
        )
    return f"{UNGROUPED}: {ungrouped.sum():,}; {how}"


def find_communication(events: Events, work: DeviceWork) -> Ints:
    """Return the rows of the communication kernels in the device work."""
    communicates = np.zeros(max(1, len(events.names)), dtype=bool)
    kernels = events.role[work.place] == Role.KERNEL
    for name in np.unique(events.name[work.place[kernels]]).tolist():
        communicates[name] = categorise(events.names[name]) == COMMUNICATION
    return np.flatnonzero(communicates[events.name[work.place]] & kernels)


def find_arguments(events: Events, work: DeviceWork, mine: Ints, own: Ints) -> Ints:
    """Return where each collective's arguments are in the trace's extras, or -1.

    Older files have them only at the `nccl:` range around the launch.
    """
    ranges = events.of(Role.ANNOTATION, Role.OP)
    ranges = ranges[events.column("extra", ranges) >= 0]
    launch = work.launch[mine]
    lane = np.where(launch >= 0, events.lane[launch], -1)
    found = find_innermost(events, ranges, lane, work.launch_time[mine])
    around = np.where(found >= 0, events.column("extra", np.maximum(found, 0)), -1)
    return np.where(own >= 0, own, around)


def message_of(args: dict[str, Any], op: str) -> Message:
    """Return the message of a collective. Its bytes are those of the larger side.

    Older files have only the shapes of inputs, and the inputs of a gather are parts.
    """
    given = args.get("dtype")
    if not given:
        given = args.get("Input type")
        if isinstance(given, list) and given and isinstance(given[0], str):
            given = given[0]
        else:
            given = None
    dtype = str(given or UNKNOWN)
    stated = max(whole(args.get("In msg nelems"), -1), whole(args.get("Out msg nelems"), -1))
    elements = max(stated, _count_elements(args.get("Input Dims")))
    is_part = stated < 0 and "gather" in op
    element_bytes = DTYPE_BYTES.get(dtype.casefold())
    if element_bytes is None:
        dtype = UNKNOWN
    if element_bytes and elements >= 0:
        return Message(dtype, min(elements * element_bytes, MAX_BYTES), is_part)
    size = min(max(-1, whole(args.get(MESSAGE_BYTES), -1)), MAX_BYTES)
    return Message(dtype, size, ONE_PART in args)


def operation_of(args: dict[str, Any], kernel: str, operator: str = "") -> str:
    """Return the collective's name from its arguments, else from the kernel's name.

    NCCL sends and receives in an all-to-all as well; there only the operator's name tells.
    """
    name = str(args.get("Collective name") or "").removeprefix("_")
    if name:
        for theirs in ("allreduce", "allgather", "reducescatter"):
            name = name.replace(theirs, OPS[theirs])
        return name
    found = _KERNEL_OP.search(kernel)
    if found and found[1].casefold() == "sendrecv" and _ALL_TO_ALL.search(operator):
        return OPS["alltoall"]
    if found:
        return OPS[found[1].casefold()]
    return "other"


def _count_elements(shapes: Any) -> int:
    """Return the number of elements of the first input, -1 if its shape is unknown."""
    if not isinstance(shapes, list) or not shapes or not isinstance(shapes[0], list):
        return -1
    for size in shapes[0]:
        if not isinstance(size, str) or not size.isdecimal() or len(size) > _MAX_DIGITS:
            return -1
    return math.prod(map(int, shapes[0][:_MAX_DIMENSIONS]))
