"""Every public collective of the installed torch makes its rows, or is refused by name."""

from __future__ import annotations

import datetime as dt
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
distributed = torch.distributed

from profkit.instrument.frameworks.pytorch.operations import (  # noqa: E402  # needs torch
    NOT_RECORDED,
    OPERATIONS,
)
from tests.instrument.test_collectives import Hooked  # noqa: E402  # as above

Call = Callable[[], object]


def ones() -> Any:
    return torch.ones(4)


def empty() -> Any:
    return torch.empty(4)


CALLS: dict[str, tuple[Call, list[str]]] = {
    "all_gather": (lambda: distributed.all_gather([empty()], ones()), ["all_gather"]),
    "all_gather_coalesced": (
        lambda: distributed.all_gather_coalesced([[empty()]], [ones()]),
        ["all_gather"],
    ),
    "all_gather_into_tensor": (
        lambda: distributed.all_gather_into_tensor(empty(), ones()),
        ["all_gather"],
    ),
    "all_gather_object": (
        lambda: distributed.all_gather_object([None], 1),
        ["all_gather", "all_gather"],
    ),
    "all_gather_single": (lambda: distributed.all_gather_single(empty(), ones()), ["all_gather"]),
    "all_reduce": (lambda: distributed.all_reduce(ones()), ["all_reduce"]),
    "all_reduce_coalesced": (
        lambda: distributed.all_reduce_coalesced([ones(), ones()]),
        ["all_reduce"],
    ),
    "all_to_all": (lambda: distributed.all_to_all([empty()], [ones()]), ["all_to_all"]),
    "all_to_all_single": (lambda: distributed.all_to_all_single(empty(), ones()), ["all_to_all"]),
    "barrier": (distributed.barrier, ["barrier"]),
    "broadcast": (lambda: distributed.broadcast(ones(), src=0), ["broadcast"]),
    "broadcast_object_list": (
        lambda: distributed.broadcast_object_list([1], src=0),
        ["broadcast", "broadcast"],
    ),
    "gather": (lambda: distributed.gather(ones(), [empty()]), ["gather"]),
    "gather_object": (
        lambda: distributed.gather_object(1, [None]),
        ["all_gather", "gather"],
    ),
    "reduce": (lambda: distributed.reduce(ones(), dst=0), ["reduce"]),
    "reduce_scatter": (lambda: distributed.reduce_scatter(empty(), [ones()]), ["reduce_scatter"]),
    "reduce_scatter_single": (
        lambda: distributed.reduce_scatter_single(empty(), ones()),
        ["reduce_scatter"],
    ),
    "reduce_scatter_tensor": (
        lambda: distributed.reduce_scatter_tensor(empty(), ones()),
        ["reduce_scatter"],
    ),
    "scatter": (lambda: distributed.scatter(empty(), [ones()]), ["scatter"]),
    "scatter_object_list": (
        lambda: distributed.scatter_object_list([None], [1], src=0),
        ["broadcast", "scatter", "scatter"],
    ),
}
"""A call of each collective in a group of one rank, and the operations of its rows."""

MESSAGES = {"send", "recv", "isend", "irecv", "send_object_list", "recv_object_list"}
"""These need two ranks: `test_sharded.py` checks them, with `batch_isend_irecv`."""

REFUSED = {
    "gather_into_tensor": "no backend of torch's own on the host has it, so no row can be checked",
    "gather_single": "as gather_into_tensor",
    "monitored_barrier": "gloo's check for debugging, which passes no process group's operation",
}

NOT_COLLECTIVE = {
    "destroy_process_group",
    "get_backend",
    "get_backend_config",
    "get_backend_impl",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "new_subgroups",
    "set_timeout",
    "shrink_group",
    "supports_complex",
}
"""Functions that take a group and send nothing of the job."""


def names_of(module: Any) -> set[str]:
    """Return the public functions of a module that take a group."""
    found = set()
    for name in dir(module):
        function = inspect.getattr_static(module, name)
        # Not `isfunction`: a name that torch only warns about would warn here.
        if name.startswith("_") or type(function) is not types.FunctionType:
            continue
        if {"group", "pg"} & set(inspect.signature(function).parameters):
            found.add(name)
    return found


def test_every_function_of_torch_that_takes_a_group_is_known_or_refused() -> None:
    known = set(CALLS) | MESSAGES | set(REFUSED) | NOT_COLLECTIVE
    assert names_of(distributed) - known == set()
    assert not set(CALLS) & set(REFUSED)


def test_every_operation_of_process_groups_is_known_or_refused() -> None:
    names = getattr(torch._C._distributed_c10d, "HookOpName", None)
    if names is None:
        pytest.skip("this torch has no hooks of process groups")
    assert set(names.__members__) == set(OPERATIONS) | set(NOT_RECORDED)
    assert all(NOT_RECORDED.values())


