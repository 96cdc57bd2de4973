"""Lines of the user's code in the processes of a data loader's workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.stack_samples import (
    HELD,
    HELD_PLACE,
    FrameTree,
    Place,
    Samples,
    find_steps,
    kinds_of,
    name_leaves,
    times_of,
)
from profkit.analysis.stacks import FEWEST_SAMPLES, LineTime, common_folder, time_lines
from profkit.frame.columns import names_and_codes, rows_of_rank
from profkit.frame.estimate import Floats, Ints
from profkit.trace.worker_stacks import WorkerStacks


@dataclass(frozen=True)
class WorkerLines:
    """The lines that the workers ran in the used steps, longest first.

    `step_ns` is the time of all workers of a rank per step of the training, whether they work or
    wait; `sampler_share` the part of it in which the sampler used a processor.
    """

    workers: int
    samples: int
    lost: int
    step_ns: float
    sampler_share: float
    lines: tuple[LineTime, ...]
    folder: str

    @property
    def judged(self) -> bool:
        return self.samples >= FEWEST_SAMPLES


def view_workers(found: WorkerStacks, steps: pa.Table, used: Ints) -> WorkerLines | None:
    """Return the lines of all workers; `None` if none was sampled in the used steps."""
    aimed_ns = float(times_of(found.stacks).sum())
    if not aimed_ns or not len(used) or not found.elapsed_ns:  # a damaged file may hold zeros
        return None
    samples = _read(found, steps, used)
    count = len(samples.kind)
    if not count:
        return None
    ranks, workers = np.unique(found.stacks["rank"].to_numpy()).tolist(), 0
    for rank in ranks:
        workers += len(pc.unique(rows_of_rank(found.stacks, rank)["thread"]))
    # A sample stands for the mean time between samples that was kept, not for the one aimed at.
    kept_pace = found.elapsed_ns / aimed_ns
    step_ns = float(samples.weight.sum()) * kept_pace / len(used) / len(ranks)
    lines: tuple[LineTime, ...] = ()
    if count >= FEWEST_SAMPLES:
        lines, _ = time_lines(samples, np.arange(count), step_ns)
    share = found.used_ns / found.elapsed_ns
    files = sorted({each.place.file for each in lines if each.place.line})
    return WorkerLines(workers, count, samples.lost, step_ns, share, lines, common_folder(files))


def _read(found: WorkerStacks, steps: pa.Table, used: Ints) -> Samples:
    """Join the workers' samples with steps and lines. Those of one batch have one step."""
    numbers: dict[Place, int] = {Place(HELD, 0, ""): HELD_PLACE}
    callees: dict[str, int] = {"": 0}
    columns: list[Floats] = []
    trees = {}
    lost = 0
    for rank in np.unique(found.stacks["rank"].to_numpy()).tolist():
        own = rows_of_rank(found.stacks, rank)
        late = own["late_ns"].to_numpy()
        place = find_steps(own["time_ns"].to_numpy() - late, rows_of_rank(steps, rank), used)
        ids = own["stack"].fill_null(-1).to_numpy().astype(np.int64)
        tree = trees[rank] = FrameTree(rows_of_rank(found.frames, rank), of_worker=True)
        known = (ids >= 0) & (ids < len(tree))
        lost += int(np.count_nonzero(~known & (place >= 0)))
        kept = np.flatnonzero(known & (place >= 0))
        line, below = name_leaves(tree.name_in_worker, ids[kept], numbers, callees)
        stands_for = times_of(own)[kept]
        # While the job waits for its workers, each makes a batch in as many steps as there are
        # workers. Its samples of one batch depend on each other.
        workers, threads = names_and_codes(own["thread"])
        batch = place[kept] // len(workers) + rank * len(used)
        batch = batch * len(workers) + threads[kept]
        of_rank = np.full(len(kept), rank)
        kind = kinds_of(late)[kept]
        columns.append(np.array([stands_for, kind, batch, line, below, ids[kept], of_rank]))
    whole = np.concatenate(columns, axis=1)
    kind, batch, line, below, leaf, of_rank = whole[1:].astype(np.int64)
    none, names = np.zeros(len(kind), dtype=np.int64), (tuple(numbers), tuple(callees), ("",))
    return Samples(
        none, whole[0], kind, batch, line, below, leaf, of_rank, none, none, *names, trees, lost
    )
