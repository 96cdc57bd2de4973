"""The methods of process groups, by which torch before 2.15 starts operations from Python."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch

from profkit.clock import now_ns
from profkit.instrument.collectives import HERE
from profkit.instrument.frameworks.pytorch.collectives import GroupCalls
from profkit.instrument.frameworks.pytorch.groups import Watched, describe_group
from profkit.instrument.frameworks.pytorch.operations import OPERATIONS, Operation
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.sent import Sent


class Method(NamedTuple):
    """A method of a process group: its operation, and which arguments are its message.

    `root` is the number of the argument that holds the other rank.
    """

    operation: str
    inputs: int | None = 0
    outputs: int | None = None
    root: int | None = None


METHODS: Final = {
    "allreduce": Method("ALLREDUCE"),
    "allreduce_coalesced": Method("ALLREDUCE_COALESCED"),
    "broadcast": Method("BROADCAST"),
    "reduce": Method("REDUCE"),
    "allgather": Method("ALLGATHER", inputs=1, outputs=0),
    "_allgather_base": Method("ALLGATHER_BASE", inputs=1, outputs=0),
    "allgather_coalesced": Method("ALLGATHER_COALESCED", inputs=1, outputs=0),
    "allgather_into_tensor_coalesced": Method("ALLGATHER_BASE", inputs=1, outputs=0),
    "reduce_scatter": Method("REDUCE_SCATTER", inputs=1, outputs=0),
    "_reduce_scatter_base": Method("REDUCE_SCATTER_BASE", inputs=1, outputs=0),
    "reduce_scatter_tensor_coalesced": Method("REDUCE_SCATTER_BASE", inputs=1, outputs=0),
    "alltoall": Method("ALLTOALL", inputs=1, outputs=0),
    "alltoall_base": Method("ALLTOALL_BASE", inputs=1, outputs=0),
    "gather": Method("GATHER", inputs=1, outputs=0),
    "scatter": Method("SCATTER", inputs=1, outputs=0),
    "all_gather_single": Method("ALLGATHER_BASE", inputs=1, outputs=0),
    "all_gather_single_coalesced": Method("ALLGATHER_BASE", inputs=1, outputs=0),
    "reduce_scatter_single": Method("REDUCE_SCATTER_BASE", inputs=1, outputs=0),
    "reduce_scatter_single_coalesced": Method("REDUCE_SCATTER_BASE", inputs=1, outputs=0),
    "all_to_all_single": Method("ALLTOALL_BASE", inputs=1, outputs=0),
    "gather_single": Method("GATHER", inputs=1, outputs=0),
    "barrier": Method("BARRIER", inputs=None),
    "send": Method("SEND", root=1),
    "recv": Method("RECV", inputs=None, outputs=0, root=1),
    "recv_anysource": Method("RECV", inputs=None, outputs=0),
}
"""The methods that make rows."""


def hook_methods(patches: Patches, calls: GroupCalls) -> None:
    """Record each call of a process group's method."""
    groups: weakref.WeakKeyDictionary[Any, Watched | None] = weakref.WeakKeyDictionary()
    for name, method in METHODS.items():
        if hasattr(torch.distributed.ProcessGroup, name):
            wrap = functools.partial(_wrap, calls, groups, method)
            patches.replace(torch.distributed.ProcessGroup, name, wrap)


def _wrap(
    calls: GroupCalls,
    groups: weakref.WeakKeyDictionary[Any, Watched | None],
    method: Method,
    original: Callable[..., Any],
) -> Callable[..., Any]:
    operation: Operation = OPERATIONS[method.operation]

    def begin_unguarded(group: Any, args: tuple[Any, ...]) -> Sent | None:
        if group not in groups:
            groups[group] = describe_group(group)
        watched = groups[group]
        if watched is None:
            return None
        place = method.outputs if operation.in_outputs else method.inputs
        tensors = [] if place is None else list(_flatten(args[place]))
        root = -1 if method.root is None else int(args[method.root])
        if HERE.inside:
            calls.note_part(watched, operation, tensors, root)
            return None
        return calls.begin(watched, operation, tensors, root)

    begin = guarded("collective begun", begin_unguarded, None)
    end = guarded("collective handed over", calls.end, None)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if HERE.inside or torch.compiler.is_compiling():
            HERE.sent_ns = HERE.sent_ns or now_ns()
            if HERE.parts is not None:
                begin(self, (*args, *kwargs.values()))
            return original(self, *args, **kwargs)
        sent = begin(self, (*args, *kwargs.values()))
        work = original(self, *args, **kwargs)
        if sent is not None:
            options = args[-1] if args else None
            end(sent, work, is_async=bool(getattr(options, "asyncOp", True)))
        return work

    return call


def _flatten(tensors: Any) -> Iterator[Any]:
    if not isinstance(tensors, list | tuple):
        yield tensors
        return
    for each in tensors:
        yield from _flatten(each)
