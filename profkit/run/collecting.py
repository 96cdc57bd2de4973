"""What is collected beside the loop: what was chosen, and how it is started and ended in the process that trains.

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
COLLECT, WINDOWS, SOURCE, OPERATORS = (
    "PROFKIT_COLLECT",
    "PROFKIT_KERNELS",
    "PROFKIT_KERNELS_FROM",
    "PROFKIT_OPS",
)
PROFILER, CUPTI = SOURCES = ("profiler", "cupti")
"""What captures kernels: the framework's own profiler, or NVIDIA's library itself."""


@dataclass(frozen=True)
class Choice:
    """Which collectors run, and in which steps kernels are captured. Without a word, all collectors do that can, and no kernels are."""

    collectors: tuple[str, ...] | None = None
    windows: WindowPlan | None = None
    operators: bool = False
    source: str = PROFILER

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Choice:
        """What the environment says; what is wrong there is told and left out: a job is no place to end over it."""
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
        """What a user wrote; a `UsageError` for a name or a window that there is not."""
        names = tuple(name for name in (part.strip() for part in collect.split(",")) if name)
        known = (*COLLECTORS.names(), KERNELS, NOTHING) if names else ()
        for name in names:
            if name not in known:
                raise UsageError(
                    f"--collect: unknown collector '{safe_text(name)}'{did_you_mean(name, known)} (there are: {', '.join(sorted(known))})"
                )
        if source not in SOURCES:
            raise UsageError(
                f"--kernels-from: unknown source '{safe_text(source)}' (there are: {', '.join(SOURCES)})"
            )
        if operators and source == CUPTI:
            raise UsageError(
                "--ops: CUPTI knows no operators; leave out --kernels-from cupti, and the framework's profiler names them"
            )
        plan = WindowPlan.parse(windows or DEFAULT_PLAN) if windows or KERNELS in names else None
        return cls(
            tuple(name for name in names if name not in {KERNELS, NOTHING}) if names else None,
            plan,
            operators,
            source,
        )

    def is_measured(self, otherwise: Callable[[int], bool]) -> Callable[[int], bool]:
        """Whether a step's phases are timed: those of a window are, for its kernels are to have phases."""
        plan = self.windows
        return otherwise if plan is None else lambda step: plan.covers(step) or otherwise(step)


class Collecting:
    """The collectors and the windows of one rank; windows are there at once, collectors from `start` on.

    Nothing of it raises, and nothing of it waits for a collector.
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
        self._patches = Patches()
        self._capture: WindowCapture | None = None
        if choice.windows is not None and framework is not None:
            guarded("kernel windows", self._open_windows, None)(
                choice, recorder, framework, kernels, samples, device
            )
        self._choice = choice
        self._samples = samples
        self._pollers: Pollers | None = None

    def start(self) -> None:
        """Start the collectors. They load what they need: a job calls this on a thread of its own."""
        self._pollers = Pollers(
            list(usable_collectors(self._choice.collectors, self._samples)), self._samples
        )
        self._pollers.start()

    def stop(self) -> None:
        if self._pollers is not None:
            guarded("collectors", self._pollers.stop, None)()
        if self._capture is not None:
            guarded("kernel windows", self._capture.finish, None)()
        guarded("kernel windows", self._patches.undo, None)()

    def _open_windows(
        self,
        choice: Choice,
        recorder: Recorder,
        framework: Framework,
        kernels: Append,
        samples: Append,
        device: str,
    ) -> None:
        if choice.windows is None:
            return
        profiler = self._make_profiler(choice, framework)
        self._capture = WindowCapture(
            recorder,
            choice.windows,
            profiler,
            kernels,
            samples,
            read_rows=functools.partial(_read_rows, device),
        )

    def _make_profiler(self, choice: Choice, framework: Framework) -> KernelProfiler:
        if choice.source == PROFILER:
            return framework.kernel_profiler(self._patches, operators=choice.operators)
        from profkit.instrument.windows.cupti import CuptiKernels

        return CuptiKernels(functools.partial(framework.watch_profiler, self._patches))


def _read_rows(device: str, path: Path, window: Window) -> list[Row]:
    """Imported on the thread that reads, and only once there is something to read."""
    from profkit.importers.window_rows import read_rows

    return read_rows(path, window, device=device)


def usable_collectors(names: Sequence[str] | None, samples: Append) -> Iterator[Collector]:
    """Those that work here; of the others, one that was asked for is told of, and one that fails is in the data."""
    loaded, broken = COLLECTORS.load_all()
    for name, error in broken.items():
        _leave_out(name, f"cannot be loaded: {error}", samples)
    for name, collector in loaded.items():
        if names is not None and name not in names:
            continue
        try:
            why_not = collector.why_not()
        except Exception as error:  # noqa: BLE001  # a collector is a plug-in: it may fail in any way, and the run goes on without it
            _leave_out(name, f"cannot tell whether it works here: {error}", samples)
            continue
        if not why_not:
            yield collector
        elif names is not None:
            log.warning("profkit: the %s collector measures nothing: %s", name, why_not)


def _leave_out(name: str, why: str, samples: Append) -> None:
    log.warning("profkit: the %s collector %s", name, why)
    samples((None, "profkit", failure_metric(name), now_ns(), 1.0))
