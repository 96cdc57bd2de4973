"""The trace contract: the Arrow schema of each table, with units and meanings.

Null is not zero: null means "not measured here", zero means "measured, and it was zero". A column
is nullable only where a source may really not know it. Columns are only ever added; a table of an
older minor version lacks some, and they read as null. Times are int64 nanoseconds of the rank's
monotonic host clock; `rank.json` holds the anchors that tie it to the time of day.

While a run is written, names are int32 ids into the rank's own `strings` table, because an
append-only table survives a crash and delta dictionaries are not read everywhere. The reader hands
out dictionary columns instead.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from profkit.own_process import spare_pandas
from profkit.vocab import PHASES, SCHEMA_VERSION, EventKind

spare_pandas(pa.array)

MEANING: Final = b"meaning"
UNIT: Final = b"unit"
NAME_UNIT: Final = "name"
"""The unit of columns that hold string ids on disk and dictionary values in memory."""


def _field(
    name: str,
    kind: pa.DataType,
    unit: str,
    meaning: str,
    *,
    null: bool = False,
) -> pa.Field:
    metadata = {UNIT: unit.encode(), MEANING: meaning.encode()}
    return pa.field(name, kind, nullable=null, metadata=metadata)


def _time(name: str, meaning: str, *, null: bool = False) -> pa.Field:
    return _field(name, pa.int64(), "ns", meaning, null=null)


def _name(name: str, meaning: str, *, null: bool = False) -> pa.Field:
    return _field(name, pa.int32(), NAME_UNIT, meaning, null=null)


def _int(
    name: str,
    unit: str,
    meaning: str,
    *,
    null: bool = False,
    kind: pa.DataType | None = None,
) -> pa.Field:
    return _field(name, kind or pa.int64(), unit, meaning, null=null)


def _float(name: str, unit: str, meaning: str, *, null: bool = False) -> pa.Field:
    return _field(name, pa.float64(), unit, meaning, null=null)


def _flag(name: str, meaning: str, *, null: bool = False) -> pa.Field:
    return _field(name, pa.bool_(), "flag", meaning, null=null)


def _triple(name: str, meaning: str) -> pa.Field:
    kind = pa.list_(pa.field("item", pa.int32(), nullable=False), 3)
    return _field(name, kind, "count x, y, z", meaning, null=True)


_RANK: Final = _int("rank", "rank", "which process of the job wrote the row", kind=pa.int32())
_STEP_OR_NULL: Final = _int(
    "step", "index", "the step it belongs to; null outside all steps", null=True
)

_STEPS: Final = [
    _RANK,
    _int("step", "index", "counts from 0 over the whole run"),
    _time(
        "start_ns",
        "when the previous step ended, or when the loop began to wait for its first batch",
    ),
    _time("end_ns", "when the step's last statement returned"),
    _int("sample_count", "samples", "samples that this rank trained on in the step"),
    _float("loss", "loss", "the loss, if the job itself read it on the host", null=True),
    _float("grad_scale", "factor", "the gradient scaler's scale after the step", null=True),
    _flag("instrumented", "false for a control step (recording off)"),
    _int("epoch", "index", "the epoch that the step belongs to", null=True, kind=pa.int32()),
]

_SPANS: Final = [
    _RANK,
    _STEP_OR_NULL,
    _name("phase", "one of: " + ", ".join(PHASES) + "; or unknown, in other tools' files"),
    _name("name", "the region's own name; equal to the phase if the phase has no parts"),
    _int("depth", "level", "0 for a phase, 1 and more for regions inside it", kind=pa.int16()),
    _name("thread", "the name of the thread that ran it"),
    _time("start_ns", "when the host entered it"),
    _time("end_ns", "when the host left it"),
    _time(
        "device_start_ns", "when the device reached its beginning, on the host's clock", null=True
    ),
    _time("device_end_ns", "when the device reached its end, on the host's clock", null=True),
    _int("bytes", "bytes", "bytes that it moved, if any", null=True),
    _name("error", "the class of the exception that left it", null=True),
]

_KERNELS: Final = [
    _RANK,
    _name("device", "cuda:0 and so on, or cpu if operators replace kernels"),
    _int("stream", "id", "the device's stream, or the host's thread"),
    _time("start_ns", "when it began to run"),
    _time("end_ns", "when it ended"),
    _name("name", "the kernel's full name"),
    _name("category", "what kind of work it is, from profkit's taxonomy"),
    _int("correlation", "id", "joins it to the call that launched it", null=True),
    _time("launch_ns", "when the host launched it", null=True),
    _STEP_OR_NULL,
    _name("phase", "the phase that launched it", null=True),
    _name("op", "the framework's operator that launched it", null=True),
    _triple("grid", "blocks in the grid"),
    _triple("block", "threads in a block"),
    _int("registers", "count", "registers per thread", null=True, kind=pa.int32()),
    _int("shared_bytes", "bytes", "shared memory per block", null=True),
    _int("bytes", "bytes", "bytes that it moved, if known", null=True),
    _float("flops", "floating-point operations", "operations that it did, if known", null=True),
    _flag("tensor_core", "whether it used Tensor Cores", null=True),
    _name("module", "the module that launched it; in backward, that of its forward", null=True),
    _name("line", "the line that calls this module, as file:line", null=True),
]

_COLLECTIVES: Final = [
    _RANK,
    _name(
        "communicator",
        "the group of ranks, by the framework's or NCCL's name; of PyTorch's groups of some ranks "
        "also a hash of these (`name@hash`)",
    ),
    _int("sequence", "index", "counts the communicator's collectives; equal on all of its ranks"),
    _name("op", "all_reduce, all_gather, reduce_scatter, broadcast, ..."),
    _int("bytes", "bytes", "the message's size on this rank"),
    _name("dtype", "the type of its elements"),
    _int(
        "group_size", "ranks", "ranks in the communicator; 0 if that is not known", kind=pa.int32()
    ),
    _time("ready_ns", "when its data was ready on this rank", null=True),
    _time("start_ns", "when this rank began it"),
    _time("end_ns", "when this rank had its result"),
    _name("backend", "nccl, gloo, ..."),
    _STEP_OR_NULL,
    _int("bucket", "index", "the gradient bucket that it carried", null=True, kind=pa.int32()),
    _name("dimension", "the dimension of the device mesh whose ranks take part", null=True),
    _name("module", "the module whose weights or gradients it carried", null=True),
    _int("microbatch", "index", "the part of a pipeline's batch", null=True, kind=pa.int32()),
]

_SAMPLES: Final = [
    _RANK,
    _name("device", "the device it was read from; null for the host", null=True),
    _name("source", "the collector that read it"),
    _name("metric", "what was read, with its unit at the end of the name"),
    _time("time_ns", "when it was read"),
    _float("value", "as the metric's name says", "the reading"),
]

_EVENTS: Final = [
    _RANK,
    _STEP_OR_NULL,
    _time("time_ns", "when it happened or was noted; of a compilation, when it ended"),
    _name("kind", "one of: " + ", ".join(EventKind)),
    _name("name", "what it is about: a function, a file, a part of profkit, ..."),
    _name("detail", "the reason, if it has one", null=True),
    _float("value", "count, or ns", "a count so far, or a length, as the kind says", null=True),
]

_STACKS: Final = [
    _RANK,
    _time("time_ns", "when the thread was looked at"),
    _time("late_ns", "how late it was, because it waited for the interpreter or a processor"),
    _time("every_ns", "the time that the sample represents, less how late it was"),
    _name("thread", "the name of the thread that trains, or of the loader's worker"),
    _int(
        "stack",
        "id",
        "the innermost frame, as an id of `frames`; null if their number had reached its limit",
        null=True,
        kind=pa.int32(),
    ),
    _name("state", "what the kernel says the thread did: R runs or waits for a core", null=True),
    _name("call", "the system call that it was in, if it did not run", null=True),
    _float(
        "waited_share",
        "share",
        "since its last sample, of the time in which it did not sleep, what it waited for a core",
        null=True,
    ),
]

_FRAMES: Final = [
    _RANK,
    _int("id", "id", "counts the rank's frames from 0", kind=pa.int32()),
    _int("parent", "id", "the frame that called it; null if none did", null=True, kind=pa.int32()),
    _name("file", "the file of the code, with `~` for the user's home"),
    _name("function", "the qualified name of the function"),
    _int("line", "number", "the line that ran; 0 if it is not known", kind=pa.int32()),
    _name("origin", "whose code it is: job, package or python"),
]

_SUMS: Final = [
    _RANK,
    _int("part", "index", "counts the rank's thinned parts from 0; each is about a minute long"),
    _int("first_step", "index", "the part's first step"),
    _int("last_step", "index", "the part's last step"),
    _time("start_ns", "when the part's first step began"),
    _time("end_ns", "when the part's last step ended"),
    _int("epoch", "index", "the epoch of the part's last step", null=True, kind=pa.int32()),
    _int("level", "index", "of 2^level neighbouring blocks of 16 steps, one was also kept in full"),
    _name("kind", "used, or the reason for which figures exclude these steps"),
    _name("phase", "the phase whose time was summed; null for whole steps", null=True),
    _int("steps", "steps", "number of steps of this kind in the part"),
    _int("sample_count", "samples", "samples that they trained on; null for a phase", null=True),
    _time("total_ns", "wall time of the steps, or their time in the phase and in no other"),
    _field(
        "lengths",
        pa.string(),
        "text",
        "words 'place:count': count steps took 1.02**place to 1.02**(place + 1) ns",
        null=True,
    ),
]

_STRINGS: Final = [
    _RANK,
    _int("id", "id", "value in the other tables' name columns; counts from 0", kind=pa.int32()),
    _field("value", pa.string(), "text", "the name"),
]

ABOUT: Final[Mapping[str, str]] = {
    "steps": "One row per training step and rank: the wall clock that checks the phases.",
    "spans": "One row per phase of a step, and per region inside a phase.",
    "kernels": "One row per kernel, copy or fill on a device, in the windows that were captured.",
    "collectives": "One row per collective operation and rank.",
    "samples": "Readings over time in long form: a new collector adds rows, never columns.",
    "events": "What happened at one time: compilations, bad samples, failures of profkit, ...",
    "stacks": "Samples of Python stacks: of the thread that trains, and of the loader's workers.",
    "frames": "The places in code that `stacks` refers to, as a tree; no values of the job.",
    "sums": "Exact sums of the steps whose own rows a long run did not keep, by kind and phase.",
    "strings": "The names of the rank's other tables, in the order in which they first appeared.",
}

_FIELDS = {
    "steps": _STEPS,
    "spans": _SPANS,
    "kernels": _KERNELS,
    "collectives": _COLLECTIVES,
    "samples": _SAMPLES,
    "events": _EVENTS,
    "stacks": _STACKS,
    "frames": _FRAMES,
    "sums": _SUMS,
    "strings": _STRINGS,
}


_VERSION: Final = {b"profkit.schema": ".".join(map(str, SCHEMA_VERSION)).encode()}

SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    table: pa.schema(fields, metadata={b"profkit.table": table.encode(), **_VERSION})
    for table, fields in _FIELDS.items()
}


def is_name(field: pa.Field) -> bool:
    """Return true for a column of names: ids on disk, a dictionary in memory."""
    return bool(field.metadata) and field.metadata.get(UNIT) == NAME_UNIT.encode()


@functools.cache
def name_columns(table: str) -> tuple[str, ...]:
    return tuple(field.name for field in SCHEMAS[table] if is_name(field))


@functools.cache
def open_schema(table: str) -> pa.Schema:
    """Return the schema that the reader hands out: name columns are dictionaries of text."""
    schema = SCHEMAS[table]
    for place, field in enumerate(schema):
        if is_name(field):
            text = field.with_type(pa.dictionary(pa.int32(), pa.string()))
            schema = schema.set(place, text)
    return schema


def describe_type(field: pa.Field) -> str:
    """Return the column's type on disk in words, with a `?` if it may be null."""
    kind = str(field.type)
    if is_name(field):
        kind = "name (int32 id)"
    elif pa.types.is_fixed_size_list(field.type):
        kind = "3 x int32"
    return kind + ("?" if field.nullable else "")


def unit_of(field: pa.Field) -> str:
    return field.metadata[UNIT].decode() if field.metadata else ""


def meaning_of(field: pa.Field) -> str:
    return field.metadata[MEANING].decode() if field.metadata else ""
