"""Random blocks of steps in which profkit is switched off, to measure its cost in the run."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

WARM_UP = 12
"""The first steps are all measured."""

WINDOW = 12
"""Of so many steps, one block is switched off."""

LENGTH = 2
"""A block has this many steps."""


def off_blocks(
    seed: int = 0, *, warm_up: int = WARM_UP, window: int = WINDOW, length: int = LENGTH
) -> Callable[[int], bool]:
    """Return a function that returns true for measured steps.

    In each window of steps, one block at a random place is not measured. The same seed gives the
    same blocks, so that all ranks of a job are switched off together.
    """

    @functools.lru_cache(maxsize=1)
    def find_block(number: int) -> int:
        return random.Random(seed * 1_000_003 + number).randrange(window - length + 1)

    def is_measured(step: int) -> bool:
        number, place = divmod(step - warm_up, window)
        if number < 0:
            return True
        start = find_block(number)
        return not start <= place < start + length

    return is_measured


def always(step: int) -> bool:
    """Return true for every step."""
    return True
