"""Turns a rank's operations into rows of the tables `steps`, `spans` and `collectives`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from profkit.analysis.intervals import subtract_union
from profkit.analysis.phases import UNKNOWN
from profkit.analysis.whatif.operations import (
    BACKWARD,
    COMMUNICATES,
    DATA_PARALLEL,
    EMBEDDING,
    FORWARD,
    LAYERNORM,
    MESSAGES,
    OPTIMIZER,
    Operations,
)
from profkit.importers.reading import columns
from profkit.importers.reading.numbers import Ints
from profkit.importers.straggler.groups import MODULES, OPS, Groups
from profkit.importers.straggler.job import Job
from profkit.vocab import EXPOSED, Phase

PHASES: Final = {
    FORWARD: Phase.FORWARD.value, BACKWARD: Phase.BACKWARD.value,
    OPTIMIZER: Phase.OPTIMIZER.value,
}  # fmt: skip
"""The phases of operations that compute; garbage collection is in none."""
DIMENSIONS: Final = {
    **dict.fromkeys(MESSAGES, "pp"), **dict.fromkeys(DATA_PARALLEL, "dp"),
    EMBEDDING: "pp", LAYERNORM: "tp",
}  # fmt: skip
"""The dimension of the ranks that take part; the gradient clip is of all ranks."""

THREAD: Final = "operations"
NO_TYPE: Final = "unknown"
NO_BACKEND: Final = "unknown backend"


@dataclass(frozen=True, eq=False)
class Windows:
    """The steps of a trace, each from its first start to its last end on any rank."""

    steps: Ints
    start: Ints
    end: Ints
    offset: Ints
    """What is added to the times of each step."""
    were_placed: bool
    """True if steps overlap in the file's times, which then begin with each step."""


def place_windows(operations: Operations) -> Windows:
    """Return the steps; those that overlap are placed one after the other."""
    steps, step = np.unique(operations.step, return_inverse=True)
    order = np.argsort(step, kind="stable")
    first = np.searchsorted(step[order], np.arange(len(steps)))
    start = np.minimum.reduceat(operations.start[order], first)
    end = np.maximum.reduceat(operations.end[order], first)
    overlap = bool((start[1:] < end[:-1]).any())
    offset = np.zeros(len(steps), dtype=np.int64)
    if overlap:
        offset = np.append(0, np.cumsum(end - start)[:-1]) - start
    return Windows(steps, start + offset, end + offset, offset, overlap)


def step_columns(
    operations: Operations, own: Ints, windows: Windows, samples: int
) -> dict[str, Any]:
    """Return a rank's steps. A step begins and ends on all ranks at once."""
    place = np.searchsorted(windows.steps, np.unique(operations.step[own]))
    return {
        "step": windows.steps[place],
        "start_ns": windows.start[place],
        "end_ns": windows.end[place],
        "sample_count": np.full(len(place), samples, dtype=np.int64),
        "instrumented": columns.flags(np.ones(len(place), dtype=bool)),
    }


def span_columns(operations: Operations, own: Ints, windows: Windows, job: Job) -> dict[str, Any]:
    """Return what a rank computed, and its communication while it computed nothing."""
    communicates = np.isin(operations.kinds, list(COMMUNICATES))[operations.kind[own]]
    work, sent = own[~communicates], own[communicates]
    place, start, end = _times(operations, work, windows)
    exposed = _exposed(operations, work, sent, windows)
    place, start, end = np.concatenate([(place, start, end), exposed], axis=1)
    names, ids = _span_names(operations, work, job)
    kind = operations.kind[work]
    known = []
    for each in operations.kinds:
        known.append(PHASES.get(each, UNKNOWN))
    phase = np.concatenate([kind, np.full(len(exposed[0]), len(known))])
    name = np.concatenate([ids, np.full(len(exposed[0]), len(names))])
    order = np.argsort(start, kind="stable")
    return {
        "step": windows.steps[place[order]],
        "phase": columns.names(phase[order], [*known, Phase.ALLREDUCE.value]),
        "name": columns.names(name[order], [*names, EXPOSED]),
        "depth": np.zeros(len(order), dtype=np.int16),
        "thread": columns.constant(THREAD, len(order)),
        "start_ns": start[order],
        "end_ns": end[order],
    }


