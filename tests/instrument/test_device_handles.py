"""Handles of collectives on a device: NCCL's, simulated. Who asks a null future ends the job."""

from __future__ import annotations

import gc
import itertools
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from profkit.instrument.captures import Captures
from profkit.instrument.collectives import HERE, CallLog
from profkit.instrument.device import DeviceTimer
from profkit.instrument.guard import Patches
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.rows import CollectiveRow
from profkit.instrument.sent import Group, name_group
from profkit.testing import FakeClock, FakeDevice

pytest.importorskip("torch")

import torch

from profkit.instrument.frameworks.pytorch.collectives import GroupCalls  # torch
from profkit.instrument.frameworks.pytorch.groups import Watched, describe_group  # torch
from profkit.instrument.frameworks.pytorch.operations import OPERATIONS  # torch
from profkit.instrument.frameworks.pytorch.waits import hook_coalescing, hook_waits  # torch


class Handle:
    """A handle; torch's has a null pointer as its future after coalesced operations."""

    def __init__(self) -> None:
        self.asked = 0

    def get_future(self) -> Any:
        self.asked += 1
        future: Any = torch.futures.Future()
        future.set_result(None)
        return future

    def look(self) -> bool:
        """Do what a test wants while the job waits."""
        return True


class Rank:
    """One rank with a group over a backend, and profkit's hooks on stand-ins for torch's types."""

    def __init__(self, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = FakeClock()
        self.clock, self.device, self.sink = clock, FakeDevice(clock), MemorySink()
        self.timer = DeviceTimer(
            self.device, self.sink.appender("spans"), clock=clock, captures=Captures()
        )
        self.timer.collect()
        recorder = Recorder(self.sink, device=self.timer, clock=clock)
        append = self.sink.appender("collectives")
        log = CallLog(recorder, append, defaultdict(itertools.count), clock=clock)
        self.calls = GroupCalls(log, [])
        group = Group("g", 2, "", blocks=False, members=(0, 1))
        self.watched = Watched(group, 0, {"cpu": backend})
        self.patches = Patches()
        distributed: Any = torch.distributed
        work, groups = type("Work", (Handle,), {}), type("Group", (), {})
        work.wait = lambda self: self.look()  # type: ignore[attr-defined]
        groups._start_coalescing = lambda self: None  # type: ignore[attr-defined]
        groups._end_coalescing = lambda self: work()  # type: ignore[attr-defined]
        monkeypatch.setattr(distributed, "Work", work)
        monkeypatch.setattr(distributed, "ProcessGroup", groups)
        hook_coalescing(self.patches, self.calls)
        hook_waits(self.patches, self.calls)
        self.new_handle, self.group = work, groups()

    def send(self, name: str, work: Any, *, is_async: bool = True) -> None:
        tensors = [torch.ones(4)]
        sent = self.calls.begin(self.watched, OPERATIONS[name], tensors, 1)
        self.calls.end(sent, work, is_async=is_async)

    def rows(self) -> list[CollectiveRow]:
        self.clock.advance(10**9)
        self.timer.collect()
        return [CollectiveRow(*row) for row in self.sink.rows["collectives"]]


def open_rank(backend: str, monkeypatch: pytest.MonkeyPatch) -> Rank:
    HERE.work = HERE.coalesced = None
    return Rank(backend, monkeypatch)


def test_messages_that_begin_together_end_when_their_handle_was_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = open_rank("nccl", monkeypatch)
    rank.group._start_coalescing()
    rank.send("SEND", None)
    rank.send("RECV", None)
    work = rank.group._end_coalescing()
    assert rank.rows() == []
    rank.device.launch(5_000)
    work.wait()
    assert work.asked == 0
    assert [(row.op, row.backend) for row in rank.rows()] == [("send", "nccl"), ("recv", "nccl")]
    assert all(row.end_ns >= row.start_ns + 5_000 for row in rank.rows())


def test_a_message_over_gloo_is_open_only_while_the_job_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = open_rank("gloo", monkeypatch)
    work = rank.new_handle()
    seen: list[bool] = []

    def refuse() -> Any:
        raise RuntimeError("not supported")

    def note() -> bool:
        seen.extend(each.done for each in rank.calls.log.entered())
        return True

    work.get_future, work.look = refuse, note
    rank.send("SEND", work)
    note()
    work.wait()
    note()
    assert seen == [True, False, True]


@pytest.mark.parametrize("name", ["ALLGATHER", "REDUCE_SCATTER"])
def test_parts_of_different_sizes_have_no_future(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = open_rank("nccl", monkeypatch)
    work = rank.new_handle()
    rank.send(name, work)
    work.wait()
    assert work.asked == 0
    assert len(rank.rows()) == 1


@pytest.mark.parametrize("backend", ["nccl2", "nccl-lazy", "hccl", "somebody's own"])
def test_a_future_that_may_change_the_job_is_not_asked_for(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = open_rank(backend, monkeypatch)
    work = rank.new_handle()
    rank.send("ALLREDUCE", work)
    work.wait()
    assert work.asked == 0
    (row,) = rank.rows()
    assert row.backend == ("nccl" if "nccl" in backend else backend)


def test_the_future_of_one_collective_over_nccl_gives_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = open_rank("nccl", monkeypatch)
    work = rank.new_handle()
    rank.send("ALLREDUCE", work)
    assert work.asked == 1
    assert len(rank.rows()) == 1


@pytest.mark.parametrize("is_async", [True, False])
def test_handles_that_nobody_waits_for_leave_no_events_behind(
    is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = open_rank("nccl2", monkeypatch)
    for _ in range(50):
        rank.send("ALLREDUCE", rank.new_handle(), is_async=is_async)
        gc.collect(0)  # only what is new: all that other tests have made takes a second
    assert rank.timer.pool_size <= 3
    assert rank.rows() == []
    entered = [each for each in rank.calls.log.entered() if not each.done]
    assert len(entered) <= 1


def described(name: str, ranks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Return a group of these ranks in a job of four, as the first of its ranks describes it."""
    distributed: Any = torch.distributed
    monkeypatch.setattr(distributed, "get_process_group_ranks", lambda group: list(ranks))
    monkeypatch.setattr(distributed, "get_world_size", lambda: 4)
    group = SimpleNamespace(
        group_name=name,
        rank=lambda: 0,
        size=lambda: len(ranks),
        _device_types=[torch.device("cpu")],
        _get_backend=lambda device: SimpleNamespace(name=lambda: "GLOO"),
    )
    watched = describe_group(group)
    assert watched is not None
    return watched


def test_groups_of_one_name_with_other_ranks_are_other_communicators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = MemorySink()
    append = sink.appender("collectives")
    log = CallLog(Recorder(sink), append, defaultdict(itertools.count))
    for ranks in [(0, 1), (2, 3), (0, 1)]:
        group = described("1", ranks, monkeypatch).group("cpu", "all_reduce", -1)
        log.end(log.begin(group, "all_reduce", (8, "float32")), waited=True)
    rows = [CollectiveRow(*row) for row in sink.rows["collectives"]]
    first, second, third = ((row.communicator, row.sequence) for row in rows)
    assert first[0] != second[0]
    assert second[1] == 0
    assert third == (first[0], 1)
    assert {entered.group for entered in log.entered()} == {"1"}
    message = described("1", (2, 3), monkeypatch).group("cpu", "send", 1)
    assert name_group(message.name) == "1:0>1"


def test_the_communicator_of_all_ranks_has_the_frameworks_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert described("0", (0, 1, 2, 3), monkeypatch).group("cpu", "barrier", -1).name == "0"
