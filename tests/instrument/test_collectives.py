"""Each collective that a job calls itself makes one row, whichever way it is called."""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from profkit.instrument.collectives import Message
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.sent import Group

torch = pytest.importorskip("torch")
distributed = torch.distributed

COLUMNS = (
    "communicator",
    "sequence",
    "op",
    "bytes",
    "dtype",
    "group_size",
    "ready_ns",
    "start_ns",
    "end_ns",
    "backend",
    "step",
    "bucket",
    "dimension",
    "module",
    "microbatch",
)


class Hooked:
    """A process group of one rank, with the hooks of its collectives."""

    def __init__(self) -> None:
        from profkit.instrument.frameworks.base import Books
        from profkit.instrument.frameworks.pytorch import hook_exchange
        from profkit.instrument.guard import Patches

        self.sink = MemorySink()
        self.recorder = Recorder(self.sink)
        self.patches = Patches()
        tables = [self.sink.appender(name) for name in ("collectives", "samples", "events")]
        books = Books(self.recorder, tables[0], tables[1], tables[2])
        self.end_of_backward = hook_exchange(self.patches, books, []).end_of_backward

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [dict(itertools.zip_longest(COLUMNS, row)) for row in self.sink.rows["collectives"]]


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


HOOK = "register_pre_hook"


@pytest.fixture(params=["hooks", "methods", "hooks in Python", "methods in Python"])
def hooked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hooked]:
    """Hooks as torch 2.15 has them, and methods as before; with and without a compiled part."""
    if request.param.endswith("in Python"):
        from profkit.instrument import collectives
        from profkit.instrument.frameworks.pytorch import collectives as groups
        from profkit.instrument.sent import Sent

        monkeypatch.setattr(collectives, "CompiledSent", Sent)
        monkeypatch.setattr(groups, "CompiledCalls", None)
    if request.param.startswith("methods"):
        monkeypatch.delattr(distributed.ProcessGroup, HOOK, raising=False)
    elif not hasattr(distributed.ProcessGroup, HOOK):
        pytest.skip("this torch has no hooks of process groups")
    made = Hooked()
    yield made
    made.patches.undo()


def test_each_call_is_a_row_with_the_whole_messages_size(hooked: Hooked) -> None:
    tensor, half = torch.ones(6), torch.ones(4, dtype=torch.float16)
    distributed.all_reduce(tensor)
    distributed.broadcast(half, src=0)
    distributed.all_gather([torch.empty(6)], tensor)
    distributed.all_gather_into_tensor(torch.empty(6), tensor)
    distributed.reduce_scatter_tensor(torch.empty(6), input=tensor)
    distributed.all_to_all_single(torch.empty(6), tensor)
    expected = 6
    if hasattr(distributed, "all_gather_single"):  # since torch 2.15; FSDP2 calls these
        distributed.all_gather_single(torch.empty(6), tensor)
        distributed.reduce_scatter_single(torch.empty(6), tensor)
        assert [row["op"] for row in hooked.rows[6:]] == ["all_gather", "reduce_scatter"]
        expected = 8
    assert len(hooked.rows) == expected
    rows = hooked.rows[:6]
    assert [(row["op"], row["bytes"], row["dtype"]) for row in rows] == [
        ("all_reduce", 24, "float32"),
        ("broadcast", 8, "float16"),
        ("all_gather", 24, "float32"),
        ("all_gather", 24, "float32"),
        ("reduce_scatter", 24, "float32"),
        ("all_to_all", 24, "float32"),
    ]
    assert [row["sequence"] for row in rows] == list(range(6))
    assert {(row["group_size"], row["backend"], row["step"], row["bucket"]) for row in rows} == {
        (1, "gloo", 0, None)
    }
    assert all(row["start_ns"] <= row["end_ns"] for row in rows)


def test_what_the_host_waits_for_is_exposed(hooked: Hooked) -> None:
    distributed.all_reduce(torch.ones(3))
    assert [(row[1], row[2], row[3]) for row in hooked.sink.rows["spans"]] == [
        ("allreduce", "all_reduce", 0)
    ]


def test_a_call_that_does_not_wait_has_its_row_when_it_is_done(hooked: Hooked) -> None:
    work = distributed.all_reduce(torch.ones(3), async_op=True)
    work.wait()
    assert [row["bytes"] for row in hooked.rows] == [12]


