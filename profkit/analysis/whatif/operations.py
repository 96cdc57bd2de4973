"""Operations of a hybrid-parallel job: their types, and their places in the steps.

The types and their names are those of the StragglerAnalysis traces (OSDI 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.analysis.estimate import Ints
from profkit.errors import ProfkitError
from profkit.text import plural

FORWARD: Final = "forward-compute"
BACKWARD: Final = "backward-compute"
FORWARD_SEND: Final = "forward-send"
FORWARD_RECEIVE: Final = "forward-recv"
BACKWARD_SEND: Final = "backward-send"
BACKWARD_RECEIVE: Final = "backward-recv"
GATHER: Final = "params-all-gather"
SCATTER: Final = "grads-reduce-scatter"
SEPARATE: Final = "separate-grads-all-reduce"
LAYERNORM: Final = "layernorm-grads-all-reduce"
EMBEDDING: Final = "embedding-grads-all-reduce"
CLIP: Final = "optimizer-clip-main-grad"
OPTIMIZER: Final = "optimizer"
GARBAGE: Final = "gc"

COMPUTES: Final = (FORWARD, BACKWARD)
MESSAGES: Final = (FORWARD_SEND, FORWARD_RECEIVE, BACKWARD_SEND, BACKWARD_RECEIVE)
"""Operations between two neighbouring stages of a pipeline."""
DATA_PARALLEL: Final = (GATHER, SCATTER, SEPARATE)
"""Operations in which all data-parallel ranks of a stage take part."""
COMMUNICATES: Final = frozenset([*MESSAGES, *DATA_PARALLEL, LAYERNORM, EMBEDDING, CLIP])
"""Operations that send something; the others only compute."""
KINDS: Final = (*COMPUTES, *MESSAGES, *DATA_PARALLEL, LAYERNORM, EMBEDDING, CLIP, OPTIMIZER,
                GARBAGE)  # fmt: skip

MOST_EMPTY: Final = 50
"""If equal steps had this many times the operations that there are, the steps are not equal."""

NOWHERE: Final = -1
"""The microbatch or chunk of an operation that has none."""


class ReplayError(ProfkitError):
    """The recorded steps do not fit the model of a step, and the reason."""


@dataclass(frozen=True, eq=False)
class Operations:
    """Columns with one row for each operation of a rank in a step; times are in ns."""

    kinds: tuple[str, ...]
    """The names that `kind` counts."""
    kind: Ints
    rank: Ints
    data_rank: Ints
    stage: Ints
    step: Ints
    sequence: Ints
    """Counts the operations of a type on a rank in a step, by their start."""
    chunk: Ints
    """The part of the model, counted within the stage."""
    model_chunk: Ints
    """The part of the model, counted over all stages."""
    microbatch: Ints
    start: Ints
    duration: Ints

    @property
    def end(self) -> Ints:
        return self.start + self.duration


@dataclass(frozen=True, eq=False)
class Grid:
    """The operations of equal steps: `row` has the place of each in `Operations`.

    Its axes are the operation within a step, the step, and the data-parallel rank.
    """

    operations: Operations
    row: Ints
    steps: Ints
    data_ranks: Ints
    excluded: int
    """The number of steps that lack operations which most steps have, or have more."""

    @property
    def first(self) -> Ints:
        """The rows of the first step on the first data-parallel rank."""
        return np.asarray(self.row[:, 0, 0])


def key_of(operations: Operations) -> Ints:
    """Return a number for the stage, type and number within the step of each operation."""
    longest, deepest = operations.sequence.max() + 1, operations.stage.max() + 1
    key = (operations.kind * longest + operations.sequence) * deepest + operations.stage
    return np.asarray(key, dtype=np.int64)


def arrange(operations: Operations) -> Grid:
    """Arrange the operations of the steps that are alike on all data-parallel ranks.

    Operations of unknown types are ignored.
    """
    known = np.flatnonzero(np.isin(operations.kinds, KINDS)[operations.kind])
    if not len(known):
        raise ReplayError("there are no operations to replay")
    steps, step = np.unique(operations.step[known], return_inverse=True)
    data_ranks, place = np.unique(operations.data_rank[known], return_inverse=True)
    keys, node = np.unique(key_of(operations)[known], return_inverse=True)
    cells = len(keys) * len(steps) * len(data_ranks)
    if cells > MOST_EMPTY * len(known):
        raise ReplayError("most operations are in few steps: the steps have nothing in common")
    row = np.full((len(keys), len(steps), len(data_ranks)), -1, dtype=np.int64)
    row[node, step, place] = known
    if np.count_nonzero(row >= 0) != len(known):
        raise ReplayError(
            "several ranks of one stage and data-parallel rank have operations, such as those of "
            "a tensor-parallel group; keep one of them"
        )
    here = row >= 0
    alike = np.flatnonzero((here == here[:, :, :1]).all(axis=(0, 2)))
    if not len(alike):
        missing = plural(len(steps), "step")
        raise ReplayError(f"the data-parallel ranks differ in their operations in all {missing}")
    shapes, which, counts = np.unique(
        here[:, alike, 0], axis=1, return_inverse=True, return_counts=True
    )
    usual = int(np.argmax(counts))
    kept = alike[which.reshape(-1) == usual]
    chosen = row[shapes[:, usual]][:, kept]
    return Grid(operations, chosen, steps[kept], data_ranks, len(steps) - len(kept))
