"""The operations of process groups, and what their backends do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

BLOCKING = frozenset({"gloo", "mpi"})
"""Backends whose collectives have ended when the host has waited for them."""

WITH_FUTURES = BLOCKING | {"nccl"}
"""Backends whose handles can be asked for a future.

To get one from torch 2.15's own NCCL backend makes the job's stream wait for the collective.
"""

SAME_LIBRARY: Final[Mapping[str, str]] = {
    "nccl2": "nccl",
    "nccl-lazy": "nccl",
    "nccl-legacy": "nccl",
}
"""Backends that are others' for the same library, with the name that rows have for it."""


class Operation(NamedTuple):
    """An operation of process groups: its name in rows, and the tensors that are its message.

    With `is_part`, these tensors are one rank's part of the whole message. With `is_message`, one
    rank sends it to another. Without `has_future`, the handle's future may be null: NCCL sends
    parts of different sizes as several operations, and to ask the future that it does not have
    ends the process.
    """

    op: str
    in_outputs: bool = False
    is_part: bool = False
    has_future: bool = True
    is_message: bool = False


OPERATIONS: Final[Mapping[str, Operation]] = {
    "ALLREDUCE": Operation("all_reduce"),
    "ALLREDUCE_COALESCED": Operation("all_reduce"),
    "BROADCAST": Operation("broadcast"),
    "REDUCE": Operation("reduce"),
    "ALLGATHER": Operation("all_gather", in_outputs=True, has_future=False),
    "ALLGATHER_BASE": Operation("all_gather", in_outputs=True),
    "ALLGATHER_COALESCED": Operation("all_gather", in_outputs=True),
    "ALLGATHER_INTO_TENSOR_COALESCED": Operation("all_gather", in_outputs=True),
    "REDUCE_SCATTER": Operation("reduce_scatter", has_future=False),
    "REDUCE_SCATTER_BASE": Operation("reduce_scatter"),
    "REDUCE_SCATTER_TENSOR_COALESCED": Operation("reduce_scatter"),
    "ALLTOALL": Operation("all_to_all"),
    "ALLTOALL_BASE": Operation("all_to_all"),
    "GATHER": Operation("gather", is_part=True),
    "SCATTER": Operation("scatter", in_outputs=True, is_part=True),
    "BARRIER": Operation("barrier"),
    "SEND": Operation("send", is_message=True),
    "RECV": Operation("recv", in_outputs=True, is_message=True),
}
"""The operations that make rows, by their names in `HookOpName`."""

NOT_RECORDED: Final[Mapping[str, str]] = {
    "SPLIT": "makes a group and sends no message of the job",
    "NEW_WINDOW": "registers memory for one-sided access and sends nothing",
    "UNKNOWN": "an operation without a name",
}
"""The other operations, with the reason."""
