"""The functions of `torch.distributed`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from profkit.instrument.collectives import Call, CallLog, Dialect, Group, Message, hook_calls
from profkit.instrument.frameworks.base import Books
from profkit.instrument.guard import Patches

BLOCKING = frozenset({"gloo", "mpi"})
"""Backends whose collectives have ended when the call returns, unless it is asynchronous."""


class TorchDialect(Dialect):
    calls: Mapping[str, Call] = {
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

    def group(self, given: Any) -> Group | None:
        group = given if given is not None else torch.distributed.group.WORLD
        if group is None or group == torch.distributed.GroupMember.NON_GROUP_MEMBER:
            return None
        if torch.distributed.get_rank(group) < 0:
            return None
        backend = str(torch.distributed.get_backend(group))
        name = str(getattr(group, "group_name", "") or "default")
        return Group(name, group.size(), backend, blocks=backend in BLOCKING)

    def message(self, tensor: Any) -> Message:
        dtype = str(tensor.dtype).removeprefix("torch.")
        return Message(tensor.numel() * tensor.element_size(), dtype)

    def waits(self, arguments: Mapping[str, Any]) -> bool:
        return not arguments.get("async_op", False)

    def when_done(self, work: Any, then: Callable[[], None]) -> None:
        work.get_future().add_done_callback(lambda done: then())

    def is_traced(self) -> bool:
        return torch.compiler.is_compiling()


def hook_collectives(
    patches: Patches, books: Books, sequences: Mapping[str, Iterator[int]]
) -> None:
    """Time collectives under both of their names: torch's own wrappers use the second one."""
    if not torch.distributed.is_available():
        return
    clock = books.recorder.clock
    log = CallLog(books.recorder, books.collectives, sequences, clock=clock)
    owners = torch.distributed, torch.distributed.distributed_c10d
    hook_calls(patches, TorchDialect(), log, *owners)
