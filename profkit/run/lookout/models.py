"""Tells a model that is trained from one that is evaluated."""

from __future__ import annotations

from typing import Any

MOST_WRAPPERS = 4
"""Modules around a model: those of DDP, of a compiler, of a library."""


def count_training(model: Any) -> int:
    """Return how many of a model and of what it wraps are in training mode.

    `model.module.eval()` changes the model alone, and DDP's module around it stays in that mode.
    """
    count = int(bool(getattr(model, "training", False)))
    for _ in range(MOST_WRAPPERS):
        # By the class, because a job may give this name to a list of its own.
        inner = list(getattr(type(model), "children", lambda _: ())(model))
        if len(inner) != 1:
            break
        model = inner[0]
        count += bool(getattr(model, "training", False))
    return count
