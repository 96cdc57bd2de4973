"""The functions of `torch.distributed`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from profkit.instrument.collectives import QUIET, Call, CallLog, Dialect, Group, Message, Sent
from profkit.instrument.frameworks.pytorch.compiler import outside_compiler, skip_code
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.models import MOST_MODELS

BLOCKING = frozenset({"gloo", "mpi"})
"""Backends whose collectives have ended when the call returns, unless it is asynchronous."""

_CALLS = {
    "all_reduce": Call("all_reduce", "tensor"),
    "broadcast": Call("broadcast", "tensor"),
    "reduce": Call("reduce", "tensor"),
    "all_gather": Call("all_gather", "tensor", is_part=True),
    "all_gather_into_tensor": Call("all_gather", "output_tensor"),
    "all_gather_single": Call("all_gather", "output_tensor"),  # its name since torch 2.15
    "gather": Call("gather", "tensor", is_part=True),
    "scatter": Call("scatter", "tensor", is_part=True),
    "reduce_scatter": Call("reduce_scatter", "output", is_part=True),
    "reduce_scatter_tensor": Call("reduce_scatter", "input"),
    "reduce_scatter_single": Call("reduce_scatter", "input"),  # its name since torch 2.15
    "all_to_all": Call("all_to_all", "input_tensor_list"),
    "all_to_all_single": Call("all_to_all", "input"),
}


def find_group(given: Any) -> Group | None:
    """Return the group of a call, or `None` if this rank sends nothing."""
    group = given
    if group is None:
        group = torch.distributed.group.WORLD
    if group is None or group == torch.distributed.GroupMember.NON_GROUP_MEMBER:
        return None
    try:
        if torch.distributed.get_rank(group) < 0:
            return None
        backend = str(torch.distributed.get_backend(group))
    except ValueError:  # a group that torch did not make itself, which it knows nothing of
        return None
    name = str(getattr(group, "group_name", "") or "default")
    return Group(name, group.size(), backend, blocks=backend in BLOCKING)


def measure_tensor(tensor: Any) -> Message:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Message(tensor.numel() * tensor.element_size(), dtype)


DIALECT = Dialect(
    calls=_CALLS,
    group=find_group,
    message=measure_tensor,
    waits=lambda arguments: not arguments.get("async_op", False),
    when_done=lambda work, then: work.get_future().add_done_callback(lambda done: then()),
    is_traced=torch.compiler.is_compiling,
    times_waits=True,
)


def hook_waits(patches: Patches, log: CallLog) -> None:
    """Time how long the host waits for a collective that it has sent without waiting.

    FSDP sends all of its collectives so. Without this, the wait for a late rank is part of forward.
    """
    end = outside_compiler(guarded("collective waited for", log.end_wait, None))
    work_type: Any = torch.distributed.Work
    original: Callable[..., Any] = work_type.wait

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        sent = None
        if log.sent and not torch.compiler.is_compiling():
            sent = log.sent.pop(self, None)
        if sent is None:
            return original(self, *args, **kwargs)
        start = log.clock()
        result = original(self, *args, **kwargs)
        end(sent, start)
        return result

    skip_code(getattr(wait, "__code__"))  # noqa: B009  # wraps() hides it from mypy
    wait.__qualname__ = wait.__name__  # a builtin's has no module
    patches.replace(work_type, "wait", lambda _: wait)


def hook_buffers(patches: Patches, log: CallLog) -> None:
    """Record the broadcast of a model's buffers, with which DDP begins a forward.

    C++ calls the process group of the model for it, so no other hook sees it.
    """
    known: dict[tuple[int, ...], Message] = {}

    def begin_unguarded(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sent | None:
        group = find_group(args[0] if args else kwargs["process_group"])
        tensors = args[1] if len(args) > 1 else kwargs["tensors"]
        if group is None or not tensors:
            return None
        # A large model has hundreds of buffers, so their sizes are added up once.
        first, last = tensors[0], tensors[-1]
        key = id(first), len(tensors), first.numel(), last.numel()
        message = known.get(key)
        if message is None:
            size = sum(measure_tensor(tensor).bytes for tensor in tensors)
            message = Message(size, measure_tensor(first).dtype)
            if len(known) < MOST_MODELS:
                known[key] = message
        return log.begin(group, "broadcast", message)

    def end_unguarded(sent: Sent) -> None:
        log.end(sent, waited=True)

    begin = outside_compiler(guarded("buffers broadcast", begin_unguarded, None))
    end = outside_compiler(guarded("buffers received", end_unguarded, None))
    distributed: Any = torch.distributed
    original: Callable[..., Any] = distributed._broadcast_coalesced  # noqa: SLF001  # DDP's

    @functools.wraps(original)
    def broadcast(*args: Any, **kwargs: Any) -> Any:
        if QUIET.inside or torch.compiler.is_compiling():
            return original(*args, **kwargs)
        sent = begin(args, kwargs)
        result = original(*args, **kwargs)
        if sent is not None:
            end(sent)
        return result

    skip_code(getattr(broadcast, "__code__"))  # noqa: B009  # as above
    broadcast.__qualname__ = broadcast.__name__  # as above
    patches.replace(distributed, "_broadcast_coalesced", lambda _: broadcast)
