"""Every collective of the installed Paddle makes a row, or is refused by name."""

from __future__ import annotations

import inspect
import itertools
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from profkit.instrument.collectives import CallLog
from profkit.instrument.frameworks.base import Books
from profkit.instrument.guard import Patches
from profkit.instrument.recorder import MemorySink, Recorder

paddle = pytest.importorskip("paddle")

from profkit.instrument.frameworks.paddlepaddle import (  # noqa: E402  # needs paddle
    collectives,
    hook_exchange,
)

RANKS = (2, 5, 7)
"""The ranks of a group whose second one calls."""

REFUSED = {
    "eager_connect": "connects ranks and sends nothing of the job",
    "eager_connect_ring_exchange": "as eager_connect",
    "get_comm_name": "asks for a name",
    "get_stream": "asks for a stream",
    "name": "asks for a name",
    "rank": "asks for a number",
    "restart": "connects the ranks again",
    "set_outer_wait": "sets an option",
    "shutdown": "ends the group",
    "size": "asks for a number",
}
"""Methods of process groups that make no row, with the reason."""

CALLS = {
    "all_gather", "all_gather_object", "all_reduce", "alltoall", "alltoall_single", "barrier",
    "broadcast", "broadcast_object_list", "gather", "irecv", "isend", "recv", "recv_object_list",
    "reduce", "reduce_scatter", "scatter", "scatter_object_list", "send", "send_object_list",
}  # fmt: skip
"""The functions of `paddle.distributed` that call process groups."""

NOT_COLLECTIVE = {
    "destroy_process_group",
    "group_sharded_parallel",
    "get_backend",
    "get_rank",
    "get_world_size",
    "restart_process_group",
    "shard_weight",
    "shutdown_process_group",
    "split",
    "wait",
}
"""Functions that take a group and send nothing of the job themselves."""


def test_every_method_of_process_groups_is_known_or_refused() -> None:
    real = paddle.base.core.ProcessGroup
    names = {name for name in dir(real) if not name.startswith("_")}
    names = {name.removesuffix(collectives.ON_CALC_STREAM) for name in names}
    assert names - set(collectives.METHODS) - set(REFUSED) == set()
    assert not set(collectives.METHODS) & set(REFUSED)


def test_every_function_that_takes_a_group_is_known() -> None:
    found = set()
    for name in dir(paddle.distributed):
        function = inspect.getattr_static(paddle.distributed, name)
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        if "group" in inspect.signature(function).parameters:
            found.add(name)
    assert found - CALLS - NOT_COLLECTIVE == set()


def test_every_function_calls_a_method_that_is_hooked() -> None:
    """The source of each function that streams operations names the methods."""
    stream = paddle.distributed.communication.stream
    for name in dir(stream):
        module = inspect.getattr_static(stream, name)
        if inspect.ismodule(module):
            source = inspect.getsource(module)
            called = {part.split("(")[0] for part in source.split(".process_group.")[1:]}
            bare = {each.strip().removesuffix(collectives.ON_CALC_STREAM) for each in called}
            assert bare <= set(collectives.METHODS), name


class Tensor:
    dtype = "paddle.float32"

    def __init__(self, elements: int) -> None:
        self.size = elements

    def element_size(self) -> int:
        return 4

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a comparison of tensors is a kernel of the device")

    __hash__ = None  # type: ignore[assignment]


class Task:
    waits = 0

    def wait(self) -> None:
        Task.waits += 1


class Fake:
    """A process group that sends nothing; `backend` is the name that it gives itself."""

    backend = "GLOO"

    def name(self) -> str:
        return self.backend


