"""First weights that both frameworks start from alike, so that their losses can be compared step by step."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

CLASSIFIER_SPREAD = 0.001


def draw_weight(
    name: str, shape: Sequence[int], seed: int, *, zero: str = "bias"
) -> npt.NDArray[np.float32]:
    """The weight of this name: it does not depend on the others, nor on the order in which a framework lists them.

    Kernels as He and others propose, by what goes out; a classifier's matrix (out, in) small; biases zero, and norms one
    unless their name ends in `zero`.
    """
    if len(shape) == 4:
        spread = math.sqrt(2 / (shape[0] * shape[2] * shape[3]))
    elif len(shape) == 2:
        spread = CLASSIFIER_SPREAD
    else:
        return np.full(shape, not name.endswith(("bias", zero)), dtype=np.float32)
    rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
    drawn: npt.NDArray[np.float32] = rng.standard_normal(shape, dtype=np.float32) * np.float32(
        spread
    )
    return drawn