def test_the_broadcast_of_buffers_is_a_collective_inside_forward(hooked: Hooked) -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    model = torch.nn.parallel.DistributedDataParallel(inner)
    hooked.sink.rows["collectives"].clear()  # of DDP's construction
    hooked.sink.rows["spans"].clear()
    for _ in range(2):
        model(torch.ones(2, 8)).sum().backward()
        hooked.end_of_backward()
    # DDP also sends the order of its buckets once, as integers.
    calls = [row for row in hooked.rows if row["bucket"] is None and row["dtype"] != "int32"]
    size = sum(each.numel() * each.element_size() for each in inner.buffers())
    # The first forward has nothing new to send.
    assert {(row["op"], row["bytes"], row["dtype"]) for row in calls} == {
        ("broadcast", size, "float32")
    }
    assert 1 <= len(calls) <= 2
    names = [row[2] for row in hooked.sink.rows["spans"] if row[1] == "allreduce"]
    assert names.count("broadcast") == len(calls)


@pytest.mark.filterwarnings("ignore:.*broadcast_buffers:FutureWarning")
def test_a_model_that_broadcasts_no_buffers_has_no_rows_of_it(hooked: Hooked) -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    model = torch.nn.parallel.DistributedDataParallel(inner, broadcast_buffers=False)
    hooked.sink.rows["collectives"].clear()
    model(torch.ones(2, 8)).sum().backward()
    hooked.end_of_backward()
    assert {row["op"] for row in hooked.rows} == {"all_reduce"}


def test_ddp_makes_rows_of_its_buckets_alone(hooked: Hooked) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    hooked.sink.rows["collectives"].clear()  # of DDP's construction
    model(torch.ones(2, 8)).sum().backward()
    hooked.end_of_backward()
    rows = [row for row in hooked.rows if row["bucket"] is not None]
    assert sum(row["bytes"] for row in rows) == 4 * sum(each.numel() for each in model.parameters())
    assert len(hooked.rows) == len(rows)
    distributed.all_reduce(torch.ones(1))
    sequence = [row["sequence"] for row in hooked.rows]
    assert sequence == sorted(set(sequence))


def test_a_wrong_call_fails_as_it_does_without_us(hooked: Hooked) -> None:
    with pytest.raises(TypeError):
        distributed.all_reduce()
    assert hooked.rows == []


def test_undone_there_is_nothing_left() -> None:
    plain, broadcast = distributed.all_reduce, distributed._broadcast_coalesced
    wait = distributed.Work.wait
    made = Hooked()
    assert distributed.all_reduce is plain  # torch's compiler knows it by its identity
    assert distributed._broadcast_coalesced is not broadcast
    made.patches.undo()
    distributed.all_reduce(torch.ones(1))
    assert made.rows == []
    assert distributed._broadcast_coalesced is broadcast
    assert distributed.Work.wait is wait


def test_what_is_sent_while_profkit_is_switched_off_is_counted_and_not_written() -> None:
    from profkit.instrument.collectives import CallLog

    sink = MemorySink()
    recorder = Recorder(sink, is_measured=lambda step: step > 0)
    log = CallLog(recorder, sink.appender("collectives"), defaultdict(itertools.count))
    group = Group("g", 2, "gloo", blocks=True)
    log.end(log.begin(group, "all_reduce", Message(8, "float32")), waited=True)
    recorder.end_step(1, 1)
    log.end(log.begin(group, "all_reduce", Message(8, "float32")), waited=True)
    assert [row[1] for row in sink.rows["collectives"]] == [1]


def test_what_a_hook_does_to_a_bucket_before_it_is_sent_is_no_transfer(hooked: Hooked) -> None:
    def slow_to_send(group: object, bucket: Any) -> Any:
        time.sleep(0.02)
        return (
            distributed.all_reduce(bucket.buffer(), async_op=True)
            .get_future()
            .then(lambda done: done.value()[0])
        )

    # DDP compares annotations with its own classes, and those of this file are text.
    slow_to_send.__annotations__ = {}
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model.register_comm_hook(None, slow_to_send)
    model(torch.ones(2, 4)).sum().backward()
    hooked.end_of_backward()
    (row,) = (row for row in hooked.rows if row["bucket"] is not None)
    assert row["bucket"] == 0
    assert row["ready_ns"] + 20_000_000 <= row["start_ns"] <= row["end_ns"]


