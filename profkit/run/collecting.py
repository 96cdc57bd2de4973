"""Run the chosen collectors and kernel windows in the process that trains."""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from profkit.clock import now_ns
from profkit.collectors.base import Inside
from profkit.collectors.poller import Pollers, failure
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append, EventRow, Row
from profkit.instrument.windows.automatic import AutomaticWindows, is_traced
from profkit.instrument.windows.windows import (
    KernelProfiler,
    Plan,
    Window,
    WindowCapture,
    WindowPlan,
)
from profkit.plugins import COLLECTORS
from profkit.run.choosing import PROFILER, USUAL, Choice
from profkit.vocab import EventKind

if TYPE_CHECKING:
    from profkit.collectors.base import Collector
    from profkit.instrument.frameworks.base import Framework

log = logging.getLogger("profkit")


class Collecting:
    """The collectors and the kernel windows of one rank.

    Windows are open at once, collectors run from `start` on. Nothing of it raises, and nothing
    waits for a collector.
    """

    def __init__(
        self,
        choice: Choice,
        recorder: Recorder,
        framework: Framework | None,
        kernels: Append,
        samples: Append,
        *,
        device: str = "",
        rows: Mapping[str, list[Row]] = MappingProxyType({}),
        needs_lines: Callable[[], bool] = lambda: False,
        memory: Any = None,
        is_first: bool = True,
    ) -> None:
        """Call this on the thread that trains."""
        self._needs_lines = needs_lines
        self._choice = choice
        self._recorder, self._rows = recorder, rows
        self.native_id = threading.get_native_id()
        self.thread = threading.get_ident(), recorder.nests.own.thread
        self._samples, self._device = samples, device
        self._events: Append = rows["events"].append if "events" in rows else lambda row: None
        self._patches = Patches()
        self._pollers: Pollers | None = None
        self._captures: list[WindowCapture | AutomaticWindows | None] = []
        self._automatic: AutomaticWindows | None = None
        if choice.windows is not None and framework is not None:
            open_windows = guarded("kernel windows", self._open_windows, None)
            capture = open_windows(choice.windows, recorder, framework, kernels, device)
            self._captures.append(capture)
        elif choice.rarely and framework is not None and is_first and device not in {"", "cpu"}:
            open_rarely = guarded("kernel windows", self._open_rarely, None)
            self._automatic = open_rarely(recorder, framework, kernels, device)
            self._captures.append(self._automatic)
        if choice.counted is not None and framework is not None:
            open_counter = guarded("counting of operations", self._open_counter, None)
            self._captures.append(open_counter(choice.counted, framework))
        if choice.memory is not None:
            open_memory = guarded("memory", self._open_memory, None)
            self._captures.append(open_memory(choice.memory, memory))

    def start(self) -> None:
        """Start the collectors. They import what they need: a job calls this on a thread."""
        collectors = list(usable_collectors(self._choice.collectors, self._events))
        for collector in collectors:
            watch = getattr(collector, "watch", None)
            if watch is not None and "stacks" in self._rows:
                guarded(f"{collector.name} collector", watch, None)(self._inside())
        self._pollers = Pollers(collectors, self._samples, self._events)
        self._pollers.start()
        if self._automatic is not None:
            self._automatic.start()

    def stop(self) -> None:
        if self._pollers is not None:
            guarded("collectors", self._pollers.stop, None)()
        for capture in self._captures:
            if capture is not None:
                guarded("kernel windows", capture.finish, None)()
        guarded("kernel windows", self._patches.undo, None)()

    def _inside(self) -> Inside:
        recorder = self._recorder
        return Inside(
            *self.thread,
            lambda: recorder.measuring and not recorder.stopped,
            self._rows["stacks"].append,
            self._rows["frames"].append,
            self._needs_lines,
            self._device,
        )

    def _open_windows(
        self,
        plan: Plan,
        recorder: Recorder,
        framework: Framework,
        kernels: Append,
        device: str,
    ) -> WindowCapture:
        profiler: KernelProfiler
        if self._choice.source == PROFILER:
            profiler = framework.kernel_profiler(self._patches, operators=self._choice.operators)
        else:
            from profkit.instrument.windows.cupti import CuptiKernels

            profiler = CuptiKernels(functools.partial(framework.watch_profiler, self._patches))
        read_rows = functools.partial(_read_rows, device)
        return WindowCapture(recorder, plan, profiler, kernels, self._samples, read_rows=read_rows)

    def _open_rarely(
        self, recorder: Recorder, framework: Framework, kernels: Append, device: str
    ) -> AutomaticWindows | None:
        """Return windows that open by themselves, if they would leave the job as it was."""
        if is_traced():
            return None
        profiler = framework.kernel_profiler(self._patches, operators=True)
        may_open = getattr(profiler, "leaves_nothing", None)
        if may_open is None:
            return None
        read_rows = functools.partial(_read_rows, device)

        def make(plan: Plan) -> WindowCapture:
            return WindowCapture(
                recorder,
                plan,
                profiler,
                kernels,
                self._samples,
                read_rows=read_rows,
                is_called=False,
            )

        return AutomaticWindows(recorder, make, may_open)

    def _open_counter(self, plan: Plan, framework: Framework) -> WindowCapture | None:
        found = framework.operation_counter(self._events)
        if found is None:
            what = f"operations of a step: they are counted with torch, not with {framework.name}"
            self._events(EventRow(None, now_ns(), EventKind.UNMEASURED, what))
            return None
        # Its rows are samples. It needs no spans, which belong to a window of kernels next to it.
        samples, recorder = self._samples, self._recorder
        return WindowCapture(
            recorder, plan, found[0], samples, samples, read_rows=found[1], copies_spans=False
        )

    def _open_memory(self, plan: WindowPlan, memory: Any) -> WindowCapture | None:
        def note(why: str) -> None:
            what = f"memory in a window of steps: {why}"
            self._events(EventRow(None, now_ns(), EventKind.UNMEASURED, what))

        if memory is None or not memory.is_known:
            note("only torch's allocator of a device has a history")
            return None
        memory.note = note
        if plan.start == 0:  # it records already, and ends behind the first step that is followed
            plan = dataclasses.replace(plan, length=max(2, plan.length))
        samples, rows = self._samples, memory.read_rows
        return WindowCapture(
            self._recorder, plan, memory, samples, samples, read_rows=rows, copies_spans=False
        )


