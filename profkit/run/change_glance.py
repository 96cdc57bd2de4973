"""Glances at the newest steps of a running job: is a look at all of them worth its time?"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from profkit.analysis.change_points import SHORT_PART, usual_medians
from profkit.analysis.estimate import Floats
from profkit.trace.pulse import PulseTail


class Glance:
    """Compares the median of a rank's newest steps with the usual ones.

    It takes a tenth of the time of a look, so it can be made every half second. A look finds
    smaller changes, and what the median does not show.
    """

    def __init__(self, folder: Path) -> None:
        self._tail = PulseTail(folder)
        self._newest: deque[int] = deque(maxlen=SHORT_PART)
        self._usual: tuple[float, float] | None = None

    @property
    def knows_usual(self) -> bool:
        """Return true if a look has seen enough steps to compare others with."""
        return self._usual is not None

    def learn(self, lengths_ns: Floats) -> None:
        """Take these steps for the usual ones."""
        self._usual = usual_medians(lengths_ns)
        self._newest.clear()
        self._tail.read()

    def differs(self) -> bool:
        """Return true if the newest steps are unlike the usual ones."""
        self._newest.extend(self._tail.read())
        if self._usual is None or len(self._newest) < SHORT_PART:
            return False
        least, most = self._usual
        return not least <= sorted(self._newest)[SHORT_PART // 2] <= most
