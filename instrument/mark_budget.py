"""Has the phases of fewer steps timed where marks on the device would cost a job too much."""

from __future__ import annotations

from typing import Final, Protocol

from profkit.clock import Clock

MOST_NS: Final = 75_000
MOST_SHARE: Final = 0.01
"""What marks may take of a step on average: so long, or this share of it if that is longer.

The promise is 0.15 ms: half of it is left for hooks, and for the thread that reads the events.
"""

FEWEST_STEPS: Final = 64
"""The costs of so many steps are averaged, or of as many more as fewer are timed."""

RAREST: Final = 64
"""At least one in so many steps is timed."""


class Timed(Protocol):
    """The recorder whose steps are timed."""

    step_index: int

    def time_fewer(self, every: int) -> None: ...


class MarkBudget:
    """Compares what marks take with what they may. The writer's thread calls `look`.

    The number only grows, and in powers of two: the steps that the ranks of a job have in common
    are then those of the rank that times the fewest.
    """

    def __init__(self, recorder: Timed, price_ns: float, clock: Clock) -> None:
        self._recorder, self._price_ns, self._clock = recorder, price_ns, clock
        self._step, self._time_ns, self._marks = recorder.step_index, clock(), 0
        self._is_mixed = True  # marks of earlier steps are still to be read
        self.every = 1
        """One in so many blocks of steps is timed."""

    def look(self, marks: int) -> None:
        """Take the number of marks that were read since the beginning."""
        steps, now = self._recorder.step_index - self._step, self._clock()
        if steps < FEWEST_STEPS * self.every:
            return
        step_ns, made = (now - self._time_ns) / steps, (marks - self._marks) / steps
        self._step, self._time_ns, self._marks = self._recorder.step_index, now, marks
        if self._is_mixed:
            self._is_mixed = False
            return
        allowed_ns = max(MOST_NS, MOST_SHARE * step_ns)
        every = self.every
        while every < RAREST and self._price_ns * made * self.every / every > allowed_ns:
            every *= 2
        if every > self.every:
            self.every = every
            self._is_mixed = True  # some of the next steps are timed as before
            self._recorder.time_fewer(every)
