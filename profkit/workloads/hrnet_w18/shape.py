"""What the two versions of HRNetW18 share: its sizes, and its first weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from profkit.workloads.training.first_weights import draw_weight

STEM = 64
BOTTLENECKS = 4
CHANNELS = (18, 36, 72, 144)
"""Of the branches at 1/4, 1/8, 1/16 and 1/32 of the image's resolution."""

MODULES = (1, 4, 3)
"""How often stages of two, three and four branches exchange what they found. The first stage has one branch, and nothing to exchange."""

BLOCKS = 4
"""Residual blocks in each branch before an exchange."""

PUBLISHED_PARAMETERS = 9.7e6
"""As Paddle counts them: with the norms' running statistics."""

CLASSIFIER = "head.1.weight"


def first_weight(name: str, shape: Sequence[int], seed: int) -> npt.NDArray[np.float32]:
    """As the other systems start; the last convolution is a classifier, and starts small."""
    return draw_weight(name, shape[:2] if name == CLASSIFIER else shape, seed).reshape(shape)
