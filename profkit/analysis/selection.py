"""Which steps the figures are about, and why the others are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profkit.analysis.estimate import Ints

WARM_UP = "warm-up"
EPOCH_START = "epoch start"
PARTIAL_BATCH = "partial batch"
KERNEL_WINDOW = "kernel window"
SWITCHED_OFF = "profkit switched off"
NOT_ON_ALL_RANKS = "not on all ranks"


NO_STEPS: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Selection:
    """The steps that are used, ascending, and how many were left out for each reason."""

    steps: Ints
    left_out: Mapping[str, int]
    which: Mapping[str, Ints] = field(default_factory=dict, compare=False)
    """The steps themselves that were left out for each reason."""

    @property
    def left_out_count(self) -> int:
        return sum(self.left_out.values())


def select_steps(steps: pa.Table, *, warm_up: int, windows: Ints = NO_STEPS) -> Selection:
    """The steady steps of a run: warm-up, epoch starts and partial batches stand apart.

    A step is judged over all its ranks, and has one reason: the first that applies in the order
    of this function. The first step of an epoch is slow where workers start, so it is never used;
    the first epoch's start lies in the warm-up. `windows` are the steps in which kernels were
    captured or captures read, on any rank: they are slower than the job's own.
    """
    index = steps["step"].to_numpy()
    numbers, position = np.unique(index, return_inverse=True)
    everywhere = _once_on_each_rank(steps["rank"].to_numpy(), position, len(numbers))
    off = _any(~steps["instrumented"].to_numpy(zero_copy_only=False), position, len(numbers))
    reasons = {
        WARM_UP: numbers < (numbers[0] if len(numbers) else 0) + warm_up,
        NOT_ON_ALL_RANKS: ~everywhere,
        SWITCHED_OFF: off,
        KERNEL_WINDOW: np.isin(numbers, windows),
        EPOCH_START: _epoch_starts(steps, numbers, position),
        PARTIAL_BATCH: _partial(steps["sample_count"].to_numpy(), position, everywhere),
    }
    used = np.ones(len(numbers), dtype=bool)
    which: dict[str, Ints] = {}
    for reason, applies in reasons.items():
        if (used & applies).any():
            which[reason] = numbers[used & applies]
        used &= ~applies
    return Selection(
        numbers[used], {reason: len(left_out) for reason, left_out in which.items()}, which
    )


def _any(flags: npt.NDArray[np.bool_], position: Ints, count: int) -> npt.NDArray[np.bool_]:
    return np.bincount(position, weights=flags, minlength=count) > 0


def _once_on_each_rank(rank: Ints, position: Ints, count: int) -> npt.NDArray[np.bool_]:
    """Whether each step has one row of every rank there is; a damaged trace may have two of one."""
    ranks, which = np.unique(rank, return_inverse=True)
    pairs = np.sort(position * len(ranks) + which)
    distinct = np.bincount(
        pairs[np.diff(pairs, prepend=-1) != 0] // max(1, len(ranks)), minlength=count
    )
    return np.asarray(
        (distinct == len(ranks)) & (np.bincount(position, minlength=count) == len(ranks))
    )


def _epoch_starts(steps: pa.Table, numbers: Ints, position: Ints) -> npt.NDArray[np.bool_]:
    epochs = np.full(len(numbers), -1, dtype=np.int64)
    np.maximum.at(epochs, position, steps["epoch"].fill_null(-1).to_numpy())
    starts = np.zeros(len(numbers), dtype=bool)
    starts[1:] = epochs[1:] != epochs[:-1]
    return starts


def _partial(
    samples: Ints, position: Ints, everywhere: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Steps with fewer samples than is usual: the number that most steps have; of two, the larger."""
    totals = np.bincount(position, weights=samples, minlength=len(everywhere))
    values, frequency = np.unique(-totals[everywhere], return_counts=True)
    usual = -values[np.argmax(frequency)] if len(values) else 0
    return totals < usual
