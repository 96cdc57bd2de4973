"""Windows of steps in which a profiler captures kernels, so that a long run stays cheap.

A window opens and closes between two steps. The time that this costs belongs to no step. The
capture is read on a thread. The window's steps, and those that ran while the thread read, are
reported, so that figures of speed exclude them.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from profkit.clock import Anchor, Clock, now_ns, read_anchor
from profkit.errors import UsageError
from profkit.instrument.guard import guarded, report_failure
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append, Row
from profkit.instrument.windows.module_calls import ModuleCall
from profkit.vocab import KERNELS, WINDOW_BORDER, WINDOW_READING, WINDOW_STEP

LONGEST_WAIT_S = 20.0
"""The end of a job waits this long for its last window to be read."""

KERNELS_OPTION: Final = "--kernels"
"""The option of windows of kernels, which can be switched off."""

_PLAN = re.compile(
    r"(?:(?P<start>\d{1,9}):(?P<stop>\d{1,9})|every:(?P<period>\d{1,9})(?::(?P<length>\d{1,9}))?)"
)


@dataclass(frozen=True)
class WindowPlan:
    """The steps that are captured.

    `20:23` captures 20, 21 and 22. `every:100` captures one step in a hundred, `every:100:3` three.
    """

    start: int
    length: int
    period: int = 0

    def covers(self, step: int) -> bool:
        if self.period:
            return step >= self.period and step % self.period < self.length
        return self.start <= step < self.start + self.length

    @classmethod
    def parse(cls, text: str, option: str = KERNELS_OPTION) -> WindowPlan:
        """Return the plan that a user wrote; anything else is a `UsageError`."""
        found = _PLAN.fullmatch(text.strip())
        if found is None:
            raise UsageError(
                f"{option} {text!a}: write FIRST:END for one window of steps, END not included, "
                f"or every:N[:LENGTH]{', or off' * (option == KERNELS_OPTION)}"
            )
        if found["period"]:
            period, length = int(found["period"]), int(found["length"] or 1)
            if not 0 < length < period:
                raise UsageError(
                    f"{option} {text!a}: a window of {length} steps must be shorter "
                    f"than its period of {period}"
                )
            return cls(period, length, period)
        start, stop = int(found["start"]), int(found["stop"])
        if stop <= start:
            raise UsageError(f"{option} {text!a}: the window ends before it begins")
        return cls(start, stop - start)


class Plan(Protocol):
    """The steps that are captured; it is asked at the beginning of each step."""

    def covers(self, step: int) -> bool:
        """Return true for a step that is captured."""


class KernelProfiler(Protocol):
    """A framework's own profiler; both methods are called on the thread that trains."""

    module_calls: Sequence[ModuleCall]
    """The calls of modules in the last capture, if they are known."""

    def start(self) -> bool:
        """Begin to capture; return false if the job profiles itself now."""

    def stop(self) -> Callable[[Path], None] | None:
        """End the capture; return a function that writes it as Chrome JSON, if there is one."""


@dataclass
class Window:
    """One capture: its steps' boundaries on the host's clock, and the spans of its steps."""

    anchor: Anchor
    first_step: int
    borders: list[int]
    spans: list[Row]
    calls: Sequence[ModuleCall] = ()


ReadRows = Callable[[Path, Window], list[Row]]
"""Turns a capture into rows of `kernels`."""


class WindowCapture:
    """Opens and closes windows by a plan, at the beginning of steps."""

    def __init__(
        self,
        recorder: Recorder,
        plan: Plan,
        profiler: KernelProfiler,
        kernels: Append,
        samples: Append,
        *,
        read_rows: ReadRows,
        clock: Clock = now_ns,
        copies_spans: bool = True,
        is_called: bool = True,
    ) -> None:
        """Have the recorder call this between steps, unless `is_called` is false."""
        self._recorder = recorder
        self._others = recorder.at_border if is_called else None
        self._copies_spans = copies_spans
        self._plan = plan
        self._profiler = profiler
        self._kernels = kernels
        self._samples = samples
        self._read_rows = read_rows
        self._clock = clock
        self._window: Window | None = None
        self._reader: threading.Thread | None = None
        self._broken = False
        self.border_ns = 0
        """The time that windows took to open and to close."""
        if is_called:
            recorder.at_border = guarded("kernel windows", self.at_border, None)

    def at_border(self, step: int) -> None:
        """Open or close a window as the step of this number begins; the recorder calls this."""
        if self._others is not None:
            self._others(step)
        if self._window is not None:
            self._window.borders.append(self._clock())
        inside = self._plan.covers(step) and not self._broken
        if inside and self._window is None:
            self._open(step)
        elif self._window is not None and not inside:
            self._close()
        if self.is_busy:
            self._samples((None, KERNELS, WINDOW_STEP, self._clock(), float(step)))

    @property
    def is_busy(self) -> bool:
        """True while a window is open or is being read."""
        is_reading = self._reader is not None and self._reader.is_alive()
        return self._window is not None or is_reading

    def finish(self) -> None:
        """Close the open window, and wait until the last capture has been read."""
        self._recorder.at_border = None
        if self._window is not None:
            self._close()
        if self._reader is not None:
            self._reader.join(LONGEST_WAIT_S)

    def _open(self, step: int) -> None:
        began = self._clock()
        try:
            started = self._profiler.start()
        except Exception:
            self._broken = True  # a profiler that failed once is not used again
            raise
        if started:
            self._window = Window(read_anchor(), step, [], [])
            if self._copies_spans:
                self._recorder.span_copies = self._window.spans
        self._exclude(began)
        if self._window is not None:
            self._window.borders.append(self._clock())

    def _close(self) -> None:
        began = self._clock()
        window, self._window = self._window, None
        if self._copies_spans:
            self._recorder.span_copies = None
        try:
            save = self._profiler.stop()
        except Exception:
            self._broken = True
            raise
        if save is not None and window is not None:
            window.calls = self._profiler.module_calls
            self._reader = threading.Thread(
                target=self._read,
                args=(save, window, self._reader),
                name="profkit-kernels",
                daemon=True,
            )
            self._reader.start()
        self._exclude(began)

    def _exclude(self, began: int) -> None:
        """Count the time since `began` as the window's own; it belongs to no step."""
        now = self._clock()
        self.border_ns += now - began
        self._samples((None, KERNELS, WINDOW_BORDER, now, float(now - began)))
        self._recorder.begin(now)

    def _read(
        self, save: Callable[[Path], None], window: Window, before: threading.Thread | None
    ) -> None:
        """Read one capture, after the thread that reads the one before it."""
        if before is not None:
            before.join()
        # A TemporaryDirectory would be removed when the interpreter begins to end.
        folder = Path(tempfile.mkdtemp(prefix="profkit-kernels-"))
        try:
            path = folder / "window.json"
            save(path)
            for row in self._read_rows(path, window):
                self._kernels(row)
        except Exception as error:  # noqa: BLE001  # the window is lost, the job continues
            report_failure("the reading of a kernel window", error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._samples((None, KERNELS, WINDOW_READING, self._clock(), float(time.thread_time_ns())))
