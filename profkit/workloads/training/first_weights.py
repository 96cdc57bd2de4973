"""First weights that are the same in both frameworks, so that losses can be compared."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

CLASSIFIER_SPREAD = 0.001
"""Standard deviation of a classifier's matrix: small, so that no class is preferred at first."""


def draw_weight(
    name: str, shape: Sequence[int], seed: int, *, zero: str = "bias"
) -> npt.NDArray[np.float32]:
    """Draw the weight of this name, which does not depend on other weights or their order.

    Kernels follow He et al. by their outputs; a classifier's matrix (out, in) is small. Biases are
    zero. Norms are one, unless their name ends in `zero`.
    """
    if len(shape) == 4:
        spread = math.sqrt(2 / (shape[0] * shape[2] * shape[3]))
    elif len(shape) == 2:
        spread = CLASSIFIER_SPREAD
    else:
        return np.full(shape, not name.endswith(("bias", zero)), dtype=np.float32)
    rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
    drawn: npt.NDArray[np.float32] = rng.standard_normal(shape, dtype=np.float32)
    drawn *= np.float32(spread)
    return drawn