@pytest.fixture(scope="module", autouse=True)
def _group() -> Iterator[None]:
    distributed.init_process_group(
        "gloo",
        rank=0,
        world_size=1,
        store=distributed.HashStore(),
        timeout=dt.timedelta(seconds=300),
    )
    yield
    distributed.destroy_process_group()


@pytest.fixture(params=["hooks", "methods"])
def hooked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hooked]:
    hook = "register_pre_hook"
    if request.param == "methods":
        monkeypatch.delattr(distributed.ProcessGroup, hook, raising=False)
    elif not hasattr(distributed.ProcessGroup, hook):
        pytest.skip("this torch has no hooks of process groups")
    made = Hooked()
    yield made
    made.patches.undo()


@pytest.mark.parametrize("name", sorted(CALLS))
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_collective_makes_its_rows_once(hooked: Hooked, name: str) -> None:
    if not hasattr(distributed, name):
        pytest.skip(f"this torch has no {name}")
    call, operations = CALLS[name]
    try:
        call()
    except RuntimeError as error:
        if "does not support" not in str(error):  # gloo of earlier versions has fewer
            raise
        pytest.skip(str(error))
    assert [row["op"] for row in hooked.rows] == operations
    sizes = [row["bytes"] for row in hooked.rows if row["op"] != "barrier"]
    assert all(sizes)
    if "object" not in name and "coalesced" not in name:
        assert sizes in ([], [16])


FUNCTIONAL: dict[str, tuple[Callable[[Any], Any], str]] = {
    "all_gather_single": (lambda own: own(ones(), 0, distributed.group.WORLD), "all_gather"),
    "all_gather_tensor": (lambda own: own(ones(), 0, distributed.group.WORLD), "all_gather"),
    "all_gather_single_coalesced": (
        lambda own: own([ones()], distributed.group.WORLD)[0],
        "all_gather",
    ),
    "all_gather_into_tensor_coalesced": (
        lambda own: own([ones()], distributed.group.WORLD)[0],
        "all_gather",
    ),
    "all_reduce": (lambda own: own(ones(), "sum", distributed.group.WORLD), "all_reduce"),
    "all_reduce_coalesced": (
        lambda own: own([ones()], "sum", distributed.group.WORLD)[0],
        "all_reduce",
    ),
    "all_to_all_single": (
        lambda own: own(ones(), None, None, distributed.group.WORLD),
        "all_to_all",
    ),
    "broadcast": (lambda own: own(ones(), 0, distributed.group.WORLD), "broadcast"),
    "reduce_scatter_single": (
        lambda own: own(ones(), "sum", 0, distributed.group.WORLD),
        "reduce_scatter",
    ),
    "reduce_scatter_tensor": (
        lambda own: own(ones(), "sum", 0, distributed.group.WORLD),
        "reduce_scatter",
    ),
    "reduce_scatter_single_coalesced": (
        lambda own: own([ones()], "sum", [0], distributed.group.WORLD)[0],
        "reduce_scatter",
    ),
    "reduce_scatter_tensor_coalesced": (
        lambda own: own([ones()], "sum", [0], distributed.group.WORLD)[0],
        "reduce_scatter",
    ),
}
"""A call of each functional collective, and the operation of its row."""

AUTOGRAD = "_autograd"
"""The variant of a functional collective that gradients pass through; the same operation runs."""

PERMUTES = "permute_tensor"
"""A functional collective made of another one."""


def test_every_functional_collective_is_known() -> None:
    module = pytest.importorskip("torch.distributed._functional_collectives")
    # torch's compiler puts these in place of the functions of `torch.distributed`.
    replaced = {name for name in names_of(module) if name.endswith("_inplace")}
    replaced |= {name for name in names_of(module) if name.startswith("legacy_")}
    found = {name.removesuffix(AUTOGRAD) for name in names_of(module) - replaced}
    assert found - set(FUNCTIONAL) - {PERMUTES} == set()


@pytest.mark.parametrize("name", sorted(FUNCTIONAL))
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_functional_collective_makes_one_row(hooked: Hooked, name: str) -> None:
    module = pytest.importorskip("torch.distributed._functional_collectives")
    if not hasattr(module, name):
        pytest.skip(f"this torch has no {name}")
    call, operation = FUNCTIONAL[name]
    call(getattr(module, name)).sum()
    assert [(row["op"], row["bytes"]) for row in hooked.rows] == [(operation, 16)]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_waiting_again_for_what_has_ended_makes_no_second_row(hooked: Hooked) -> None:
    module = pytest.importorskip("torch.distributed._functional_collectives")
    result = empty()
    distributed.reduce_scatter_tensor(result, ones(), async_op=True).wait()
    module.wait_tensor(result)
    assert [row["op"] for row in hooked.rows] == ["reduce_scatter"]
