"""Learning-rate schedules."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

from profkit.workloads.training.sampling import Length


def step_decay(
    length: Length, epochs: Sequence[int], factor: float = 0.1
) -> Callable[[int], float]:
    """Return the factor on the learning rate, which falls to a tenth at each of the epochs."""
    steps_per_epoch = max(1, length.steps_per_epoch)
    return lambda step: factor ** bisect.bisect_right(epochs, step // steps_per_epoch)
