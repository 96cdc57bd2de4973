"""How learning rates go down over a training."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def step_decay(
    samples: int, global_batch: int, epochs: Sequence[int], factor: float = 0.1
) -> Callable[[int], float]:
    """The factor on the learning rate at a step, which falls to a tenth at each of the epochs; partial batches are dropped."""
    steps_per_epoch = max(1, samples // global_batch)
    return lambda step: factor ** bisect.bisect_right(epochs, step // steps_per_epoch)


def planned_steps(config: Mapping[str, Any], samples: int) -> int:
    """What a schedule over the whole run goes by: the steps, or those of the epochs where these are more."""
    in_epochs: int = (config.get("epochs") or 0) * max(1, samples // config["global_batch_size"])
    return max(int(config["steps"]), in_epochs)
