"""The dimensions in which a job is parallel, and the ranks that share their samples.

Ranks of a tensor-parallel or pipeline group train on the same samples, and each of them reports
them. A reader can count them once only if the job says which ranks these are.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch

from profkit.instrument.guard import Patches, guarded
from profkit.instrument.identity import Facts
from profkit.instrument.models import TrainedModels
from profkit.vocab import MODEL_DIMENSIONS

DATA_WORDS: Final = frozenset(
    ["dp", "ddp", "fsdp", "hsdp", "data", "batch", "replicate", "replica", "shard", "zero"]
)
"""Words in the name of a dimension whose ranks train on different samples."""

PLAIN_WORDS: Final = frozenset(["parallel", "dim", "mesh", "group"])

MOST_MESHES: Final = 64
MOST_SAMPLERS: Final = 16

SAMPLER_FIELDS: Final = (
    ("num_replicas", "rank"),
    ("num_processes", "process_index"),
    ("data_parallel_size", "data_parallel_rank"),
    ("world_size", "rank"),
)
"""Attributes by which samplers say how many parts the samples have, and which is this rank's."""


class Mesh(NamedTuple):
    """A device mesh, as one rank sees it."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    place: tuple[int, ...]
    """The rank's place along each dimension."""


class DataRank(NamedTuple):
    """The number of ranks with different samples, and this rank's place among them."""

    size: int
    rank: int
    by: str


class Layout:
    """The meshes and samplers that the job has made. It keeps none of them alive."""

    def __init__(self) -> None:
        self.meshes: list[Mesh] = []
        self.samplers: set[tuple[int, int]] = set()
        self.dimensions: dict[str, str] = {}
        """The name of the dimension that each group connects, by the name of the group."""
        self.version = 0
        """The number of meshes that were made."""
        self.pipeline: Facts = {}
        """The job's first pipeline: its schedule, and which of the stages this rank has."""
        self.library: tuple[dict[str, int], DataRank] | None = None
        """The dimensions and the samples of this rank, if a library has laid out the job."""
        self.kept: Facts = {}
        """What was known when the job destroyed its groups."""

    def note_mesh(self, mesh: Any) -> None:
        """Remember the dimensions of a mesh, if it has names and this rank is in it."""
        names, place = mesh.mesh_dim_names, mesh.get_coordinate()
        if names and place is not None:
            sizes = [mesh.size(number) for number in range(mesh.ndim)]
            found = Mesh(tuple(names), tuple(sizes), tuple(place))
            if found not in self.meshes and len(self.meshes) < MOST_MESHES:
                self.meshes.append(found)
            for name, group in zip(names, _group_names(mesh), strict=False):
                if self.dimensions.setdefault(group, name) != name:
                    self.dimensions[group] = ""  # two dimensions have the same ranks
        self.version += 1

    def note_schedule(self, schedule: Any) -> None:
        """Remember the schedule of a pipeline; its attributes are private parts of torch."""
        self.pipeline = {"schedule": type(schedule).__name__}
        stages = getattr(schedule, "_stages", None) or [schedule._stage]  # noqa: SLF001
        self.pipeline["microbatches"] = int(schedule._n_microbatches)  # noqa: SLF001
        self.pipeline["stages"] = int(stages[0].num_stages)
        self.pipeline["own_stages"] = [int(stage.stage_index) for stage in stages]

    def note_library(
        self, parallel: dict[str, int], groups: Mapping[str, str], data: DataRank
    ) -> None:
        """Remember how a library has laid out the job, and which dimension each group connects."""
        known = self.dimensions
        if self.library == (parallel, data) and all(known.get(name) for name in groups):
            return
        self.library = parallel, data
        self.dimensions.update(groups)
        self.version += 1

    def forget_meshes(self) -> None:
        """Forget all meshes: torch has forgotten the groups, and uses their names again."""
        self.meshes.clear()
        self.dimensions.clear()
        self.library = None
        self.version += 1

    def note_loader(self, loader: Any) -> None:
        """Remember how the samplers of a loader divide the samples among ranks."""
        batches = getattr(loader, "batch_sampler", None)
        owners = [getattr(loader, "sampler", None), batches]
        owners += [getattr(batches, name, None) for name in ("sampler", "batch_sampler")]
        owners.append(getattr(getattr(loader, "dataset", None), "_distributed", None))
        for owner in owners:
            for size, rank in SAMPLER_FIELDS:
                found = getattr(owner, size, None), getattr(owner, rank, None)
                if type(found[0]) is int and type(found[1]) is int:
                    if len(self.samplers) < MOST_SAMPLERS:
                        self.samplers.add((found[0], found[1]))
                    break

    def describe(self, models: Iterable[Any], world: int) -> Facts:
        """Return the dimensions of the job, and which samples this rank trains on."""
        if world < 2:
            return {}
        found, why = self._find(models, world)
        facts: Facts = {}
        mesh = self._widest(world)
        if self.library is not None:
            facts["parallel"], found = self.library
        elif mesh is not None:
            facts["parallel"] = dict(zip(mesh.names, mesh.shape, strict=True))
        elif found is not None and found.size == world:
            facts["parallel"] = {"dp": world}
        if self.pipeline:
            facts["pipeline"] = dict(self.pipeline)
        if found is None:
            facts["data_parallel"] = {"by": why}
        else:
            facts["data_parallel"] = found._asdict()
        return facts

    def _find(self, models: Iterable[Any], world: int) -> tuple[DataRank | None, str]:
        """Return the rank's samples, or why nobody knows them."""
        meshes = {found for mesh in self.meshes if (found := _of_mesh(mesh, world)) is not None}
        if len(meshes) > 1:
            return None, "device meshes that contradict each other"
        found = meshes.pop() if meshes else None
        # Ranks of a context-parallel group share their samples, and yet FSDP splits its weights
        # among them.
        shares = any(words_of(name) & MODEL_DIMENSIONS and size > 1 for name, size in self._sizes())
        if found is None and not shares:
            found = _of_models(models)
        sizes = {size for size, _ in self.samplers}
        if found is not None and sizes and found.size not in sizes:
            parts = f"the {found.by} says {found.size} and the sampler {max(sizes)}"
            return None, f"the numbers of data-parallel ranks differ: {parts}"
        if found is None and len(self.samplers) == 1:
            found = DataRank(*next(iter(self.samplers)), "sampler")
        if found is None:
            return None, "no device mesh, wrapper or sampler that shows which ranks share samples"
        return found, ""

    def _sizes(self) -> Iterator[tuple[str, int]]:
        for mesh in self.meshes:
            yield from zip(mesh.names, mesh.shape, strict=True)

    def _widest(self, world: int) -> Mesh | None:
        whole = [mesh for mesh in self.meshes if math.prod(mesh.shape) == world]
        return max(whole, key=lambda mesh: len(mesh.shape), default=None)


