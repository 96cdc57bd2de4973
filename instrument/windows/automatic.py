"""Windows that open by themselves, so rarely that a job loses a thousandth of its time.

A thread asks now and then if a window is due. Only then the recorder calls this between steps, for
the few steps of the window: short steps are not settled one by one in between.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Final

from profkit.clock import Clock, now_ns
from profkit.instrument.captures import CAPTURES, Captures
from profkit.instrument.guard import guarded
from profkit.instrument.recorder import Recorder
from profkit.instrument.windows.windows import Plan, WindowCapture

STEPS: Final = 2
LARGEST_SHARE: Final = 0.001
FIRST_COST_NS: Final = 600_000_000
"""What the first window is expected to cost, as on an H200 (`traces/recorded-h200-images-kernels`):
113 ms to open and close it, and 451 ms in four slower steps."""

RARER: Final = 2
"""The next window comes at this multiple of the time of the last one: its rows need disk."""

COMPARED: Final = 21
"""The usual length is the median of so many steps before the window."""

LONGEST_STEP_NS: Final = 3_000_000_000
"""Longer steps have so many kernels that their capture takes much memory."""

LOOK_EVERY_S: Final = 30.0

OTHER_TOOLS: Final = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "KINETO_USE_DAEMON")
"""Variables of a process that nsys, ncu or a daemon of Kineto may trace: CUPTI has one user."""


def is_traced(environ: Mapping[str, str] = os.environ) -> bool:
    """Return true if another tool may use CUPTI in this process."""
    return any(environ.get(name) for name in OTHER_TOOLS)


class AutomaticWindows:
    """The plan of these windows, and what they have cost.

    `look` is called by a thread, all else by the one that trains.
    """

    def __init__(
        self,
        recorder: Recorder,
        make_capture: Callable[[Plan], WindowCapture],
        may_open: Callable[[], bool],
        *,
        clock: Clock = now_ns,
        captures: Captures = CAPTURES,
    ) -> None:
        self._recorder, self._clock = recorder, clock
        self._may_open, self._captures = may_open, captures
        self._began = clock()
        self._capture = make_capture(self)
        self._others: Callable[[int], object] | None = None
        self._is_armed = False
        self._before: list[int] = []
        self._first: int | None = None
        self._slower_ns = 0
        self._borders_ns = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.spent_ns = 0
        """The time that the loop has lost to windows, as measured on its own clock."""
        self.due_ns = round(FIRST_COST_NS / LARGEST_SHARE)
        """The time since the beginning at which the next window may open."""

    def start(self) -> None:
        """Ask from a thread from now on."""
        look = guarded("kernel windows", self.look, None)

        def watch() -> None:
            while not self._stopped.wait(LOOK_EVERY_S):
                look()

        self._thread = threading.Thread(target=watch, name="profkit-windows", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Open no more windows, and wait until an open one is closed and read."""
        self._stopped.set()
        self._disarm()
        self._capture.finish()

    def look(self) -> None:
        """Have the recorder call this between steps if a window is due and may open."""
        is_due = self._clock() - self._began >= self.due_ns
        if is_due and not self._is_armed and not self._captures.have_been and self._may_open():
            self._is_armed = True
            self._others = self._recorder.at_border
            self._recorder.at_border = guarded("kernel windows", self._at_border, None)

    def covers(self, step: int) -> bool:
        """Return true for the steps of the window."""
        if self._first is None and len(self._before) >= COMPARED:
            recorder, last = self._recorder, step + STEPS - 1
            usual = sorted(self._before)[COMPARED // 2]
            if usual > LONGEST_STEP_NS or self._captures.have_been or not self._may_open():
                self._disarm()
            elif recorder.measures(step) and recorder.measures(last):
                self._first = step
        return self._first is not None and step < self._first + STEPS

    def _at_border(self, step: int) -> None:
        if self._others is not None:
            self._others(step)
        length = self._recorder.last_step_ns
        if self._first is None:
            self._before = [*self._before, length][-COMPARED:]
        else:
            usual = sorted(self._before)[COMPARED // 2]
            self._slower_ns += max(0, length - usual)
        self._capture.at_border(step)
        if self._first is not None and not self._capture.is_busy:
            self._settle()

    def _settle(self) -> None:
        """Add up what the window has cost, and decide when the next one comes."""
        border_ns, self._borders_ns = self._borders_ns, self._capture.border_ns
        cost_ns = self._borders_ns - border_ns + self._slower_ns
        self.spent_ns += cost_ns
        elapsed = self._clock() - self._began
        self.due_ns = max(elapsed * RARER, round((self.spent_ns + cost_ns) / LARGEST_SHARE))
        self._disarm()

    def _disarm(self) -> None:
        if self._is_armed:
            self._recorder.at_border = self._others
        self._is_armed, self._first, self._slower_ns, self._before = False, None, 0, []
