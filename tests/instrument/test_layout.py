"""Meshes, wrappers and samplers say, in this order, which ranks share their samples."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from profkit.instrument.frameworks.pytorch import libraries  # noqa: E402  # needs torch
from profkit.instrument.frameworks.pytorch.layout import Layout, Mesh  # noqa: E402  # needs torch


def layout_of(*meshes: Mesh, samplers: tuple[tuple[int, int], ...] = ()) -> Layout:
    found = Layout()
    found.meshes += meshes
    found.samplers |= set(samplers)
    return found


@pytest.mark.parametrize(
    ("mesh", "size", "rank"),
    [
        (Mesh(("tp",), (4,), (3,)), 1, 0),
        (Mesh(("fsdp",), (4,), (3,)), 4, 3),
        (Mesh(("dp", "tp"), (2, 2), (1, 0)), 2, 1),
        (Mesh(("pp", "dp_replicate", "dp_shard", "tp"), (1, 2, 2, 1), (0, 1, 0, 0)), 4, 2),
        (Mesh(("replicate", "shard", "cp"), (1, 2, 2), (0, 1, 1)), 2, 1),
        (Mesh(("data_parallel", "pipeline_parallel"), (2, 2), (0, 1)), 2, 0),
        (Mesh(("dp", "whatever"), (4, 1), (2, 0)), 4, 2),
    ],
)
def test_the_names_of_a_mesh_say_who_shares_samples(mesh: Mesh, size: int, rank: int) -> None:
    found = layout_of(mesh).describe([], 4)
    assert found["data_parallel"] == {"size": size, "rank": rank, "by": "device mesh"}
    assert found["parallel"] == dict(zip(mesh.names, mesh.shape, strict=True))


@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(("dp", "whatever"), (2, 2), (0, 0)),
        Mesh(("dp_shard_cp",), (4,), (0,)),  # its ranks share samples, and nobody knows which
        Mesh(("dp", "ep"), (2, 2), (0, 0)),
        Mesh(("tp",), (2,), (0,)),  # other ranks are not in it
    ],
)
def test_other_names_say_nothing(mesh: Mesh) -> None:
    assert "size" not in layout_of(mesh).describe([], 4)["data_parallel"]


def test_samplers_answer_where_no_mesh_does() -> None:
    found = layout_of(samplers=((2, 1),)).describe([], 4)
    assert found["data_parallel"] == {"size": 2, "rank": 1, "by": "sampler"}


def test_a_sampler_that_contradicts_the_mesh_leaves_it_open() -> None:
    mesh = Mesh(("tp",), (2,), (0,))
    found = layout_of(mesh, samplers=((2, 0),)).describe([], 2)["data_parallel"]
    assert set(found) == {"by"}
    assert "the device mesh says 1 and the sampler 2" in found["by"]
    agreed = layout_of(mesh, samplers=((2, 0), (1, 0))).describe([], 2)["data_parallel"]
    assert agreed["size"] == 1


def test_meshes_that_contradict_each_other_leave_it_open() -> None:
    meshes = Mesh(("tp",), (2,), (0,)), Mesh(("dp",), (2,), (0,))
    assert "contradict" in layout_of(*meshes).describe([], 2)["data_parallel"]["by"]


def test_one_rank_needs_no_layout() -> None:
    assert layout_of().describe([], 1) == {}


def test_samplers_of_other_libraries_are_read() -> None:
    found = Layout()
    shard = SimpleNamespace(num_processes=4, process_index=3)
    found.note_loader(SimpleNamespace(sampler=None, batch_sampler=shard))
    found.note_loader(SimpleNamespace(sampler=SimpleNamespace(num_replicas=2, rank=0)))
    found.note_loader(SimpleNamespace())
    assert found.samplers == {(4, 3), (2, 0)}


def test_meshes_are_noted_and_not_kept() -> None:
    found = Layout()
    mesh = SimpleNamespace(
        mesh_dim_names=("dp", "tp"),
        get_coordinate=lambda: [0, 1],
        size=lambda number: (2, 3)[number],
        ndim=2,
        _dim_group_names=["7", "8"],
    )
    found.note_mesh(mesh)
    assert found.meshes == [Mesh(("dp", "tp"), (2, 3), (0, 1))]
    assert found.dimensions == {"7": "dp", "8": "tp"}
    assert found.version == 1
    mesh.mesh_dim_names = ("dp", "cp")
    found.note_mesh(mesh)
    assert found.dimensions == {"7": "dp", "8": ""}
    found.forget_meshes()  # a new world may give other ranks the same names
    assert (found.meshes, found.dimensions, found.version) == ([], {}, 3)


class Fake:
    """A process group of a library."""

    def __init__(self, name: str, size: int, place: int) -> None:
        self.group_name, self._size, self._place = name, size, place

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._place


def missing() -> Any:
    raise AssertionError("the group is not initialized")


@pytest.fixture
def layout(monkeypatch: pytest.MonkeyPatch) -> Layout:
    found = Layout()
    monkeypatch.setattr(libraries, "LAYOUT", found)
    return found


def test_megatron_says_its_dimensions_and_who_shares_samples(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SimpleNamespace(
        model_parallel_is_initialized=lambda: False,
        get_data_parallel_group=lambda: Fake("4", 2, 1),
        get_tensor_model_parallel_group=lambda: Fake("7", 4, 3),
        get_pipeline_model_parallel_group=lambda: Fake("9", 1, 0),
        get_context_parallel_group=missing,
        get_expert_model_parallel_group=lambda: Fake("11", 2, 0),
    )
    monkeypatch.setitem(sys.modules, libraries.MEGATRON, state)
    libraries.note_libraries()
    assert layout.library is None
    state.model_parallel_is_initialized = lambda: True
    libraries.note_libraries()
    assert layout.dimensions == {"4": "dp", "7": "tp", "11": "ep"}
    version = layout.version
    libraries.note_libraries()
    assert layout.version == version
    facts = layout.describe([], 8)
    assert facts["parallel"] == {"dp": 2, "tp": 4}
    assert facts["data_parallel"] == {"size": 2, "rank": 1, "by": "Megatron"}


def test_deepspeed_says_its_dimensions_once_it_communicates(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    # DeepSpeed's own functions make a group if there is none: `missing` fails the test's facts.
    groups = SimpleNamespace(_get_data_parallel_group=missing, mpu=None, _WORLD_GROUP=None)
    world = SimpleNamespace(WORLD=Fake("0", 4, 2))
    monkeypatch.setattr(torch.distributed, "group", world)
    monkeypatch.setitem(sys.modules, libraries.DEEPSPEED, groups)
    comm = SimpleNamespace(cdb=None)
    monkeypatch.setitem(sys.modules, "deepspeed.comm.comm", comm)
    libraries.note_libraries()
    assert layout.library is None
    comm.cdb = SimpleNamespace(is_initialized=lambda: True)
    libraries.note_libraries()
    facts = layout.describe([], 4)
    assert facts["parallel"] == {"dp": 4}
    assert facts["data_parallel"] == {"size": 4, "rank": 2, "by": "DeepSpeed"}
    groups._WORLD_GROUP = Fake("3", 4, 2)  # it makes a clone, which sends all of its own
    libraries.note_libraries()
    assert layout.dimensions == {"0": "dp", "3": "dp"}


def test_deepspeed_asks_the_topology_that_a_job_gives_it(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = SimpleNamespace(
        get_data_parallel_group=lambda: Fake("1", 2, 1),
        get_model_parallel_group=lambda: Fake("2", 4, 3),
    )
    groups = SimpleNamespace(mpu=topology)
    monkeypatch.setitem(sys.modules, libraries.DEEPSPEED, groups)
    comm = SimpleNamespace(cdb=SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "deepspeed.comm.comm", comm)
    libraries.note_libraries()
    facts = layout.describe([], 8)
    assert facts["parallel"] == {"dp": 2, "tp": 4}
    assert facts["data_parallel"] == {"size": 2, "rank": 1, "by": "DeepSpeed"}


def test_a_library_that_has_other_names_says_nothing(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, libraries.MEGATRON, SimpleNamespace())
    libraries.note_libraries()
    assert "size" not in layout.describe([], 4)["data_parallel"]
