"""The blocks of an experiment that a long run keeps, whole and with the steps around them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from profkit.analysis.device_clock import Bools
from profkit.analysis.estimate import Ints
from profkit.analysis.slowed import slowed_steps
from profkit.trace.sampled import step_levels
from profkit.vocab import EXPERIMENT_SETTLES

AROUND = 16
"""So many steps on either side of a block are kept with it."""

_MORE_LEVELS = 3
"""Blocks are kept 2^3 times as often as other steps: they are few."""


class KeptBlocks:
    """Chooses whole blocks by their first step, so that all ranks choose the same.

    A block that is not kept leaves neither marks nor steps: a slowed step without its mark would
    count as one of the job's own.
    """

    def __init__(self) -> None:
        self._kept: dict[int, bool] = {}
        """The slowed steps, and whether their block is kept."""

    def add(self, samples: pa.Table, level: int) -> None:
        """Add the marks of slowed steps; their blocks are those of this level, or a lower one."""
        for steps in slowed_steps(samples).values():
            levels = step_levels(steps)
            for step, own in zip(steps.tolist(), levels.tolist(), strict=True):
                is_kept = self._kept.get(step - 1, own >= level - _MORE_LEVELS)
                self._kept.setdefault(step, is_kept)

    def keeps(self, step: float) -> bool:
        """Return whether the mark of a step is kept."""
        return self._kept.get(int(step), False)

    def unlike(self, steps: Ints) -> Bools:
        """Return which steps were slowed, or still have what slowed ones left."""
        return self._is_near(steps, after=EXPERIMENT_SETTLES)

    def beside(self, steps: Ints) -> Bools:
        """Return which steps belong to a kept block, or are near one."""
        return self._is_near(steps, before=AROUND, after=AROUND, of=(True,))

    def dropped(self, steps: Ints) -> Bools:
        """Return which steps belong to a block that is not kept."""
        return self._is_near(steps, after=EXPERIMENT_SETTLES, of=(False,))

    def forget(self, last: int) -> None:
        """Forget the slowed steps that are near no step after the last one."""
        first = last - AROUND - 1
        self._kept = {step: kept for step, kept in self._kept.items() if step > first}

    def _is_near(
        self, steps: Ints, *, before: int = 0, after: int, of: tuple[bool, ...] = (True, False)
    ) -> Bools:
        slowed = [step for step, is_kept in self._kept.items() if is_kept in of]
        near = np.array(slowed, dtype=np.int64)[:, None] + np.arange(-before, after + 1)
        return np.isin(steps, near)
