"""The steps that a long run keeps in full: blocks of successive steps at random places.

Every rank keeps the same ones, because the choice depends on the step's number alone. The steps of
a level are among those of each lower level, and half as many.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

BLOCK: Final = 16
"""Successive steps that are kept together, so that a step can be compared with its neighbours."""

_MOST_LEVEL: Final = 40
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


def step_levels(steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the level of each step's block.

    Of 2^n neighbouring blocks, one has level n or more. A hash draws which one, because a regular
    choice could follow a regular pattern of the job.
    """
    block = np.maximum(steps, 0).astype(np.uint64) // np.uint64(BLOCK)
    level = np.zeros(len(block), dtype=np.int64)
    is_drawn = np.ones(len(block), dtype=bool)
    for height in range(_MOST_LEVEL):
        pair = block >> np.uint64(height + 1)
        drawn = (pair + np.uint64(height + 1)) * _MIX
        drawn = (drawn ^ (drawn >> np.uint64(29))) * _MIX
        side = (block >> np.uint64(height)) & np.uint64(1)
        is_drawn &= side == drawn >> np.uint64(63)
        if not is_drawn.any():
            break
        level += is_drawn
    return level
