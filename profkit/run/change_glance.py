"""Glances at the newest steps of a running job: is a look at all of them worth its time?"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

from profkit.analysis.change_points import SHORT_PART, usual_medians
from profkit.analysis.estimate import Floats
from profkit.trace.pulse import PulseTail

POSSIBLE_SPREADS = 3.0
"""From so many spreads on, steps may have changed; `usual_medians` takes more for sure."""


class Seems(IntEnum):
    """What the newest steps look like."""

    USUAL = 0
    POSSIBLY_CHANGED = 1
    """Chance brings it about now and then."""
    CHANGED = 2


class Glance:
    """Compares the median of a rank's newest steps with the usual ones.

    It takes a tenth of the time of a look, so it can be made every half second. A look finds
    smaller changes, and what the median does not show.
    """

    def __init__(self, folder: Path) -> None:
        self._tail = PulseTail(folder)
        self._newest: deque[int] = deque(maxlen=SHORT_PART)
        self._usual: tuple[float, float] | None = None
        self._likely: tuple[float, float] | None = None
        """The range of most of the medians, within that of the usual ones."""

    @property
    def knows_usual(self) -> bool:
        """Return true if a look has seen enough steps to compare others with."""
        return self._usual is not None

    def learn(self, lengths_ns: Floats) -> None:
        """Take these steps for the usual ones."""
        self._usual = usual_medians(lengths_ns)
        self._likely = usual_medians(lengths_ns, spreads=POSSIBLE_SPREADS)
        self._newest.clear()
        self._tail.read()

    def look(self) -> Seems:
        """Read the newest steps, and compare them with the usual ones."""
        self._newest.extend(self._tail.read())
        return self.judge(self._newest)

    def judge(self, newest_ns: Sequence[float]) -> Seems:
        """Compare the newest steps with the usual ones."""
        if self._usual is None or self._likely is None or len(newest_ns) < SHORT_PART:
            return Seems.USUAL
        median_ns = sorted(newest_ns)[len(newest_ns) // 2]
        if not self._usual[0] <= median_ns <= self._usual[1]:
            return Seems.CHANGED
        if not self._likely[0] <= median_ns <= self._likely[1]:
            return Seems.POSSIBLY_CHANGED
        return Seems.USUAL
