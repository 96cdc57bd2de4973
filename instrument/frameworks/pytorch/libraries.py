"""The dimensions of jobs that Megatron or DeepSpeed has laid out.

Their collectives pass the process groups of torch, as all others do. These libraries know which
dimension a group connects, and which ranks train on different samples.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import torch

from profkit.instrument.frameworks.pytorch.layout import LAYOUT, DataRank
from profkit.instrument.guard import guarded

MEGATRON: Final = "megatron.core.parallel_state"
DEEPSPEED: Final = "deepspeed.utils.groups"

MEGATRON_GROUPS: Final = {
    "dp": "get_data_parallel_group",
    "tp": "get_tensor_model_parallel_group",
    "pp": "get_pipeline_model_parallel_group",
    "cp": "get_context_parallel_group",
    "ep": "get_expert_model_parallel_group",
}
"""The functions that return the group of each dimension in which a rank takes part."""

TOPOLOGY_GROUPS: Final = {
    "dp": "get_data_parallel_group",
    "tp": "get_model_parallel_group",
    "pp": "get_pipe_parallel_group",
    "sp": "get_sequence_parallel_group",
}
"""The same functions of the object that a job hands to DeepSpeed, or that its pipelines make."""

OVERLAPPING: Final = frozenset({"ep"})
"""Dimensions along the ranks of others, which do not multiply the number of ranks."""


def look_at_libraries() -> None:
    """Note the groups of a library that the job has laid out since."""
    megatron, deepspeed = sys.modules.get(MEGATRON), sys.modules.get(DEEPSPEED)
    if megatron is not None and megatron.model_parallel_is_initialized():
        _note("Megatron", megatron, MEGATRON_GROUPS)
    elif deepspeed is not None and _has_engine():
        _look_at_deepspeed(deepspeed)


note_libraries = guarded("layout of a library", look_at_libraries, None)


def _has_engine() -> bool:
    """Return true if DeepSpeed has laid out the job: its own communication has begun."""
    backend = getattr(sys.modules.get("deepspeed.comm.comm"), "cdb", None)
    return backend is not None and bool(backend.is_initialized())


def _look_at_deepspeed(module: Any) -> None:
    """Note what the job has laid out.

    DeepSpeed's own functions may make a group if there is none, which all ranks must do together.
    So its state is read instead.
    """
    if getattr(module, "mesh_device", None) is not None:
        return  # a device mesh, which names its dimensions itself
    topology = getattr(module, "mpu", None)
    if topology is not None:
        _note("DeepSpeed", topology, TOPOLOGY_GROUPS)
        return
    world = torch.distributed.group.WORLD
    if world is None:
        return
    groups = {str(world.group_name): "dp"}
    clone = getattr(module, "_WORLD_GROUP", None)
    if clone is not None:
        groups[str(clone.group_name)] = "dp"
    size = int(world.size())
    parallel = {"dp": size} if size > 1 else {}
    LAYOUT.note_library(parallel, groups, DataRank(size, int(world.rank()), "DeepSpeed"))


def _note(library: str, module: Any, getters: dict[str, str]) -> None:
    parallel: dict[str, int] = {}
    groups: dict[str, str] = {}
    data: DataRank | None = None
    for dimension, name in getters.items():
        group = _group(getattr(module, name, None))
        if group is None:
            continue
        if dimension == "dp":
            data = DataRank(int(group.size()), int(group.rank()), library)
        if group.size() > 1:
            if dimension not in OVERLAPPING:
                parallel[dimension] = int(group.size())
            groups[str(group.group_name)] = dimension
    if data is not None:
        LAYOUT.note_library(parallel, groups, data)


def _group(get: Any) -> Any:
    """Return a group, or `None` if the job does not have it: then these functions fail."""
    try:
        return None if get is None else get()
    except Exception:  # noqa: BLE001  # an assertion, or an error of the library's own
        return None
