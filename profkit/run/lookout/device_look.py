"""Check if the device makes progress while the loop stands still.

A thread that waits for the device spins, so its use of the processor says nothing. An event is
recorded behind what the job has launched. Until the device reaches it, the device is at work that
was launched before. A separate thread asks, because the driver may not answer. It ends after each
look, because it keeps the stream that it has selected.
"""

from __future__ import annotations

import threading

from profkit.clock import Clock, now_ns
from profkit.instrument.captures import relax_this_thread
from profkit.instrument.device import DeviceTimer
from profkit.instrument.guard import guarded
from profkit.instrument.rows import Event

ANSWER_S = 0.2
"""The lookout waits so long for an answer."""


class DeviceLook:
    """What was recorded behind the job's work, and since when the device has not reached it."""

    def __init__(self, clock: Clock = now_ns) -> None:
        self._clock = clock
        self._events: list[Event] = []
        self._since_ns = 0
        self._behind_s: float | None = None
        self._asker: threading.Thread | None = None

    def forget(self) -> None:
        """Begin anew: a step has ended."""
        self._events, self._behind_s = [], None

    def behind_s(self, timer: DeviceTimer | None) -> float | None:
        """Return for how long the device has been at what was launched before; `None` if unknown.

        Two looks are needed to see that the device makes no progress.
        """
        if timer is None:
            return None
        if self._asker is None or not self._asker.is_alive():
            ask = guarded("a look at the device", self._ask, None)
            self._asker = threading.Thread(
                target=ask, args=(timer,), name="profkit-device-look", daemon=True
            )
            self._asker.start()
        self._asker.join(ANSWER_S)
        return None if self._asker.is_alive() else self._behind_s

    def _ask(self, timer: DeviceTimer) -> None:
        relax_this_thread()
        have_passed = timer.have_passed(self._events)
        if not have_passed:
            behind_s = (self._clock() - self._since_ns) / 1e9
            self._behind_s = None if have_passed is None else behind_s
            return
        self._since_ns, self._events = self._clock(), timer.mark_streams()
        self._behind_s = 0.0 if self._events else None
