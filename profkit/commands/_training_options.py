"""The training options that `profkit trace` and `profkit bench` share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profkit.commands._options import whole

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--steps": {"type": whole(1), "metavar": "N", "help": "steps to train"},
    "--warmup": {
        "type": whole(0),
        "metavar": "N",
        "help": "steps to exclude from the figures",
    },
    "--image-size": {
        "type": whole(32, 4096),
        "metavar": "PX",
        "help": "image size, as the workload's publication names it",
    },
    "--workers": {
        "type": whole(0, 512),
        "metavar": "N",
        "help": "loader processes (DALI: threads) per rank; 0 loads in the training process",
    },
    "--channels-last": {"action": "store_true", "help": "images as NHWC in memory"},
    "--data": {
        "default": "generated",
        "metavar": "WHAT",
        "help": "'generated'; 'synthetic' for tensors without an input pipeline; or the folder of "
        "the real data set (default: %(default)s)",
    },
    "--seed": {
        "type": whole(0),
        "default": 0,
        "metavar": "N",
        "help": "seed of the training, and of the order of a benchmark's cells "
        "(default: %(default)s)",
    },
}


def add_training_options(group: Any, *names: str) -> None:
    """Declare these options."""
    for name in names:
        group.add_argument(name, **OPTIONS[name])
