"""Functional collectives: the waits for them, and before torch 2.15 their beginning.

C++ starts them, and only C++ has their handles.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from profkit.instrument.collectives import HERE
from profkit.instrument.frameworks.pytorch.collectives import GroupCalls
from profkit.instrument.frameworks.pytorch.groups import Watched, describe_group
from profkit.instrument.frameworks.pytorch.operations import OPERATIONS, Operation
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.sent import Sent

_MODULE = "torch.distributed._functional_collectives"

_GATHER = Operation("all_gather", is_part=True)

STARTS: Final[Mapping[str, Operation]] = {
    "all_gather_into_tensor_coalesced": _GATHER,
    "all_gather_single": _GATHER,
    "all_gather_single_coalesced": _GATHER,
    "all_gather_tensor": _GATHER,
    "all_reduce": OPERATIONS["ALLREDUCE"],
    "all_reduce_coalesced": OPERATIONS["ALLREDUCE"],
    "all_to_all_single": OPERATIONS["ALLTOALL"],
    "broadcast": OPERATIONS["BROADCAST"],
    "reduce_scatter_single": OPERATIONS["REDUCE_SCATTER"],
    "reduce_scatter_single_coalesced": OPERATIONS["REDUCE_SCATTER"],
    "reduce_scatter_tensor": OPERATIONS["REDUCE_SCATTER"],
    "reduce_scatter_tensor_coalesced": OPERATIONS["REDUCE_SCATTER"],
}
"""The functions that start a collective; those with gradients have `_autograd` behind the name."""


def hook_functional(patches: Patches, calls: GroupCalls, *, starts: bool) -> Callable[[], None]:
    """Return a function that hooks functional collectives once the job has imported them.

    With `starts`, no hook of process groups sees them begin.
    """
    hooked: list[bool] = []
    groups: weakref.WeakKeyDictionary[Any, Watched | None] = weakref.WeakKeyDictionary()

    def look() -> None:
        module = sys.modules.get(_MODULE)
        if hooked or not hasattr(module, "wait_tensor"):  # it may be only half imported
            return
        hooked.append(True)
        calls.by_address = True
        for name in ("wait_tensor", "wait_tensors"):
            if hasattr(module, name):
                patches.replace(module, name, functools.partial(_wrap_wait, calls))
        for name, operation in STARTS.items() if starts else ():
            for function in (name, f"{name}_autograd"):
                if hasattr(module, function):
                    wrap = functools.partial(_wrap_start, calls, groups, operation)
                    patches.replace(module, function, wrap)

    return guarded("functional collectives", look, None)


def hook_first_group(patches: Patches, look: Callable[[], None]) -> None:
    """Call `look` when the job makes a process group, which is before it compiles its model.

    Compiled code depends on the functions that it calls: it is compiled again if one is replaced.
    """
    c10d: Any = torch.distributed.distributed_c10d
    look = guarded("process group", look, None)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def register(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            look()
            return result

        return register

    if hasattr(c10d, "_register_process_group"):
        patches.replace(c10d, "_register_process_group", wrap)


def _wrap_start(
    calls: GroupCalls,
    groups: weakref.WeakKeyDictionary[Any, Watched | None],
    operation: Operation,
    original: Callable[..., Any],
) -> Callable[..., Any]:
    signature = inspect.signature(original)
    first = next(iter(signature.parameters))

    def begin_unguarded(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sent | None:
        given = signature.bind(*args, **kwargs).arguments
        module: Any = sys.modules[_MODULE]
        name = module._resolve_group_name(given["group"], given.get("tag", ""))  # noqa: SLF001
        c10d: Any = torch.distributed.distributed_c10d
        group = c10d._resolve_process_group(name)  # noqa: SLF001  # neither has a public name
        if group not in groups:
            groups[group] = describe_group(group)
        watched = groups[group]
        tensors = given[first] if isinstance(given[first], list | tuple) else [given[first]]
        return None if watched is None else calls.begin(watched, operation, tensors, -1)

    def finish_unguarded(sent: Sent, result: Any) -> None:
        tensor = result[0] if isinstance(result, list | tuple) else result
        inner = getattr(tensor, "elem", None)
        if inner is None:
            calls.log.end(sent, waited=True)
            return
        sent.ends_with_wait = True
        calls.in_flight[inner.data_ptr()] = sent

    begin = guarded("functional collective", begin_unguarded, None)
    finish = guarded("functional collective", finish_unguarded, None)
    is_compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def start(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or HERE.inside:
            return original(*args, **kwargs)
        sent = begin(args, kwargs)
        HERE.inside = True  # some of these functions call each other
        try:
            result = original(*args, **kwargs)
        finally:
            HERE.inside = False
        if sent is not None:
            finish(sent, result)
        return result

    return start


def _wrap_wait(calls: GroupCalls, original: Callable[..., Any]) -> Callable[..., Any]:
    in_flight, log = calls.in_flight, calls.log

    def find_unguarded(waited: Any) -> Sent | None:
        tensors = waited if isinstance(waited, list | tuple) else [waited]
        for tensor in tensors:
            sent = in_flight.pop(tensor.data_ptr(), None)
            if sent is not None and not sent.is_over:
                return sent
        return None

    find = guarded("functional collective", find_unguarded, None)
    end = guarded("functional collective", log.end_wait, None)
    is_compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not in_flight:
            return original(*args, **kwargs)
        sent, start = find(*args, *kwargs.values()), log.clock()
        result = original(*args, **kwargs)
        if sent is not None:
            end(sent, start)
        return result

    return wait
