"""Runs with the given phases of each step, and with compilations where a test puts them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from profkit.clock import Anchor
from profkit.importers.reading.columns import constant, flags, names
from profkit.testing.synthetic import BEGIN_REALTIME_NS
from profkit.testing.synthetic_timeline import BEGIN_NS, Floats
from profkit.trace.files import RankFiles
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.vocab import COMPILATIONS, EventKind, Phase, RunState, rank_folder


class Compiled(NamedTuple):
    """An event of the compiler in some step of a rank; `ns` is the time, or a count."""

    rank: int
    step: int
    kind: EventKind
    ns: float
    name: str = ""
    detail: str | None = None


class Marked(NamedTuple):
    """A reading that marks a step as unlike the job's own."""

    source: str
    metric: str
    step: int


def series_trace(
    folder: Path,
    phase_ns: Mapping[str, Floats],
    *,
    ranks: int = 1,
    samples: int | Sequence[int] = 32,
    compiled: Sequence[Compiled] = (),
    marked: Sequence[Marked] = (),
    config: Mapping[str, Any] | None = None,
    framework: str = "pytorch",
) -> Path:
    """Write a complete run whose steps have these phases, one after the other, on all ranks.

    `samples` are those of each step. A compilation is a part of the step's phase `forward`, at its
    beginning. Marks are on rank 0.
    """
    lengths = np.stack([np.rint(each).astype(np.int64) for each in phase_ns.values()])
    ends = BEGIN_NS + np.cumsum(lengths.T.ravel()).reshape(lengths.T.shape)
    folder.mkdir(mode=0o700, parents=True)
    for rank in range(ranks):
        own = [each for each in compiled if each.rank == rank]
        marks = () if rank else marked
        _write_rank(folder, rank, list(phase_ns), ends, lengths.T, samples, own, marks)
    RunManifest(
        workload="series",
        framework=framework,
        state=RunState.COMPLETE,
        world_size=ranks,
        created_ns=BEGIN_REALTIME_NS,
        ended_ns=BEGIN_REALTIME_NS + int(ends[-1, -1]) - BEGIN_NS,
        profkit_version="0",
        config={"device": "cpu", **(config or {})},
        environment={"system": "synthetic"},
    ).write(folder)
    return folder


def _write_rank(
    folder: Path,
    rank: int,
    phases: Sequence[str],
    ends: Any,
    lengths: Any,
    samples: int | Sequence[int],
    compiled: Sequence[Compiled],
    marked: Sequence[Marked],
) -> None:
    files = RankFiles(folder / rank_folder(rank), rank)
    anchor = Anchor(BEGIN_NS, BEGIN_REALTIME_NS, 100)
    RankManifest(rank, "host0", 1000 + rank, "cpu", anchor).write(files.folder)
    steps, starts = len(ends), ends - lengths
    index = np.arange(steps)
    columns: dict[str, Any] = {
        "step": index,
        "start_ns": starts[:, 0],
        "end_ns": ends[:, -1],
        "sample_count": np.full(steps, samples),
        "instrumented": flags(np.ones(steps, np.bool_)),
        "epoch": np.zeros(steps, np.int32),
    }
    files.write("steps", columns)
    files.write("spans", _span_columns(phases, ends, starts, compiled))
    if compiled:
        columns = _fields(compiled, "kind", "name", "detail")
        columns["time_ns"] = ends[_fields(compiled, "step")["step"], -1] - 1
        columns["value"] = [float(each.ns) for each in compiled]
        files.write("events", columns)
    if marked:
        columns = _fields(marked, "source", "metric")
        columns["time_ns"] = ends[_fields(marked, "step")["step"], -1] - 1
        columns["value"] = [float(each.step) for each in marked]
        files.write("samples", columns)
    files.close()


def _fields(rows: Sequence[Any], *names: str) -> dict[str, Any]:
    """Return a column of each field."""
    return {name: list(map(operator.attrgetter(name), rows)) for name in names}


def _span_columns(
    phases: Sequence[str], ends: Any, starts: Any, compiled: Sequence[Compiled]
) -> dict[str, Any]:
    steps, count = starts.shape
    phase = np.tile(np.arange(count), steps)
    inner = [each for each in compiled if each.kind in COMPILATIONS]
    forward = phases.index(Phase.FORWARD.value) if inner else 0
    begun = np.array([starts[each.step, forward] for each in inner], np.int64)
    ended = begun + np.array([each.ns for each in inner], np.int64)
    label = names(
        np.concatenate([phase, np.full(len(inner), count)]), [*phases, Phase.COMPILE.value]
    )
    rows = steps * count
    own = np.array([each.step for each in inner], np.int64)
    return {
        "step": np.concatenate([np.repeat(np.arange(steps), count), own]),
        "phase": label,
        "name": label,
        "depth": np.repeat([0, 1], [rows, len(inner)]),
        "thread": constant("MainThread", rows + len(inner)),
        "start_ns": np.concatenate([starts.ravel(), begun]),
        "end_ns": np.concatenate([ends.ravel(), ended]),
    }
