"""The hot path of collectives in C, if profkit was installed with a compiler."""

from __future__ import annotations

import sys
from typing import Any

import torch

from profkit.instrument import collectives
from profkit.instrument.frameworks.pytorch.collectives import MOST_OPEN, OPERATIONS, GroupCalls
from profkit.instrument.frameworks.pytorch.compiler import outside_compiler, set_eval_frame
from profkit.instrument.frameworks.pytorch.layout import LAYOUT
from profkit.instrument.guard import guarded, report_failure

MESSAGES = frozenset({"send", "recv"})


def compile_calls(calls: GroupCalls) -> Any:
    """Return the twin of these calls in C, or `None` if there is none."""
    if collectives.COMPILED is None:
        return None
    names: Any = getattr(torch._C._distributed_c10d, "HookOpName", None)  # noqa: SLF001  # as there
    numbered: dict[int, tuple[str, bool, bool, bool]] = {}
    for name, operation in OPERATIONS.items() if names is not None else ():
        if hasattr(names, name):
            numbered[int(getattr(names, name))] = (*operation, operation.op in MESSAGES)

    log = calls.log
    return collectives.COMPILED.Calls(
        calls=calls,
        layout=LAYOUT,
        modules=sys.modules,
        operations=numbered,
        follow=outside_compiler(guarded("collective followed", calls.follow, None)),
        end_wait=outside_compiler(guarded("collective waited for", log.end_wait, None)),
        report=report_failure,
        set_eval_frame=set_eval_frame,
        recorder=log.recorder,
        append=log.append,
        handles=log.handles,
        last=log.last,
        in_flight=calls.in_flight,
        dtypes=calls.dtypes,
        microbatches=calls.microbatches,
        clock=log.clock,
        most_open=MOST_OPEN,
    )
