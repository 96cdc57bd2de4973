"""Lines of two steps, now and then and after a change; then kernels, on a device."""

from __future__ import annotations

import random
from collections.abc import Iterator

from profkit.clock import Clock, now_ns
from profkit.collectors._thread_stacks import LAST_S, can_look, look, wait_until
from profkit.collectors.base import Captures, Inside, Reading
from profkit.collectors.stacks import NOTHING, FrameTable

LOOK_EVERY_S = 0.5
"""Requests come from another process, by a file."""

STEPS, MOST_STEPS = 2, 10
"""Steps of a capture; more if they are so short that two hold too few samples."""

ENOUGH_SAMPLES = 480
"""A phase that is a sixteenth of a step has 30 of them, enough to name a line.

If Python that holds the interpreter can only be seen every 5 ms, it has a few.
"""

SAMPLES_PER_STEP = 120
SHORTEST_GAP_S, LONGEST_GAP_S = 0.0005, 0.05
"""The wait between two samples. The shorter one takes a few per cent of a processor."""

MOST_CAPTURES = 20
"""Captures of one process, whatever is asked for."""

REFERENCE_STEP = 40
"""From here on two steps are captured without a request, to compare later ones with them."""

REFERENCE_AFTER, REFERENCE_GROWTH = 100, 1 / 4
"""The next capture without a request comes after so many steps, or this share of all steps until
then, if that is more.

So even a change that no search noticed during the run has captured steps on both sides.
"""

KERNELS_AFTER = 2
"""Kernels are captured so many steps later: profilers make lines slower."""


class ChangeCapture:
    """Samples the training thread in a few steps, now and then and on request.

    Samples are as dense as a step needs. The steps are marked, because they may be slower.
    """

    name = "changes"
    interval_s = LOOK_EVERY_S
    ahead_s = LAST_S

    def __init__(self, clock: Clock = now_ns) -> None:
        self._clock = clock
        self._random = random.Random()  # the job's own generator must not move
        self._inside: Inside | None = None
        self._frames = FrameTable(lambda row: None)
        self._seen = self._done = self._due_ns = self._begun_ns = 0
        self._first: int | None = None
        """The first step of the capture that goes on."""
        self._marked: set[int] = set()
        self._missed = -1
        """A step that had begun before it was seen."""
        self._wait_s = 0.0
        self._samples = 0
        self._with_kernels = False
        self._reference_at = REFERENCE_STEP
        """The step from which on a capture is due without a request."""
        self._told = -1

    def why_not(self) -> str:
        if can_look():
            return ""
        return "this Python does not show the stacks of its threads; it needs CPython"

    def watch(self, inside: Inside) -> None:
        """Follow this thread, and store its lines in these tables."""
        self._frames = FrameTable(inside.frames)
        self._seen = self._done = 0
        self._first, self._reference_at = None, REFERENCE_STEP
        self._inside = inside

    def close(self) -> None:
        self._inside = None

    def wait_s(self) -> float:
        """Return the time to the next look; within a capture, to the next sample."""
        inside = self._inside
        if self._first is None or inside is None or inside.captures is None:
            return LOOK_EVERY_S
        self._wait_s = self._gap_s(inside.captures) * self._random.uniform(0.5, 1.5)
        self._due_ns = self._clock() + int(self._wait_s * 1e9)
        return self._wait_s

    def read(self) -> Iterator[Reading]:
        """Look for a request, or store a sample of the capture that goes on."""
        inside = self._inside
        if inside is not None and inside.captures is not None:
            if self._first is None:
                self._look(inside.captures)
            else:
                self._sample(inside, inside.captures, self._first)
        if self._done != self._told:
            self._told = self._done
            yield Reading("captures_count", self._done)

    def _look(self, captures: Captures) -> None:
        """Begin a capture if one was asked for since the last look, or a reference is due.

        The first capture of kernels may stop the job for seconds, so references have none.
        """
        step = captures.step()[0]
        self._with_kernels = False
        try:
            asked = captures.requests.stat().st_size
        except OSError:  # nothing was asked for yet
            asked = 0
        if asked > self._seen and self._done < MOST_CAPTURES:
            self._seen, self._done, self._with_kernels = asked, self._done + 1, True
        elif step < self._reference_at:
            return
        self._reference_at = step + max(REFERENCE_AFTER, int(REFERENCE_GROWTH * step))
        if captures.is_sampled:
            self._ask_for_kernels(captures, step)
            return
        self._first, self._samples, self._due_ns = step + 1, 0, 0
        self._begun_ns, self._wait_s, self._missed = self._clock(), 0.0, -1
        self._marked.clear()

    def _sample(self, inside: Inside, captures: Captures, first: int) -> None:
        step = captures.step()[0]
        if step in self._marked and inside.is_recording():
            seen = look(inside.thread, self._due_ns, self._clock)
        else:
            wait_until(self._due_ns, self._clock)
            seen = None
        step, now = captures.step()[0], self._clock()
        if step < first or step == self._missed or not inside.is_recording():
            return
        if step not in self._marked:  # this sample was due in the step before
            is_full = self._samples >= ENOUGH_SAMPLES or step >= first + MOST_STEPS
            if step >= first + STEPS and is_full:
                self._first = None
                self._ask_for_kernels(captures, step)
                return
            self._begun_ns = now
            if self._wait_s > 2 * LONGEST_GAP_S:  # the step before hung for a while
                self._missed = step
                return
            self._marked.add(step)
            captures.mark(step)
            return
        stack = self._frames.store(seen.places) if seen else NOTHING
        if seen and stack != NOTHING:
            every_ns = int(self._gap_s(captures) * 1e9) + seen.longer_ns
            inside.stacks((seen.time_ns, seen.late_ns, every_ns, inside.thread_name, stack))
            self._samples += 1

    def _ask_for_kernels(self, captures: Captures, step: int) -> None:
        if self._with_kernels:
            captures.kernels_from(step + KERNELS_AFTER)

    def _gap_s(self, captures: Captures) -> float:
        """Return the mean time between two samples; in a step that hangs it grows."""
        step_s = captures.step()[1] / 1e9
        gap_s = min(LONGEST_GAP_S, max(SHORTEST_GAP_S, step_s / SAMPLES_PER_STEP))
        longer_s = (self._clock() - self._begun_ns) / 1e9 - step_s
        return max(gap_s, min(LOOK_EVERY_S, longer_s / SAMPLES_PER_STEP))


COLLECTOR = ChangeCapture()
