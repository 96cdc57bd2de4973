"""The functions of `paddle.distributed`."""

from __future__ import annotations

from typing import Any

import paddle

from profkit.instrument.collectives import Call, Dialect, Group, Message
from profkit.instrument.frameworks.paddlepaddle.tracing import is_traced

BLOCKING = frozenset({"gloo"})
"""Backends whose collectives have ended when the call returns."""

_CALLS = {
    "all_reduce": Call("all_reduce", "tensor"),
    "broadcast": Call("broadcast", "tensor"),
    "reduce": Call("reduce", "tensor"),
    "all_gather": Call("all_gather", "tensor", is_part=True),
    "gather": Call("gather", "tensor", is_part=True),
    "scatter": Call("scatter", "tensor", is_part=True),
    "reduce_scatter": Call("reduce_scatter", "tensor", is_part=True),
    "alltoall": Call("all_to_all", "in_tensor_list"),
    "alltoall_single": Call("all_to_all", "in_tensor"),
}


def find_group(given: Any) -> Group | None:
    """Return the group of a call, or `None` if this rank sends nothing."""
    if not paddle.distributed.is_initialized():
        return None
    group = given
    if group is None:
        communication = paddle.distributed.communication
        group = communication.group._get_global_group()  # noqa: SLF001  # as Paddle's calls do
    if not group.is_member():
        return None
    backend = str(group.process_group.name()).lower()
    return Group(
        str(group.name or "default"), int(group.nranks), backend, blocks=backend in BLOCKING
    )


def measure_tensor(tensor: Any) -> Message:
    dtype = str(tensor.dtype).removeprefix("paddle.")
    return Message(int(tensor.size) * int(tensor.element_size()), dtype)


DIALECT = Dialect(
    calls=_CALLS,
    group=find_group,
    message=measure_tensor,
    waits=lambda arguments: bool(arguments.get("sync_op", True)),
    when_done=lambda work, then: None,
    is_traced=is_traced,
)
"""Paddle's collectives.

A call that does not wait returns a task that does not report its end. Such a call makes a row
only if a device times it.
"""
