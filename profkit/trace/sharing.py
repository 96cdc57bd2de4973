"""Count samples once, although ranks of a tensor-parallel group report the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profkit.text import plural, safe_text
from profkit.trace.manifest import RankManifest

DATA_PARALLEL = "data_parallel"
"""The part of a rank's configuration that says which samples it trains on."""

PARALLEL = "parallel"
AT_LEAST = "ranks_at_least"
"""A run has this setting if it has at least this number of ranks, and perhaps more."""
"""The part that holds the size of each dimension along which the job is parallel."""


@dataclass(frozen=True)
class Sharing:
    """The ranks that train on the same samples.

    `groups` has a number for each rank: ranks of one number share their samples. It is empty if
    each rank has its own, as in all runs that do not say otherwise. With `why`, nobody knows it.
    """

    groups: Mapping[int, int]
    why: str = ""

    @property
    def data_ranks(self) -> int | None:
        """The number of ranks with different samples, if some share theirs."""
        return len(set(self.groups.values())) if self.groups else None


OWN_SAMPLES = Sharing({})


def find_sharing(manifests: Sequence[RankManifest]) -> Sharing:
    """Return which ranks share their samples, by what each of them has noted."""
    noted: dict[int, Mapping[str, Any]] = {}
    for manifest in manifests:
        found = manifest.config.get(DATA_PARALLEL)
        if isinstance(found, Mapping):
            noted[manifest.rank] = found
    if not noted:
        return OWN_SAMPLES
    sizes = {each.get("size") for each in noted.values()}
    size = sizes.pop() if len(sizes) == 1 else None
    if type(size) is not int or size < 1:
        reasons = {str(each["by"]) for each in noted.values() if "size" not in each}
        return Sharing({}, "; ".join(sorted(reasons)) or "the ranks contradict each other")
    if size == max(manifest.world_size for manifest in manifests):
        return OWN_SAMPLES
    groups = {}
    for manifest in manifests:
        rank = noted.get(manifest.rank, {}).get("rank")
        if type(rank) is not int:
            return Sharing({}, f"rank {manifest.rank} does not say which samples it trains on")
        groups[manifest.rank] = rank
    return Sharing(groups)


def share_samples(steps: pa.Table, sharing: Sharing) -> pa.Table:
    """Return the steps with each sample on one rank, or on none if the sharing is unknown.

    Of the ranks that share samples, the first one that reports the most of a step keeps them: a
    pipeline's later stages may load none.
    """
    if not sharing.groups and not sharing.why:
        return steps
    counts = steps["sample_count"].to_numpy()
    kept = np.zeros(len(counts), dtype=bool)
    if sharing.groups and len(counts):
        rank, step = steps["rank"].to_numpy(), steps["step"].to_numpy()
        group = np.array([sharing.groups.get(each, -1 - each) for each in rank.tolist()])
        order = np.lexsort((rank, -counts, group, step))
        first = np.append(True, (np.diff(step[order]) != 0) | (np.diff(group[order]) != 0))
        kept[order[first]] = True
    shared: npt.NDArray[np.int64] = np.where(kept, counts, 0)
    place = steps.schema.get_field_index("sample_count")
    return steps.set_column(place, steps.schema.field("sample_count"), pa.array(shared))


def say_world(world_size: int, config: Mapping[str, Any]) -> str:
    """Return the number of ranks, with its dimensions if known: `4 ranks (fsdp 2 x tp 2)`."""
    ranks = plural(world_size, "rank")
    if AT_LEAST in config:
        ranks = f"{world_size} or more ranks"
    found = config.get(PARALLEL)
    if not isinstance(found, Mapping) or not found:
        return ranks
    sizes = (f"{safe_text(str(name))} {safe_text(str(size))}" for name, size in found.items())
    return f"{ranks} ({' x '.join(sizes)})"