LAYOUT = Layout()


def words_of(name: str) -> set[str]:
    """Return the words in the name of a dimension that say what it is for."""
    return set(re.split(r"[\W\d_]+", name.lower())) - PLAIN_WORDS - {""}


def _of_mesh(mesh: Mesh, world: int) -> DataRank | None:
    """Return what the names of a mesh of all ranks say; a name of both kinds says nothing."""
    if math.prod(mesh.shape) != world:
        return None
    size, rank = 1, 0
    for name, length, place in zip(mesh.names, mesh.shape, mesh.place, strict=True):
        words = words_of(name)
        if words and words <= DATA_WORDS:
            rank, size = rank * length + place, size * length
        elif length > 1 and not (words and words <= MODEL_DIMENSIONS):
            return None
    return DataRank(size, rank, "device mesh")


def _of_models(models: Iterable[Any]) -> DataRank | None:
    """Return the ranks over which the wrappers of the models average gradients."""
    found = set()
    for model in models:
        for module in model.modules():
            each = _of_module(module)
            if each is not None:
                found.add(each)
    return found.pop() if len(found) == 1 else None


def _of_module(module: Any) -> DataRank | None:
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        group = module.process_group
        return DataRank(group.size(), group.rank(), "DistributedDataParallel")
    kind = type(module).__name__
    if kind == "FullyShardedDataParallel":
        group, outer = module.process_group, getattr(module, "_inter_node_pg", None)
        size, rank = group.size(), group.rank()
        if outer is not None:
            size, rank = size * outer.size(), outer.rank() * size + rank
        return DataRank(size, rank, "FSDP")
    get_state = getattr(module, "_get_fsdp_state", None)
    if get_state is None:
        return None
    state = get_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [
        getattr(state, "_fsdp_param_group", None)
    ]
    if not groups or groups[0] is None:
        return None
    mesh = groups[0].mesh_info.mesh
    rank = 0
    for number, place in enumerate(mesh.get_coordinate() or ()):
        rank = rank * mesh.size(number) + place
    return DataRank(mesh.size(), rank, "FSDP")


def _group_names(mesh: Any) -> list[str]:
    names = getattr(mesh, "_dim_group_names", None)
    if names is not None:
        return [str(name) for name in names]
    return [str(info[-1]) for info in getattr(mesh, "_dim_group_infos", ())]  # until torch 2.8


def hook_meshes(patches: Patches, look: Callable[[], None]) -> None:
    """Remember the device meshes that the job makes, and call `look` before each of them."""
    mesh_type: Any = torch.distributed.device_mesh.DeviceMesh
    note = guarded("device mesh", LAYOUT.note_mesh, None)
    look = guarded("device mesh", look, None)

    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def make(self: Any, *args: Any, **kwargs: Any) -> None:
            look()
            original(self, *args, **kwargs)
            note(self)

        return make

    patches.replace(mesh_type, "__init__", wrap)


def hook_end_of_groups(patches: Patches, models: TrainedModels) -> None:
    """Describe the layout before torch forgets it: a short job is described after that."""
    c10d: Any = torch.distributed.distributed_c10d

    def keep() -> None:
        if torch.distributed.is_initialized():
            LAYOUT.kept = LAYOUT.describe(models.alive, torch.distributed.get_world_size())

    keep = guarded("layout", keep, None)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def update_default_group(group: Any, *args: Any, **kwargs: Any) -> Any:
            if group is None:
                keep()
            return original(group, *args, **kwargs)

        return update_default_group

    if hasattr(c10d, "_update_default_pg"):
        patches.replace(c10d, "_update_default_pg", wrap)


def describe_layout(models: list[Any]) -> Mapping[str, Any]:
    """Return the facts of the job's layout, once its ranks have met."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return LAYOUT.kept
    return LAYOUT.describe(models, distributed.get_world_size())