def _read_rows(device: str, path: Path, window: Window) -> list[Row]:
    """Import the reader on the thread that reads, once there is something to read."""
    from profkit.importers.window_rows import read_rows

    return read_rows(path, window, device=device)


def usable_collectors(names: Sequence[str] | None, events: Append) -> Iterator[Collector]:
    """Yield the chosen collectors that work here.

    One that was named and cannot measure is logged. One that fails is in the data, too.
    """
    loaded, broken = COLLECTORS.load_all()
    for name, error in broken.items():
        _exclude(name, f"cannot be loaded: {error}", events)
    for name, collector in loaded.items():
        is_usual = not getattr(collector, "on_request", False)
        if names is None:
            is_chosen = is_usual
        else:
            is_chosen = name in names or (is_usual and USUAL in names)
        if not is_chosen:
            continue
        try:
            why_not = collector.why_not()
        except Exception as error:  # noqa: BLE001  # a plug-in may fail in any way
            _exclude(name, f"cannot tell whether it works here: {error}", events)
            continue
        if not why_not:
            yield collector
        elif names is not None and name in names:
            log.warning("profkit: the %s collector measures nothing: %s", name, why_not)


def _exclude(name: str, why: str, events: Append) -> None:
    log.warning("profkit: the %s collector %s", name, why)
    events(failure(name, now_ns()))
