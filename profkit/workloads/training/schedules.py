"""Learning-rate schedules."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def step_decay(
    samples: int, global_batch: int, epochs: Sequence[int], factor: float = 0.1
) -> Callable[[int], float]:
    """Return the factor on the learning rate, which falls to a tenth at each of the epochs.

    An epoch has whole batches only.
    """
    steps_per_epoch = max(1, samples // global_batch)
    return lambda step: factor ** bisect.bisect_right(epochs, step // steps_per_epoch)


def planned_steps(config: Mapping[str, Any], samples: int) -> int:
    """Return the length of a schedule: the steps, or those of the epochs if they are more."""
    in_epochs: int = (config.get("epochs") or 0) * max(1, samples // config["global_batch_size"])
    return max(int(config["steps"]), in_epochs)
