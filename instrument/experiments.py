"""The blocks of steps in which everything but one phase is slowed, and when they are.

A block shows what a faster phase would give: if all else takes twice as long, the job is one whose
phase is twice as fast, at half the pace. This module is the plan; `pacing.py` does the slowing.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from profkit.errors import UsageError
from profkit.instrument.blocks import WARM_UP
from profkit.text import did_you_mean, safe_text
from profkit.vocab import EXPERIMENT_PHASES, EXPERIMENT_SETTLES

ALL = "all"

LENGTH = 10
"""Steps of a block. The first ones settle: batches that were made before it are used up."""

SHARE = 0.02
"""The share of the steps that is in blocks. At half the pace they cost as much of the run."""

WINDOW = round(LENGTH / SHARE)
"""One block begins in each window of so many steps."""

OBSERVED = 8
"""Steps before a block in which the usual waits are noted."""


class Place(NamedTuple):
    """The block that a step is in or before: its phase, and whether it has begun."""

    phase: str
    slowed: bool


@dataclass(frozen=True)
class ExperimentPlan:
    """The phases that blocks are about. The same seed gives the same blocks on all ranks."""

    phases: tuple[str, ...]
    seed: int = 0
    named: frozenset[str] = frozenset()
    """The phases that were asked for by name, and not by `all`."""

    @classmethod
    def parse(cls, word: str, run: str = "") -> ExperimentPlan | None:
        """Return the plan of a list of phases, or of all; `None` if none was asked for."""
        names = tuple(dict.fromkeys(name.strip() for name in word.split(",") if name.strip()))
        if not names:
            return None
        known = (ALL, *EXPERIMENT_PHASES)
        for name in names:
            if name not in known:
                raise UsageError(
                    f"--experiment: unknown phase '{safe_text(name)}'{did_you_mean(name, known)} "
                    f"(there are: {', '.join(known)})"
                )
        phases = names
        if ALL in names:
            phases = tuple(EXPERIMENT_PHASES)
        return cls(phases, zlib.crc32(run.encode()), frozenset(names))

    def without(self, phases: frozenset[str]) -> ExperimentPlan:
        """Return the plan without phases that this job does not have."""
        kept = tuple(each for each in self.phases if each not in phases)
        return dataclasses.replace(self, phases=kept)

    @functools.cached_property
    def _find_block(self) -> Callable[[int], int]:
        def find_block(number: int) -> int:
            draw = random.Random(self.seed * 1_000_003 + number)
            return OBSERVED + draw.randrange(WINDOW - OBSERVED - LENGTH - EXPERIMENT_SETTLES)

        return functools.lru_cache(maxsize=2)(find_block)

    def is_usual(self, step: int) -> bool:
        """Return true for a step that neither is slowed nor follows one at once."""
        for back in range(EXPERIMENT_SETTLES + 1):
            place = self.place_of(step - back)
            if place is not None and place.slowed:
                return False
        return True

    def place_of(self, step: int) -> Place | None:
        """Return what happens in a step; `None` if it is like any other."""
        number, place = divmod(step - WARM_UP, WINDOW)
        if number < 0 or not self.phases:
            return None
        place -= self._find_block(number)
        if not -OBSERVED <= place < LENGTH:
            return None
        # Each round of windows has every phase once, in an order of its own.
        turn, which = divmod(number, len(self.phases))
        order = random.Random(self.seed * 7_919 + turn).sample(self.phases, len(self.phases))
        return Place(order[which], place >= 0)
