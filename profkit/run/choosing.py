"""The user's choice of collectors and kernel windows.

It travels in the environment, because ranks and jobs are processes of their own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from profkit.errors import ProfkitError, UsageError
from profkit.instrument.windows.windows import WindowPlan
from profkit.plugins import COLLECTORS
from profkit.text import did_you_mean, safe_text

log = logging.getLogger("profkit")

KERNELS = "kernels"
NOTHING = "none"
USUAL = "usual"
"""Stands for the collectors that run by default, as in `usual,nvml`."""

DEFAULT_PLAN = "every:100"
NO_WINDOWS = "off"
COLLECT = "PROFKIT_COLLECT"
WINDOWS = "PROFKIT_KERNELS"
LINES = "PROFKIT_LINES"
SOURCE = "PROFKIT_KERNELS_FROM"
OPERATORS = "PROFKIT_OPS"
COUNTED = "PROFKIT_OPERATIONS"
MEMORY = "PROFKIT_MEMORY"

PROFILER, CUPTI = SOURCES = ("profiler", "cupti")
"""Kernels are captured by the framework's own profiler, or by NVIDIA's library itself."""

ON, OFF = LINE_CHOICES = ("on", "off")
"""Whether the lines that run are sampled, in the loop and in the loader's workers."""

SAMPLER = "stacks"
"""The collector that samples the training thread where no other process may."""


def _check_word(option: str, word: str, choices: tuple[str, ...]) -> None:
    if word not in choices:
        known_words = ", ".join(choices)
        raise UsageError(f"{option}: unknown choice '{safe_text(word)}' (there are: {known_words})")


@dataclass(frozen=True)
class Choice:
    """The collectors that run, and the steps in which kernels are captured.

    By default all collectors run that can, except those that only run if they are named, and
    kernels are captured rarely, on a device.
    """

    collectors: tuple[str, ...] | None = None
    windows: WindowPlan | None = None
    operators: bool = False
    source: str = PROFILER
    lines: bool = True
    counted: WindowPlan | None = None
    """The steps whose operations are counted."""
    memory: WindowPlan | None = None
    """The steps in which the history of the device's memory is recorded."""
    rarely: bool = False
    """True if windows open by themselves on a device."""

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
                lines=environ.get(LINES) or ON,
                counted=environ.get(COUNTED, ""),
                memory=environ.get(MEMORY, ""),
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
        lines: str = ON,
        counted: str = "",
        memory: str = "",
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
        _check_word("--lines", lines, LINE_CHOICES)
        _check_word("--kernels-from", source, SOURCES)
        rarely = not windows and (not names or USUAL in names) and KERNELS not in names
        if lines == ON and SAMPLER not in names:
            names = [*(names or [USUAL]), SAMPLER]
        if operators and source == CUPTI:
            raise UsageError(
                "--ops: CUPTI knows no operators; leave out --kernels-from cupti, "
                "and the framework's profiler names them"
            )
        plan = None
        if windows == NO_WINDOWS:
            windows = ""
        elif windows or KERNELS in names:
            plan = WindowPlan.parse(windows or DEFAULT_PLAN)
        others: list[WindowPlan | None] = []
        for option, text, what in (
            ("--operations", counted, "counting"),
            ("--memory", memory, "recording"),
        ):
            other = WindowPlan.parse(text, option) if text else None
            if plan is not None and other is not None and plan.covers(other.start):
                raise UsageError(
                    f"{option}: kernels are captured in step {other.start}, and the {what} "
                    "makes it slower: name another step"
                )
            others.append(other)
        chosen = tuple(name for name in names if name not in {KERNELS, NOTHING})
        wanted = chosen if names else None
        count_plan, memory_plan = others
        is_on = lines == ON
        return cls(wanted, plan, operators, source, is_on, count_plan, memory_plan, rarely)

    def is_measured(self, otherwise: Callable[[int], bool]) -> Callable[[int], bool]:
        """Return a test for steps with timed phases; windows need those of theirs."""
        plan = self.windows
        if plan is None:
            return otherwise
        return lambda step: plan.covers(step) or otherwise(step)
