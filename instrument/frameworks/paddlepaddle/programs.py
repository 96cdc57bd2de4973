"""Paddle's static graph: a program with an optimizer trains one step each time it runs."""

from __future__ import annotations

import functools
import logging
import weakref
from typing import Any

import paddle

from profkit.clock import now_ns
from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.shared import Function, call_first
from profkit.instrument.guard import Patches, guarded
from profkit.vocab import WHOLE_STEPS

log = logging.getLogger("profkit")

_OPTIMIZES = ("_create_optimization_pass", "_pir_create_optimization_pass")
"""Every optimizer adds itself to a program by these, in the older and newer representation."""


def hook_programs(patches: Patches, seams: Seams) -> None:
    """Record a step for each run of a program that trains.

    Such programs are known from the moment at which an optimizer was added to them. Others
    evaluate, or set initial values.
    """
    training: weakref.WeakSet[Any] = weakref.WeakSet()

    def note(optimizer: Any) -> None:
        if not paddle.in_dynamic_mode():
            training.add(paddle.static.default_main_program())

    def find_training(program: Any) -> bool:
        """Return true if the program trains, or the one that was compiled into it."""
        known = program
        if known is None:  # Paddle runs the default program then
            known = paddle.static.default_main_program()
        return bool(training) and getattr(known, "_program", known) in training

    is_training = guarded("static program", find_training, instead=False)
    report_once = functools.cache(functools.partial(_report_whole_steps, seams))
    for name in _OPTIMIZES:
        if hasattr(paddle.optimizer.Optimizer, name):
            patches.replace(
                paddle.optimizer.Optimizer, name, call_first(guarded("static program", note, None))
            )
    original: Function = paddle.static.Executor.run

    @functools.wraps(original)
    def run(self: Any, program: Any = None, feed: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not is_training(program) or not seams.begin_program("paddle"):
            return original(self, program, feed, *args, **kwargs)
        report_once()
        try:
            result = original(self, program, feed, *args, **kwargs)
        except BaseException:
            seams.end_program(0, failed=True)
            raise
        seams.end_program(seams.count_samples(feed) if feed else 0)
        return result

    patches.replace(paddle.static.Executor, "run", lambda _: run)


def _report_whole_steps(seams: Seams) -> None:
    log.warning(
        "profkit: this job trains a program of Paddle's static graph: "
        "its steps are recorded whole, and what is inside them stays unknown"
    )
    seams.samples((None, "framework", WHOLE_STEPS, now_ns(), 1.0))