def _times(operations: Operations, rows: Ints, windows: Windows) -> tuple[Ints, Ints, Ints]:
    """Return the place of each row's step, and its times on the run's clock."""
    place = np.searchsorted(windows.steps, operations.step[rows])
    offset = windows.offset[place]
    return place, operations.start[rows] + offset, operations.end[rows] + offset


def _exposed(
    operations: Operations, work: Ints, sent: Ints, windows: Windows
) -> tuple[Ints, Ints, Ints]:
    """Return step, start and end of the communication that no computation hides."""
    place, start, end = _times(operations, sent, windows)
    hides, opens, closes = _times(operations, work, windows)
    # A nanosecond more between neighbouring steps keeps their intervals apart.
    starts, ends = subtract_union(start + place, end + place, opens + hides, closes + hides)
    spread = windows.start + np.arange(len(windows.steps))
    found = np.maximum(np.searchsorted(spread, starts, side="right") - 1, 0)
    return found, starts - found, ends - found


def _span_names(operations: Operations, rows: Ints, job: Job) -> tuple[list[str], Ints]:
    """Return the distinct names of operations, and the number of each row's name."""
    kind, microbatch = operations.kind[rows], operations.microbatch[rows]
    chunk = operations.chunk[rows] if job.chunks > 1 else np.full(len(rows), -1)
    distinct, ids = np.unique(np.stack([kind, chunk, microbatch]), axis=1, return_inverse=True)
    names = []
    for code, part, number in distinct.T.tolist():
        words = operations.kinds[code]
        if words in (FORWARD, BACKWARD):
            words += f" chunk {part}" if part >= 0 else ""
            words += f" microbatch {number}" if number >= 0 else ""
        names.append(words)
    return names, ids.reshape(-1)


def collective_columns(
    operations: Operations, own: Ints, windows: Windows, groups: Groups
) -> dict[str, Any]:
    """Return what a rank sent and received, with the time that it waited for its peers."""
    rows = own[groups.communicator[own] >= 0]
    place, start, end = _times(operations, rows, windows)
    order = np.argsort(start, kind="stable")
    rows, place, start, end = rows[order], place[order], start[order], end[order]
    kind, chunk, count = operations.kind[rows], operations.chunk[rows], len(rows)
    communicator, microbatch = groups.communicator[rows], groups.microbatch[rows]
    ops = [OPS.get(each, "all_reduce") for each in operations.kinds]
    dimensions = [DIMENSIONS.get(each, "") for each in operations.kinds]
    is_known = np.array([*dimensions, ""])[kind] != ""
    modules = [MODULES.get(each, "") for each in operations.kinds]
    chunks = int(chunk.max(initial=0)) + 1
    module = np.where(chunk >= 0, len(modules) + chunk, kind)
    modules += [f"model chunk {number}" for number in range(chunks)]
    named = np.array([*modules, ""])[module] != ""
    return {
        "communicator": columns.names(communicator, groups.names),
        "sequence": groups.sequence[rows],
        "op": columns.names(kind, ops),
        "bytes": np.zeros(count, dtype=np.int64),
        "dtype": columns.constant(NO_TYPE, count),
        "group_size": groups.size[communicator].astype(np.int32),
        "start_ns": start,
        "end_ns": end,
        "backend": columns.constant(NO_BACKEND, count),
        "step": windows.steps[place],
        "dimension": columns.names(np.where(is_known, kind, columns.NULL), dimensions),
        "module": columns.names(np.where(named, module, columns.NULL), modules),
        "microbatch": columns.numbers(microbatch.astype(np.int32), microbatch >= 0),
    }
