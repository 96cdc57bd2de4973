"""Lines of the user's code in the processes of a data loader's workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.doing import number_doings
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


@dataclass(frozen=True)
class WorkerLines:
    """The lines that the workers ran in the used steps, longest first.

    `step_ns` is the time of all workers of a rank per step of the training, whether they work or
    wait.
    """

    workers: int
    samples: int
    lost: int
    step_ns: float
    lines: tuple[LineTime, ...]
    folder: str

    @property
    def judged(self) -> bool:
        return self.samples >= FEWEST_SAMPLES


def view_workers(
    stacks: pa.Table, frames: pa.Table, steps: pa.Table, used: Ints
) -> WorkerLines | None:
    """Return the lines of all workers; `None` if none was sampled in the used steps."""
    if not times_of(stacks).any() or not len(used):  # a damaged file may hold zeros
        return None
    samples = read_samples_of_workers(stacks, frames, steps, used)
    count = len(samples.kind)
    if not count:
        return None
    workers = 0
    for rank in samples.trees:
        workers += len(pc.unique(rows_of_rank(stacks, rank)["thread"]))
    step_ns = float(samples.weight.sum()) / len(used) / len(samples.trees)
    lines: tuple[LineTime, ...] = ()
    if count >= FEWEST_SAMPLES:
        lines, _ = time_lines(samples, np.arange(count), step_ns)
    files = sorted({each.place.file for each in lines if each.place.line})
    return WorkerLines(workers, count, samples.lost, step_ns, lines, common_folder(files))


def read_samples_of_workers(
    stacks: pa.Table, frames: pa.Table, steps: pa.Table, used: Ints
) -> Samples:
    """Join the workers' samples with steps and lines. Those of one batch have one step."""
    numbers: dict[Place, int] = {Place(HELD, 0, ""): HELD_PLACE}
    callees: dict[str, int] = {"": 0}
    columns: list[Floats] = []
    trees = {}
    lost = 0
    doings: dict[str, int] = {}
    for rank in np.unique(stacks["rank"].to_numpy()).tolist():
        own = rows_of_rank(stacks, rank)
        late = own["late_ns"].to_numpy()
        place = find_steps(own["time_ns"].to_numpy() - late, rows_of_rank(steps, rank), used)
        ids = own["stack"].fill_null(-1).to_numpy().astype(np.int64)
        tree = trees[rank] = FrameTree(rows_of_rank(frames, rank))
        known = (ids >= 0) & (ids < len(tree))
        lost += int(np.count_nonzero(~known & (place >= 0)))
        kept = np.flatnonzero(known & (place >= 0))
        line, below = name_leaves(tree.name_in_worker, ids[kept], numbers, callees)
        stands_for = times_of(own)[kept]
        # While the job waits for its workers, each makes a batch in as many steps as there are
        # workers. Its samples of one batch depend on each other.
        names, threads = names_and_codes(own["thread"])
        batch = place[kept] // len(np.unique(threads)) + rank * len(used)
        batch = batch * len(names) + threads[kept]
        of_rank = np.full(len(kept), rank)
        kind = kinds_of(late)[kept]
        doing = number_doings(own, doings)[kept]
        columns.append(np.array([stands_for, kind, batch, line, below, ids[kept], of_rank, doing]))
    whole = np.concatenate(columns, axis=1)
    kind, batch, line, below, leaf, of_rank, doing = whole[1:].astype(np.int64)
    none = np.zeros(len(kind), dtype=np.int64)
    return Samples(
        none, whole[0], kind, batch, line, below, leaf, of_rank, none, doing,
        tuple(numbers), tuple(callees), tuple(doings), trees, lost,
    )  # fmt: skip
