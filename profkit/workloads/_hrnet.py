"""What the two versions of HRNetW18 share: its sizes, and its first weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

STEM = 64
BOTTLENECKS = 4
CHANNELS = (18, 36, 72, 144)
"""Of the branches at 1/4, 1/8, 1/16 and 1/32 of the image's resolution."""

MODULES = (1, 4, 3)
"""How often stages of two, three and four branches exchange what they found. The first stage has one branch, and nothing to exchange."""

BLOCKS = 4
"""Residual blocks in each branch before an exchange."""

PUBLISHED_PARAMETERS = 9.7e6


class FirstWeights:
    """Draws weights that both frameworks start from alike, so that their losses can be compared step by step.

    Kernels are drawn as He and others propose; biases are zero, and the weights of norms are one.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def draw(self, name: str, shape: Sequence[int]) -> npt.NDArray[np.float32]:
        if len(shape) == 4:
            spread = math.sqrt(2 / math.prod(shape[1:]))
            return (self._rng.standard_normal(shape) * spread).astype(np.float32)
        return np.full(shape, not name.endswith("bias"), dtype=np.float32)
