"""The waits for functional collectives, whose handles only C++ has."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from profkit.instrument.collectives import Sent
from profkit.instrument.frameworks.pytorch.collectives import GroupCalls
from profkit.instrument.guard import Patches, guarded

_MODULE = "torch.distributed._functional_collectives"


def hook_functional(patches: Patches, calls: GroupCalls) -> None:
    """Time the waits for functional collectives, once the job has imported them."""
    hooked: list[bool] = []

    def look() -> None:
        module = sys.modules.get(_MODULE)
        if module is not None and not hooked:
            hooked.append(True)
            calls.before_async = None
            for name in ("wait_tensor", "wait_tensors"):
                if hasattr(module, name):
                    patches.replace(module, name, functools.partial(_wrap_wait, calls))

    calls.before_async = guarded("functional collectives", look, None)
    calls.before_async()


def _wrap_wait(calls: GroupCalls, original: Callable[..., Any]) -> Callable[..., Any]:
    in_flight, log = calls.in_flight, calls.log

    def find_unguarded(waited: Any) -> Sent | None:
        tensors = waited if isinstance(waited, list | tuple) else [waited]
        found = [in_flight.pop(tensor.data_ptr(), None) for tensor in tensors]
        return next(filter(None, found), None)

    find = guarded("functional collective", find_unguarded, None)
    end = guarded("functional collective", log.end_wait, None)
    is_compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def wait(waited: Any) -> Any:
        if is_compiling() or not in_flight:
            return original(waited)
        sent, start = find(waited), log.clock()
        result = original(waited)
        if sent is not None:
            end(sent, start)
        return result

    return wait