def _exchange(hooked: Hooked, hook: Any) -> list[tuple[Any, ...]]:
    """Train one backward with a communication hook; return the op, bytes and type of its rows."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    model.register_comm_hook(None, hook)
    model(torch.ones(2, 64)).sum().backward()
    hooked.end_of_backward()
    assert model.module.weight.grad is not None
    rows = [row for row in hooked.rows if row["bucket"] is not None]
    return [(row["op"], row["bytes"], row["dtype"]) for row in rows]


def test_a_bucket_that_a_hook_compresses_has_the_bytes_that_are_sent(hooked: Hooked) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    assert _exchange(hooked, fp16_compress_hook) == [("all_reduce", (64 * 64 + 64) * 2, "float16")]


def test_a_bucket_is_named_after_what_its_hook_calls(hooked: Hooked) -> None:
    def gather(group: object, bucket: Any) -> Any:
        parts = [torch.empty_like(bucket.buffer())]
        sent = distributed.all_gather(parts, bucket.buffer(), async_op=True)
        return sent.get_future().then(lambda _: parts[0])

    gather.__annotations__ = {}
    assert _exchange(hooked, gather) == [("all_gather", (64 * 64 + 64) * 4, "float32")]


def test_a_bucket_that_a_hook_sends_to_another_group_is_that_groups(hooked: Hooked) -> None:
    group = distributed.new_group([0])
    distributed.all_reduce(torch.ones(3), group=group)

    def reduce(_: object, bucket: Any) -> Any:
        sent = distributed.all_reduce(bucket.buffer(), group=group, async_op=True)
        return sent.get_future().then(lambda done: done.value()[0])

    reduce.__annotations__ = {}
    _exchange(hooked, reduce)
    distributed.all_reduce(torch.ones(3), group=group)
    rows = [row for row in hooked.rows if row["communicator"] == group.group_name]
    assert [(row["sequence"], row["bucket"]) for row in rows] == [(0, None), (1, 0), (2, None)]


def test_messages_to_single_ranks_are_no_part_of_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    from profkit.instrument.collectives import HERE, CallLog
    from profkit.instrument.frameworks.pytorch.collectives import GroupCalls
    from profkit.instrument.frameworks.pytorch.groups import Watched
    from profkit.instrument.frameworks.pytorch.operations import OPERATIONS

    recorder = Recorder(MemorySink())
    calls = GroupCalls(CallLog(recorder, lambda row: None, defaultdict(itertools.count)), [])
    watched = Watched(Group("g", 2, "gloo", blocks=True, members=(0, 1)), 0, {"cpu": "gloo"})
    monkeypatch.setattr(HERE, "parts", [])
    calls.note_part(watched, OPERATIONS["SEND"], [torch.ones(4)], 1)
    assert HERE.parts == []
    calls.note_part(watched, OPERATIONS["ALLREDUCE"], [torch.ones(4)], -1)
    assert HERE.parts is not None
    assert [(part.op, part.bytes, part.group.name) for part in HERE.parts] == [
        ("all_reduce", 16, "g")
    ]


def test_a_hook_that_sends_nothing_has_no_exchange(hooked: Hooked) -> None:
    def keep(group: object, bucket: Any) -> Any:
        done: Any = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    keep.__annotations__ = {}
    rows = _exchange(hooked, keep)
    if hasattr(distributed.ProcessGroup, HOOK):
        assert rows == []
    else:  # a hook may send what no method of Python shows
        assert rows == [("all_reduce", (64 * 64 + 64) * 4, "float32")]


def test_what_the_job_has_imported_is_hooked_when_it_makes_a_group() -> None:
    """A function that is replaced after it was compiled is compiled again."""
    from profkit.instrument.frameworks.pytorch.functional import hook_first_group
    from profkit.instrument.guard import Patches

    patches, looks = Patches(), list[bool]()
    hook_first_group(patches, lambda: looks.append(True))
    try:
        distributed.new_group([0])
    finally:
        patches.undo()
    assert looks == [True]
