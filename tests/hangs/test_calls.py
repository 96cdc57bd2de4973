"""The calls of a rank: when torch's lists are read, and which of its two lists."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from profkit.instrument.captures import CAPTURES
from profkit.instrument.frameworks.pytorch import flight
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.run.lookout.calls import CallReader
from tests.hangs.test_flight import entry


class Lists:
    """A framework whose lists and numbers a test sets."""

    def __init__(self, *entries: Any) -> None:
        self.number = 1
        self.entries = entries
        self.read = 0

    def dump_flight(self, *, with_calls: bool = True) -> tuple[str, ...]:
        self.read += with_calls
        dump = {"pg_status": self.number, "entries": self.entries if with_calls else []}
        return (json.dumps(dump),)


def read(reader: CallReader, framework: Any) -> list[bool]:
    calls, _ = reader.read(framework, Recorder(MemorySink()))
    return [call.done for call in calls]


def test_lists_are_read_again_only_when_their_numbers_change() -> None:
    lists, reader = Lists(entry(1, retired=False)), CallReader()
    # The number may change just before the list does.
    assert read(reader, lists) == [False]
    lists.entries = (entry(1, retired=True),)
    assert [read(reader, lists) for _ in range(5)] == [[True]] * 5
    assert lists.read == 2
    lists.number, lists.entries = 2, (entry(1, retired=True), entry(2, retired=False))
    assert [read(reader, lists) for _ in range(5)] == [[True, False]] * 5
    assert lists.read == 4


def test_messages_change_no_number() -> None:
    message = entry(1, retired=False, name="nccl:send 0->1", is_p2p=True)
    lists, reader = Lists(message), CallReader()
    for _ in range(5):
        read(reader, lists)
    assert lists.read == 5


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_calls_are_known_after_the_job_has_left_its_group(group: None) -> None:
    framework: Any = SimpleNamespace(dump_flight=flight.dump_flight)
    reader = CallReader()
    dist.all_reduce(torch.ones(3))
    before, source = reader.read(framework, Recorder(MemorySink()))
    assert (before[-1].op, before[-1].done, source) == ("all_reduce", True, "the flight recorder")
    dist.barrier()
    dist.destroy_process_group()
    after, _ = reader.read(framework, Recorder(MemorySink()))
    assert (after[-1].op, after[-1].done) == ("barrier", True)
    assert after[-1].sequence == before[-1].sequence + 1


def test_the_list_of_nccl_is_read_if_the_job_uses_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps the calls of NCCL apart from those of other backends."""
    asked: list[bool] = []

    def dump_nccl(with_calls: bool) -> bytes:
        asked.append(with_calls)
        first = entry(7, retired=True, name="nccl:all_reduce", time_created_ns=10)
        last = entry(8, retired=False, name="nccl:all_reduce", time_created_ns=30)
        return json.dumps({"entries": [first, last] if with_calls else []}).encode()

    def dump_others(with_calls: bool) -> bytes:
        barrier = entry(3, retired=True, name="gloo:barrier", time_created_ns=20)
        return json.dumps({"entries": [barrier] if with_calls else []}).encode()

    monkeypatch.setattr(torch._C._distributed_c10d, flight.NCCL, dump_nccl, raising=False)
    monkeypatch.setattr(torch._C._distributed_c10d, flight.OTHERS, dump_others)
    framework: Any = SimpleNamespace(dump_flight=flight.dump_flight)
    calls, _ = CallReader().read(framework, Recorder(MemorySink()))
    assert [(call.group, call.sequence) for call in calls] == [("0", 3)]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    calls, _ = CallReader().read(framework, Recorder(MemorySink()))
    assert [(call.group, call.sequence, call.done) for call in calls] == [
        ("0", 7, True),
        ("0 (not NCCL)", 3, True),
        ("0", 8, False),
    ]
    asked.clear()
    monkeypatch.setattr(CAPTURES, "open", 1)
    CallReader().read(framework, Recorder(MemorySink()))
    assert asked == [False, False]  # the events of a capture are not asked for
