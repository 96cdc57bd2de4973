"""Random blocks of control steps (recording off), which show the cost of profkit."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

WARM_UP = 12
"""The first steps are all measured."""

WINDOW = 12
"""One in this many steps begins a block of control steps."""

LENGTH = 2
"""A block has this many steps."""


def off_blocks(
    seed: int = 0, *, warm_up: int = WARM_UP, window: int = WINDOW, length: int = LENGTH
) -> Callable[[int], bool]:
    """Return a function that returns true for measured steps, and false for control steps.

    In each window of steps, one block at a random place is not measured. The same seed gives the
    same blocks, so that all ranks of a job have their control steps together.
    """
    find_block = functools.lru_cache(maxsize=1)(
        lambda number: random.Random(seed * 1_000_003 + number).randrange(window - length + 1)
    )

    def is_measured(step: int) -> bool:
        number, place = divmod(step - warm_up, window)
        if number < 0:
            return True
        start = find_block(number)
        return not start <= place < start + length

    return is_measured
