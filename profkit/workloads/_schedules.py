"""How learning rates go down over a training."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence


def step_decay(samples: int, global_batch: int, epochs: Sequence[int], factor: float = 0.1) -> Callable[[int], float]:
    """The factor on the learning rate at a step, which falls to a tenth at each of the epochs; partial batches are dropped."""
    steps_per_epoch = max(1, samples // global_batch)
    return lambda step: factor ** bisect.bisect_right(epochs, step // steps_per_epoch)
