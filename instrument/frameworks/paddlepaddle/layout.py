"""The dimensions in which a job of `paddle.distributed.fleet` is parallel.

`fleet` has no public names for some of this. In a version that has others, they are not known.
"""

from __future__ import annotations

import math
from typing import Any, Final

import paddle
from paddle.distributed.fleet.base import topology

from profkit.instrument.identity import Facts

DIMENSIONS: Final = {
    "dp": "data_parallel",
    "sharding": "sharding_parallel",
    "pp": "pipe_parallel",
    "mp": "model_parallel",
    "sep": "sep_parallel",
}
"""The dimensions of a job, and the word for each of them in the methods of its layout."""

DATA: Final = ("dp", "sharding")
"""Those whose ranks train on different samples."""


def layout_in_use() -> Any:
    """Return fleet's groups of ranks, or `None` if the job has not made them."""
    return getattr(topology, "_HYBRID_PARALLEL_GROUP", None)


def group_of(process_group: Any) -> Any:
    """Return Paddle's description of a process group, or `None` if it has none."""
    manager = paddle.distributed.communication.group._GroupManager  # noqa: SLF001  # Paddle's
    for group in list(manager.group_map_by_id.values()):
        if group.process_group is process_group:
            return group
    return None


def find_dimension(layout: Any, group: Any) -> str | None:
    """Return the dimension that a group connects, if it is one of fleet's."""
    for name in DIMENSIONS:
        own = getattr(layout, f"_{name}_comm_group", None)
        if own is not None and group is not None and own.id == group.id:
            return name
    return None


def describe_layout() -> Facts:
    """Return the facts of a job that has given its dimensions to fleet."""
    layout = layout_in_use()
    if layout is None or layout.nranks < 2:
        return {}
    sizes = {}
    for name, words in DIMENSIONS.items():
        sizes[name] = int(getattr(layout, f"get_{words}_world_size")())
    if math.prod(sizes.values()) != layout.nranks:
        return {"data_parallel": {"by": f"dimensions of fleet other than {', '.join(DIMENSIONS)}"}}
    size, rank = 1, 0
    for name in DATA:
        place = int(getattr(layout, f"get_{DIMENSIONS[name]}_rank")())
        size, rank = size * sizes[name], rank * sizes[name] + place
    parallel = {name: each for name, each in sizes.items() if each > 1}
    return {"parallel": parallel, "data_parallel": {"size": size, "rank": rank, "by": "fleet"}}