def _make(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if name.endswith(collectives.ON_CALC_STREAM) else Task()

    return method


class Hooked:
    def __init__(self, group: Any, rows: list[Any]) -> None:
        self.group, self._rows = group, rows

    @property
    def rows(self) -> list[tuple[str, str, int, int]]:
        """The communicator, operation, bytes and ranks of each row."""
        return [(row[0], row[2], row[3], row[5]) for row in self._rows]


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hooked]:
    methods = {}
    for name in collectives.METHODS:
        for full in (name, name + collectives.ON_CALC_STREAM):
            methods[full] = _make(full)
    kind = type("FakeGroup", (Fake,), methods)
    task = type("FakeTask", (Task,), {})
    monkeypatch.setattr(collectives, "core", SimpleNamespace(ProcessGroup=kind, task=task))
    group = kind()
    known = SimpleNamespace(id=4, process_group=group, ranks=list(RANKS), name="g", rank=1)
    manager = SimpleNamespace(group_map_by_id={4: known})
    module = paddle.distributed.communication.group
    monkeypatch.setattr(module, "_GroupManager", manager)
    layout = SimpleNamespace(_mp_comm_group=known)
    monkeypatch.setattr(collectives, "layout_in_use", lambda: layout)
    sink, patches = MemorySink(), Patches()
    log = CallLog(Recorder(sink), sink.appender("collectives"), defaultdict(itertools.count))
    collectives.hook_groups(patches, log)
    yield Hooked(group, sink.rows["collectives"])
    patches.undo()


WHOLE, PART = Tensor(300), Tensor(100)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "all_gather": ([PART] * 3, PART, True),
    "all_gather_into_tensor": (WHOLE, PART, True),
    "all_gather_partial": (WHOLE, WHOLE, 3, 1),
    "all_reduce": (WHOLE, "sum", True),
    "all_to_all": ([PART] * 3, [PART] * 3, True),
    "all_to_all_single": (WHOLE, WHOLE, [], [], True),
    "all_to_all_tensor": (WHOLE, WHOLE, True),
    "allreduce": (WHOLE, "sum"),
    "alltoall": (WHOLE, WHOLE),
    "alltoall_single": (WHOLE, WHOLE, [], []),
    "barrier": (),
    "broadcast": (WHOLE, 0, True),
    "gather": (PART, [], 0, True, False),
    "recv": (WHOLE, 2, True),
    "recv_partial": (WHOLE, 2, 3, 1),
    "reduce": (WHOLE, 0, "sum", True),
    "reduce_scatter": (PART, [PART] * 3, "sum", True),
    "reduce_scatter_tensor": (PART, WHOLE, "sum", True),
    "scatter": (PART, [], 0, True),
    "scatter_tensor": (PART, WHOLE, 0, True),
    "send": (WHOLE, 0, True),
    "send_partial": (WHOLE, 0, 3, 1),
}


@pytest.mark.parametrize("suffix", ["", collectives.ON_CALC_STREAM])
@pytest.mark.parametrize("name", sorted(collectives.METHODS))
def test_a_method_makes_one_row_with_the_whole_messages_size(
    hooked: Hooked, name: str, suffix: str
) -> None:
    getattr(hooked.group, name + suffix)(*ARGUMENTS[name])
    op = collectives.METHODS[name].op
    communicator, size, ranks = "g", 1200, len(RANKS)
    if op in ("send", "recv"):
        communicator, ranks = {"send": "g:1>0", "recv": "g:2>1"}[op], 2
    if name.endswith("_partial") and op != "all_gather":
        size = 400
    assert hooked.rows == [(communicator, op, 0 if name == "barrier" else size, ranks)]


def test_a_row_has_the_dimension_of_its_group(hooked: Hooked) -> None:
    hooked.group.all_reduce(WHOLE, "sum", True)
    assert [row[12] for row in hooked._rows] == ["mp"]


def test_without_the_names_of_fleet_there_is_no_dimension(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives, "layout_in_use", lambda: None)
    hooked.group.all_reduce(WHOLE, "sum", sync_op=False)
    assert [row[12] for row in hooked._rows] == [None]


def test_the_exchange_is_hooked_although_paddle_has_not_imported_its_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in Paddle 2.6."""
    monkeypatch.delattr(paddle.device.cuda, "graphs")
    patches, sink = Patches(), MemorySink()
    recorder = Recorder(sink)
    ignore = sink.appender("samples")
    books = Books(recorder, sink.appender("collectives"), ignore, ignore)
    try:
        hook_exchange(patches, books)
    finally:
        patches.undo()
