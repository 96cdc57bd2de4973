"""Choose collectors and kernel windows, and run them in the process that trains.

The choice travels in the environment, because ranks and jobs are processes of their own.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from profkit.attached import RUN_VARIABLE
from profkit.clock import now_ns
from profkit.collectors.base import Inside
from profkit.collectors.poller import Pollers, failure_metric
from profkit.errors import ProfkitError, UsageError
from profkit.instrument.experiments import ExperimentPlan
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.loading.watching import WorkerWatch
from profkit.instrument.pacing import Pacer, open_pacer
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append, Row
from profkit.instrument.windows.windows import (
    AskedSteps,
    KernelProfiler,
    Plan,
    Window,
    WindowCapture,
    WindowPlan,
)
from profkit.plugins import COLLECTORS
from profkit.run.capture_requests import find_requests, make_captures
from profkit.text import did_you_mean, safe_text
from profkit.vocab import CHANGES

if TYPE_CHECKING:
    from profkit.collectors.base import Collector
    from profkit.instrument.frameworks.base import Framework

log = logging.getLogger("profkit")

KERNELS = "kernels"
NOTHING = "none"
USUAL = "usual"
"""Stands for the collectors that run by default, as in `usual,stacks`."""

DEFAULT_PLAN = "every:100"
COLLECT = "PROFKIT_COLLECT"
WINDOWS = "PROFKIT_KERNELS"
STACKS = "PROFKIT_STACKS"
SOURCE = "PROFKIT_KERNELS_FROM"
OPERATORS = "PROFKIT_OPS"
ON_CHANGE = "PROFKIT_ON_CHANGE"
CAPTURE, CAPTURE_KERNELS, REPORT = CHANGE_CHOICES = ("capture", "kernels", "report")
"""When the step time changes, lines of two steps are captured, or kernels as well, or nothing."""

EXPERIMENT = "PROFKIT_EXPERIMENT"
PROFILER, CUPTI = SOURCES = ("profiler", "cupti")
"""Kernels are captured by the framework's own profiler, or by NVIDIA's library itself."""

LOOP, WORKERS = STACK_CHOICES = ("loop", "workers")
"""Stacks are sampled of the training thread, or of the loader's workers, too."""

SAMPLER = "stacks"
"""The collector that samples the training thread."""


