"""Requests to capture two steps, from the process that started the job to its ranks.

A file in the run's folder grows by one byte with each request. Ranks look at its length.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from profkit.attached import RUN_VARIABLE
from profkit.clock import now_ns
from profkit.collectors.base import Captures
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append
from profkit.instrument.windows.windows import AskedSteps
from profkit.vocab import CAPTURE_REQUESTS, CAPTURED_STEP, CHANGES

MOST_PER_HOUR, MOST_PER_RUN = 4, 12
"""A job whose speed changes all the time must not be captured all the time."""

HOUR_S = 3_600.0


class CaptureRequests:
    """Asks the ranks of a run to capture their next steps, within bounds."""

    def __init__(self, run: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = run / CAPTURE_REQUESTS
        self._clock = clock
        self._asked_s: deque[float] = deque(maxlen=MOST_PER_HOUR)
        self._asked = 0

    def ask(self) -> bool:
        """Ask all ranks for a capture; return false if that would be too many."""
        now_s = self._clock()
        is_often = len(self._asked_s) == MOST_PER_HOUR and now_s - self._asked_s[0] < HOUR_S
        if is_often or self._asked >= MOST_PER_RUN:
            return False
        with self._path.open("ab") as file:
            file.write(b".")
        self._asked_s.append(now_s)
        self._asked += 1
        return True


def find_requests(environ: Mapping[str, str]) -> Path | None:
    """Return the file with the requests; `None` if `profkit run` did not start this process."""
    run = environ.get(RUN_VARIABLE)
    return Path(run) / CAPTURE_REQUESTS if run else None


def make_captures(
    requests: Path, recorder: Recorder, samples: Append, asked: AskedSteps, *, is_sampled: bool
) -> Captures:
    """Return what the collector of captures needs of this rank's loop."""
    return Captures(
        requests,
        lambda: (recorder.step_now, recorder.last_step_ns),
        lambda step: samples((None, CHANGES, CAPTURED_STEP, now_ns(), float(step))),
        asked.begin_at,
        is_sampled,
    )
