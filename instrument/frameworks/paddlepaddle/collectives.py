"""The collectives of a job, seen at the process groups that all functions of Paddle call.

`paddle.distributed`, `fleet` and a job's own code call methods of `ProcessGroup`. The reducer of
`DataParallel` calls it from C++, and is timed in `reducer.py`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from paddle.base import core

from profkit.instrument.collectives import CallLog
from profkit.instrument.frameworks.paddlepaddle.layout import (
    find_dimension,
    group_of,
    layout_in_use,
)
from profkit.instrument.frameworks.paddlepaddle.tracing import is_traced
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.sent import Group, Sent

BLOCKING: Final = frozenset({"gloo"})
"""Backends whose collectives have ended when the call returns, also one that does not wait."""

ON_CALC_STREAM: Final = "_on_calc_stream"
"""Variants of the methods with this ending run on the stream that computes."""


class Method(NamedTuple):
    """A method of process groups: its name in rows, and its arguments that are tensors.

    The largest of them is the message; with `is_part`, it is one rank's part of it. `peer` is the
    argument that holds the other rank, and `parts` the one with the number of parts of which one
    is sent.
    """

    op: str
    tensors: tuple[int, ...] = (0,)
    is_part: bool = False
    peer: int | None = None
    parts: int | None = None


METHODS: Final = {
    "all_gather": Method("all_gather", (0, 1)),
    "all_gather_into_tensor": Method("all_gather", (0, 1)),
    "all_gather_partial": Method("all_gather", (0, 1)),
    "all_reduce": Method("all_reduce"),
    "all_to_all": Method("all_to_all", (1,)),
    "all_to_all_single": Method("all_to_all", (1,)),
    "all_to_all_tensor": Method("all_to_all", (1,)),
    "allreduce": Method("all_reduce"),
    "alltoall": Method("all_to_all"),
    "alltoall_single": Method("all_to_all"),
    "barrier": Method("barrier", ()),
    "broadcast": Method("broadcast"),
    "gather": Method("gather", is_part=True),
    "recv": Method("recv", peer=1),
    "recv_partial": Method("recv", peer=1, parts=2),
    "reduce": Method("reduce"),
    "reduce_scatter": Method("reduce_scatter", (0, 1)),
    "reduce_scatter_tensor": Method("reduce_scatter", (0, 1)),
    "scatter": Method("scatter", is_part=True),
    "scatter_tensor": Method("scatter", is_part=True),
    "send": Method("send", peer=1),
    "send_partial": Method("send", peer=1, parts=2),
}
"""The methods that make rows, as do their variants on the stream that computes."""


class Groups:
    """The process groups that the job has called, as rows name them."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, tuple[Group, int] | None]
        self._known = weakref.WeakKeyDictionary()
        self._layout: Any = None

    def find(self, real: Any) -> tuple[Group, int] | None:
        """Return a process group and this rank's place in it, or `None` if it is not known.

        `fleet` makes its groups before it names their dimensions.
        """
        layout = layout_in_use()
        if layout is not self._layout:
            self._layout = layout
            self._known.clear()
        if real not in self._known:
            self._known[real] = self._describe(real)
        return self._known[real]

    def _describe(self, real: Any) -> tuple[Group, int] | None:
        group = group_of(real)
        if group is None:
            return None
        backend, ranks = str(real.name()).lower(), tuple(group.ranks)
        name, blocks = str(group.name or "default"), backend in BLOCKING
        dimension = find_dimension(self._layout, group)
        found = Group(name, len(ranks), backend, blocks, ranks, dimension=dimension)
        return found, int(group.rank)


def hook_groups(patches: Patches, log: CallLog) -> None:
    """Record each call of a process group's method."""
    groups = Groups()
    for name, method in METHODS.items():
        for full in (name, name + ON_CALC_STREAM):
            if hasattr(core.ProcessGroup, full):
                wrap = functools.partial(_wrap, groups, log, method, full.endswith(ON_CALC_STREAM))
                patches.replace(core.ProcessGroup, full, wrap)
    if hasattr(core, "task"):
        patches.replace(core.task, "wait", functools.partial(_wrap_wait, log))


def _wrap(
    groups: Groups,
    log: CallLog,
    method: Method,
    on_calc_stream: bool,  # a partial's argument, which has no name
    original: Callable[..., Any],
) -> Callable[..., Any]:
    begin_unguarded = functools.partial(_begin, groups, log, method)

    def end_unguarded(sent: Sent, task: Any, args: tuple[Any, ...]) -> None:
        if sent.group.blocks or on_calc_stream:
            log.end(sent, waited=True)
        elif task is not None and any(each is True for each in args):  # the caller waits for it
            sent.is_sync = sent.ends_with_wait = True
            log.handles[id(task)] = task, sent

    begin = guarded("collective begun", begin_unguarded, None)
    end = guarded("collective done", end_unguarded, None)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_traced():
            return original(self, *args, **kwargs)
        given = (*args, *kwargs.values())
        sent = begin(self, given)
        task = original(self, *args, **kwargs)
        if sent is not None:
            end(sent, task, given)
        return task

    return call


def _begin(
    groups: Groups, log: CallLog, method: Method, real: Any, args: tuple[Any, ...]
) -> Sent | None:
    """Note a call, if this rank takes part in it."""
    known = groups.find(real)
    if known is None:
        return None
    group, own = known
    size, dtype = max((measure(args[place]) for place in method.tensors), default=(0, ""))
    if method.is_part:
        size *= group.size
    if method.parts is not None:
        size //= int(args[method.parts])
    if method.peer is not None:
        group = pair_of(group, own, int(args[method.peer]), sends=method.op == "send")
    sent = log.begin(group, method.op, (size, dtype))
    sent.is_sync = group.blocks
    return sent


def _wrap_wait(log: CallLog, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `task.wait`, after which a device has waited for the collective."""
    end = guarded("collective waited for", log.end_wait, None)

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        _, sent = log.handles.pop(id(self), (None, None)) if log.handles else (None, None)
        start = log.clock()
        result = original(self, *args, **kwargs)
        if sent is not None:
            end(sent, start)
        return result

    return wait


def pair_of(group: Group, own: int, other: int, *, sends: bool) -> Group:
    """Return the sender and the receiver of a message as a group of their own."""
    name = f"{group.name}:{own}>{other}" if sends else f"{group.name}:{other}>{own}"
    return group._replace(name=name, size=2, peer=group.members[other])


def measure(value: Any) -> tuple[int, str]:
    """Return the bytes and the data type of a tensor, or of a list of them together."""
    size, dtype = 0, ""
    for tensor in value if isinstance(value, list | tuple) else [value]:
        size += int(tensor.size) * int(tensor.element_size())
        dtype = str(tensor.dtype).removeprefix("paddle.")
    return size, dtype
