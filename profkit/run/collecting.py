"""Choose collectors and kernel windows, and run them in the process that trains.

The choice travels in the environment, because ranks and jobs are processes of their own.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.clock import now_ns
from profkit.collectors.poller import Pollers, failure_metric
from profkit.errors import ProfkitError, UsageError
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append, Row
from profkit.instrument.windows.windows import KernelProfiler, Window, WindowCapture, WindowPlan
from profkit.plugins import COLLECTORS
from profkit.text import did_you_mean, safe_text

if TYPE_CHECKING:
    from profkit.collectors.base import Collector
    from profkit.instrument.frameworks.base import Framework

log = logging.getLogger("profkit")

KERNELS = "kernels"
NOTHING = "none"
DEFAULT_PLAN = "every:100"
COLLECT = "PROFKIT_COLLECT"
WINDOWS = "PROFKIT_KERNELS"
SOURCE = "PROFKIT_KERNELS_FROM"
OPERATORS = "PROFKIT_OPS"
PROFILER, CUPTI = SOURCES = ("profiler", "cupti")
"""Kernels are captured by the framework's own profiler, or by NVIDIA's library itself."""


@dataclass(frozen=True)
class Choice:
    """The collectors that run, and the steps in which kernels are captured.

    By default all collectors run that can, and no kernels are captured.
    """

    collectors: tuple[str, ...] | None = None
    windows: WindowPlan | None = None
    operators: bool = False
    source: str = PROFILER

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Choice:
        """Return the choice in the environment; a wrong one is logged, and the job continues."""
        try:
            operators = environ.get(OPERATORS, "0").lower() in {"1", "true", "yes", "on"}
            return cls.parse(
                environ.get(COLLECT, ""),
                environ.get(WINDOWS, ""),
                operators=operators,
                source=environ.get(SOURCE) or PROFILER,
            )
        except ProfkitError as error:
            log.warning("profkit: nothing is collected beside the loop: %s", error)
            return cls(())

    @classmethod
    def parse(
        cls, collect: str, windows: str, *, operators: bool, source: str = PROFILER
    ) -> Choice:
        """Return a user's choice; an unknown name or a wrong window is a `UsageError`."""
        names = [name.strip() for name in collect.split(",") if name.strip()]
        known = sorted((*COLLECTORS.names(), KERNELS, NOTHING)) if names else []
        for name in names:
            if name not in known:
                raise UsageError(
                    f"--collect: unknown collector '{safe_text(name)}'{did_you_mean(name, known)} "
                    f"(there are: {', '.join(known)})"
                )
        if source not in SOURCES:
            raise UsageError(
                f"--kernels-from: unknown source '{safe_text(source)}' "
                f"(there are: {', '.join(SOURCES)})"
            )
        if operators and source == CUPTI:
            raise UsageError(
                "--ops: CUPTI knows no operators; leave out --kernels-from cupti, "
                "and the framework's profiler names them"
            )
        plan = None
        if windows or KERNELS in names:
            plan = WindowPlan.parse(windows or DEFAULT_PLAN)
        collectors = None
        if names:
            collectors = tuple(name for name in names if name not in {KERNELS, NOTHING})
        return cls(collectors, plan, operators, source)

    def is_measured(self, otherwise: Callable[[int], bool]) -> Callable[[int], bool]:
        """Return a test for steps with timed phases; a window's kernels need its steps' phases."""
        plan = self.windows
        if plan is None:
            return otherwise
        return lambda step: plan.covers(step) or otherwise(step)


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
    ) -> None:
        self._choice = choice
        self._samples = samples
        self._patches = Patches()
        self._pollers: Pollers | None = None
        self._capture: WindowCapture | None = None
        if choice.windows is not None and framework is not None:
            self._capture = guarded("kernel windows", self._open_windows, None)(
                choice.windows, recorder, framework, kernels, device
            )

    def start(self) -> None:
        """Start the collectors. They import what they need: a job calls this on a thread."""
        collectors = usable_collectors(self._choice.collectors, self._samples)
        self._pollers = Pollers(list(collectors), self._samples)
        self._pollers.start()

    def stop(self) -> None:
        if self._pollers is not None:
            guarded("collectors", self._pollers.stop, None)()
        if self._capture is not None:
            guarded("kernel windows", self._capture.finish, None)()
        guarded("kernel windows", self._patches.undo, None)()

    def _open_windows(
        self,
        plan: WindowPlan,
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


def _read_rows(device: str, path: Path, window: Window) -> list[Row]:
    """Import the reader on the thread that reads, once there is something to read."""
    from profkit.importers.window_rows import read_rows

    return read_rows(path, window, device=device)


def usable_collectors(names: Sequence[str] | None, samples: Append) -> Iterator[Collector]:
    """Yield the chosen collectors that work here.

    One that was named and cannot measure is logged. One that fails is in the data, too.
    """
    loaded, broken = COLLECTORS.load_all()
    for name, error in broken.items():
        _exclude(name, f"cannot be loaded: {error}", samples)
    for name, collector in loaded.items():
        if names is not None and name not in names:
            continue
        try:
            why_not = collector.why_not()
        except Exception as error:  # noqa: BLE001  # a plug-in may fail in any way
            _exclude(name, f"cannot tell whether it works here: {error}", samples)
            continue
        if not why_not:
            yield collector
        elif names is not None:
            log.warning("profkit: the %s collector measures nothing: %s", name, why_not)


def _exclude(name: str, why: str, samples: Append) -> None:
    log.warning("profkit: the %s collector %s", name, why)
    samples((None, "profkit", failure_metric(name), now_ns(), 1.0))
