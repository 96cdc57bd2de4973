"""The functions of `paddle.distributed`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import paddle

from profkit.instrument.collectives import Call, CallLog, Dialect, Group, Message, hook_calls
from profkit.instrument.frameworks.base import Books
from profkit.instrument.frameworks.paddlepaddle.tracing import is_traced
from profkit.instrument.guard import Patches

BLOCKING = frozenset({"gloo"})
"""Backends whose collectives have ended when the call returns."""


class PaddleDialect(Dialect):
    """Paddle's collectives.

    A call that does not wait returns a task that does not report its end. Such a call makes a row
    only if a device times it.
    """

    calls: Mapping[str, Call] = {
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

    def group(self, given: Any) -> Group | None:
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

    def message(self, tensor: Any) -> Message:
        dtype = str(tensor.dtype).removeprefix("paddle.")
        return Message(int(tensor.size) * int(tensor.element_size()), dtype)

    def waits(self, arguments: Mapping[str, Any]) -> bool:
        return bool(arguments.get("sync_op", True))

    def is_traced(self) -> bool:
        return is_traced()


def hook_collectives(
    patches: Patches, books: Books, sequences: Mapping[str, Iterator[int]]
) -> None:
    clock = books.recorder.clock
    log = CallLog(books.recorder, books.collectives, sequences, clock=clock)
    hook_calls(patches, PaddleDialect(), log, paddle.distributed)
