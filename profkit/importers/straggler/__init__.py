"""StragglerAnalysis traces: the operations of a hybrid-parallel job, in Parquet.

The format is that of the published traces of "Understanding Stragglers in Large Model Training
Using What-if Analysis" (OSDI 2025). A `meta-*.yaml` next to a trace says how the job was parallel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from profkit.analysis.selection import DEFAULT_WARM_UP
from profkit.analysis.whatif.operations import Operations
from profkit.analysis.whatif.run_operations import COORDINATES
from profkit.clock import Anchor
from profkit.importers.base import Imported, Target, clean_name
from profkit.importers.straggler.groups import Groups, find_groups
from profkit.importers.straggler.job import Job, find_job, meta_files
from profkit.importers.straggler.rows import (
    Windows,
    collective_columns,
    place_windows,
    span_columns,
    step_columns,
)
from profkit.importers.straggler.table import (
    KNOWN,
    MAGIC,
    columns_of,
    read_operations,
    unknown_kinds,
)
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.trace.sharing import DATA_PARALLEL, PARALLEL
from profkit.vocab import HINTS

LIKELY = 6
"""A table with so many of the format's columns is one, even if others are missing."""

NO_SAMPLES = f"{HINTS[0]} a step trains on, so there is no throughput; give --samples-per-step"
NO_SIZES = "the file has no sizes of messages: they count as zero bytes"
NO_PAUSES = (
    "the file has no time between its steps: they were placed one after the other, each from its "
    "first operation to its last one on any rank"
)
UNKNOWN_KINDS = "operations of types that profkit does not know are in no figure"
MOST_NAMED = 3


class Straggler:
    """Imports each file as a run; the file has all ranks that were recorded."""

    name = "straggler"
    title = "StragglerAnalysis, Parquet"

    def recognises(self, head: bytes, path: Path) -> float:
        if not head.startswith(MAGIC):
            return 0.0
        columns = columns_of(path)
        if columns is None:
            return 0.3  # a damaged file: reading it says what is wrong with it
        if len(KNOWN & columns) >= LIKELY:
            return 0.95
        return 0.0

    def companions(self, path: Path) -> set[Path]:
        """Return the files that are read with a trace, though they are no traces."""
        return set(meta_files(path))

    def divide(self, sources: Sequence[Path]) -> list[Sequence[Path]]:
        """Return the files of each run."""
        return [[path] for path in sources]

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        for path in sources:
            operations = read_operations(path)
            job = find_job(path, operations)
            groups, windows = find_groups(operations, job), place_windows(operations)
            with target.new_run(self.name, [path]) as draft:
                for rank in np.unique(operations.rank).tolist():
                    manifest = _describe_rank(rank, operations, job)
                    tables = draft.rank(manifest)
                    own = np.flatnonzero(operations.rank == rank)
                    samples = target.options.samples_per_step or 0
                    tables.write("steps", step_columns(operations, own, windows, samples))
                    tables.write("spans", span_columns(operations, own, windows, job))
                    tables.write(
                        "collectives", collective_columns(operations, own, windows, groups)
                    )
                if not target.options.samples_per_step:
                    draft.flags.append(NO_SAMPLES)
                draft.flags += _flags(operations, job, windows, groups)
                yield draft.finish(_describe(operations, job))


def _describe_rank(rank: int, operations: Operations, job: Job) -> RankManifest:
    row = int(np.argmax(operations.rank == rank))
    data_rank, stage = int(operations.data_rank[row]), int(operations.stage[row])
    shared = {"size": job.data_ranks, "rank": data_rank, "by": "StragglerAnalysis trace"}
    if job.sequence_ranks > 1:
        shared = {"by": "the trace does not say if ranks of its dimension dsp share samples"}
    place = {"dp": data_rank, "pp": stage, "tp": job.tensor_place[rank]}
    return RankManifest(
        rank, "", 0, "", Anchor(0, 0, 0), world_size=job.world_size,
        config={DATA_PARALLEL: shared, COORDINATES: place},
    )  # fmt: skip


def _describe(operations: Operations, job: Job) -> RunManifest:
    steps = np.unique(operations.step)
    # Steps from the middle of a job are no warm-up.
    warm_up = min(DEFAULT_WARM_UP, len(steps) // 5)
    known = {
        PARALLEL: job.dimensions,
        "model_chunks": job.chunks if job.chunks > 1 else None,
        "microbatches": int(operations.microbatch.max()) + 1 or None,
        "warmup": max(0, min(warm_up, DEFAULT_WARM_UP - int(steps[0]))),
    }
    config = {}
    for name, value in known.items():
        if value is not None:
            config[name] = value
    return RunManifest(clean_name(job.name), world_size=job.world_size, config=config)


def _flags(operations: Operations, job: Job, windows: Windows, groups: Groups) -> Iterator[str]:
    yield NO_SIZES
    if windows.were_placed:
        yield NO_PAUSES
    yield from job.flags
    yield from groups.flags
    ranks = len(np.unique(operations.rank))
    if ranks < job.world_size:
        yield (
            f"the file has no operations of {job.world_size - ranks:,} of {job.world_size:,} "
            "ranks: the sizes of groups count only the ranks that it has"
        )
    unknown = []
    for name, count in unknown_kinds(operations):
        unknown.append(f"{count:,} {clean_name(name)}")
    if unknown:
        more = ", ..." if len(unknown) > MOST_NAMED else ""
        yield f"{UNKNOWN_KINDS} ({', '.join(unknown[:MOST_NAMED])}{more})"


IMPORTER = Straggler()
