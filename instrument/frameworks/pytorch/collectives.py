"""The functions of `torch.distributed`."""

from __future__ import annotations

from typing import Any

import torch

from profkit.instrument.collectives import Call, Dialect, Group, Message

BLOCKING = frozenset({"gloo", "mpi"})
"""Backends whose collectives have ended when the call returns, unless it is asynchronous."""

_CALLS = {
    "all_reduce": Call("all_reduce", "tensor"),
    "broadcast": Call("broadcast", "tensor"),
    "reduce": Call("reduce", "tensor"),
    "all_gather": Call("all_gather", "tensor", is_part=True),
    "all_gather_into_tensor": Call("all_gather", "output_tensor"),
    "gather": Call("gather", "tensor", is_part=True),
    "scatter": Call("scatter", "tensor", is_part=True),
    "reduce_scatter": Call("reduce_scatter", "output", is_part=True),
    "reduce_scatter_tensor": Call("reduce_scatter", "input"),
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
    if torch.distributed.get_rank(group) < 0:
        return None
    backend = str(torch.distributed.get_backend(group))
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
)