@dataclass(frozen=True)
class Choice:
    """The collectors that run, and the steps in which kernels are captured.

    By default all collectors run that can, except those that only run if they are named, and no
    kernels are captured.
    """

    collectors: tuple[str, ...] | None = None
    windows: WindowPlan | None = None
    operators: bool = False
    source: str = PROFILER
    of_workers: bool = False
    """True if the stacks of the loader's workers are sampled."""
    on_change: str = CAPTURE
    """What is captured when `profkit run` asks for it."""
    experiment: ExperimentPlan | None = None
    """The blocks of steps that are slowed."""

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
                stacks=environ.get(STACKS, ""),
                on_change=environ.get(ON_CHANGE) or CAPTURE,
                experiment=environ.get(EXPERIMENT, ""),
                run=Path(environ.get(RUN_VARIABLE, "")).name,
            )
        except ProfkitError as error:
            log.warning("profkit: no collector runs: %s", error)
            return cls(())

    @classmethod
    def parse(
        cls,
        collect: str,
        windows: str,
        *,
        operators: bool,
        source: str = PROFILER,
        stacks: str = "",
        on_change: str = CAPTURE,
        experiment: str = "",
        run: str = "",
    ) -> Choice:
        """Return a user's choice; an unknown name or a wrong window is a `UsageError`."""
        names = [name.strip() for name in collect.split(",") if name.strip()]
        known = sorted((*COLLECTORS.names(), KERNELS, NOTHING, USUAL)) if names else []
        for name in names:
            if name not in known:
                raise UsageError(
                    f"--collect: unknown collector '{safe_text(name)}'{did_you_mean(name, known)} "
                    f"(there are: {', '.join(known)})"
                )
        for option, word, choices in (
            ("--stacks", stacks, ("", *STACK_CHOICES)),
            ("--on-change", on_change, CHANGE_CHOICES),
            ("--kernels-from", source, SOURCES),
        ):
            if word not in choices:
                known_words = ", ".join(filter(None, choices))
                raise UsageError(
                    f"{option}: unknown choice '{safe_text(word)}' (there are: {known_words})"
                )
        if stacks:
            names = [*(names or [USUAL]), SAMPLER]
        if operators and source == CUPTI:
            raise UsageError(
                "--ops: CUPTI knows no operators; leave out --kernels-from cupti, "
                "and the framework's profiler names them"
            )
        plan = None
        if windows or KERNELS in names:
            plan = WindowPlan.parse(windows or DEFAULT_PLAN)
        blocks = ExperimentPlan.parse(experiment, run)
        if plan is not None and blocks is not None:
            raise UsageError("--experiment: a capture slows steps too; leave out --kernels")
        collectors = None
        if names:
            collectors = tuple(name for name in names if name not in {KERNELS, NOTHING})
        return cls(
            collectors, plan, operators, source, stacks == WORKERS, on_change, experiment=blocks
        )

    @property
    def captures_changes(self) -> bool:
        names = self.collectors
        return self.on_change != REPORT and (names is None or USUAL in names or CHANGES in names)

    def watch_workers(self) -> WorkerWatch | None:
        """Return what has the loader's workers sampled; `None` if that was not asked for."""
        if not self.of_workers:
            return None
        from profkit.collectors._worker_stacks import sample_worker

        return WorkerWatch(sample_worker)

    def is_measured(self, otherwise: Callable[[int], bool]) -> Callable[[int], bool]:
        """Return a test for steps with timed phases; windows and blocks need those of theirs."""
        plan, blocks = self.windows, self.experiment
        if plan is not None:
            return lambda step: plan.covers(step) or otherwise(step)
        if blocks is not None:
            return lambda step: blocks.place_of(step) is not None or otherwise(step)
        return otherwise


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
        ranks: int = 1,
        rows: Mapping[str, list[Row]] = MappingProxyType({}),
    ) -> None:
        """Call this on the thread that trains."""
        self._choice = choice
        self._recorder, self._rows = recorder, rows
        self._thread = threading.get_ident(), recorder.nests.own.thread
        self._samples = samples
        self._patches = Patches()
        self._pollers: Pollers | None = None
        self._capture: WindowCapture | None = None
        self._requests = find_requests(os.environ) if choice.captures_changes else None
        self._asked = AskedSteps()
        plan: Plan | None = choice.windows
        if plan is None and self._requests is not None and choice.on_change == CAPTURE_KERNELS:
            plan = self._asked
        self._pacer: Pacer | None = None
        if choice.experiment is not None:
            name = framework.name if framework is not None else ""
            self._pacer = guarded("experiment", open_pacer, None)(
                recorder, samples, choice.experiment, self._thread[0], (name, device, ranks)
            )
        if plan is not None and framework is not None:
            self._capture = guarded("kernel windows", self._open_windows, None)(
                plan, recorder, framework, kernels, device
            )

    def start(self) -> None:
        """Start the collectors. They import what they need: a job calls this on a thread."""
        collectors = list(usable_collectors(self._choice.collectors, self._samples))
        if self._requests is None:
            collectors = [each for each in collectors if each.name != CHANGES]
        for collector in collectors:
            watch = getattr(collector, "watch", None)
            if watch is not None and "stacks" in self._rows:
                guarded(f"{collector.name} collector", watch, None)(self._inside())
        self._pollers = Pollers(collectors, self._samples)
        self._pollers.start()

    def stop(self) -> None:
        if self._pollers is not None:
            guarded("collectors", self._pollers.stop, None)()
        if self._pacer is not None:
            guarded("experiment", self._pacer.close, None)()
        if self._capture is not None:
            guarded("kernel windows", self._capture.finish, None)()
        guarded("kernel windows", self._patches.undo, None)()

    def _inside(self) -> Inside:
        recorder, captures = self._recorder, None
        if self._requests is not None:
            is_sampled = SAMPLER in (self._choice.collectors or ())
            captures = make_captures(
                self._requests, recorder, self._samples, self._asked, is_sampled=is_sampled
            )
        return Inside(
            *self._thread,
            lambda: recorder.measuring and not recorder.stopped,
            self._rows["stacks"].append,
            self._rows["frames"].append,
            captures,
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
            _exclude(name, f"cannot tell whether it works here: {error}", samples)
            continue
        if not why_not:
            yield collector
        elif names is not None and name in names:
            log.warning("profkit: the %s collector measures nothing: %s", name, why_not)


def _exclude(name: str, why: str, samples: Append) -> None:
    log.warning("profkit: the %s collector %s", name, why)
    samples((None, "profkit", failure_metric(name), now_ns(), 1.0))
