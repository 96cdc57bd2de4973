"""Random blocks of steps in which profkit is switched off, to measure in the run what it costs."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

WARM_UP = 12
WINDOW = 12
LENGTH = 2


def off_blocks(
    seed: int = 0, *, warm_up: int = WARM_UP, window: int = WINDOW, length: int = LENGTH
) -> Callable[[int], bool]:
    """Tells for each step whether it is measured: in each window of steps, one block at a random place is not.

    The same seed gives the same blocks, so that all ranks of a job are switched off together.
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
    """Never switched off."""
    return True
