"""The hot path of collectives in C does what the one in Python does."""

from __future__ import annotations

import datetime as dt
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from profkit.instrument import collectives
from profkit.instrument.collectives import HERE
from profkit.instrument.guard import FAILURES
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.rows import Row

torch = pytest.importorskip("torch")
distributed: Any = torch.distributed
if not hasattr(distributed.ProcessGroup, "register_pre_hook"):
    pytest.skip("this torch has no hooks of process groups", allow_module_level=True)
if collectives.COMPILED is None:
    pytest.skip("profkit was installed without a compiler", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def _group() -> Iterator[None]:
    store = distributed.HashStore()
    patience = dt.timedelta(seconds=300)
    distributed.init_process_group("gloo", rank=0, world_size=1, store=store, timeout=patience)
    yield
    distributed.destroy_process_group()


class Recorded:
    """What the hooks make of a job of one rank."""

    def __init__(self) -> None:
        from profkit.instrument.frameworks.base import InnerBooks
        from profkit.instrument.frameworks.pytorch import FRAMEWORK

        self.sink = MemorySink()
        self.recorder = Recorder(self.sink)
        sink = self.sink
        books = InnerBooks(self.recorder, sink.appender("collectives"), sink.appender("samples"))
        self.patches, _ = FRAMEWORK.install_inner(books)

    def rows(self) -> list[Row]:
        """Return the rows of collectives without their times."""
        return [(*row[:6], *row[9:]) for row in self.sink.rows["collectives"]]

    def spans(self) -> list[Row]:
        return [(*row[:5], *row[7:]) for row in self.sink.rows["spans"]]


def waits() -> None:
    for dtype in (torch.float32, torch.int64, torch.float16):
        distributed.all_reduce(torch.ones(5, dtype=dtype))
    distributed.all_gather([torch.empty(3)], torch.ones(3))
    distributed.gather(torch.ones(2), [torch.empty(2)])
    distributed.barrier()


def goes_on() -> None:
    works = [distributed.all_reduce(torch.ones(7), async_op=True) for _ in range(20)]
    works.append(distributed.all_gather_into_tensor(torch.empty(4), torch.ones(4), async_op=True))
    works.append(distributed.barrier(async_op=True))
    for work in works:
        work.wait()
        work.wait()


def never_waits() -> None:
    options = distributed.AllreduceOptions()
    options.asyncOp = False
    for _ in range(3):
        distributed.group.WORLD.allreduce([torch.ones(6)], options)
    distributed.all_reduce(torch.ones(1))


def sends_sparse() -> None:
    distributed.all_reduce(torch.eye(3).to_sparse())
    distributed.all_reduce(torch.ones(2))


def fails() -> None:
    for _ in range(12):  # more than are remembered
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            distributed.group.WORLD.allreduce([torch.ones(2), torch.ones(3)])
    distributed.all_reduce(torch.ones(4))


def waits_for_a_result() -> None:
    from torch.distributed import _functional_collectives as functional

    for _ in range(2):
        functional.wait_tensor(functional.all_reduce(torch.ones(9), "sum", distributed.group.WORLD))


def names_a_module() -> None:
    HERE.module = "layers.3"
    distributed.all_reduce(torch.ones(4))
    HERE.module = None
    distributed.all_reduce(torch.ones(4))


def is_quiet() -> None:
    HERE.inside, HERE.sent_ns = True, 0
    distributed.all_reduce(torch.ones(4))
    assert HERE.sent_ns > 0
    HERE.inside = False
    distributed.all_reduce(torch.ones(4))


def uses_other_groups() -> None:
    for _ in range(2):
        group = distributed.new_group([0])
        for _ in range(3):
            distributed.all_reduce(torch.ones(3), group=group)
        distributed.all_reduce(torch.ones(3))
        distributed.destroy_process_group(group)


JOBS = [
    waits,
    goes_on,
    never_waits,
    sends_sparse,
    fails,
    waits_for_a_result,
    names_a_module,
    is_quiet,
    uses_other_groups,
]
MAY_END_EARLIER = (goes_on, waits_for_a_result)


@pytest.mark.parametrize("job", JOBS)
def test_both_record_the_same(job: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    FAILURES.clear()
    for twin in (None, collectives.COMPILED):
        monkeypatch.setattr(collectives, "COMPILED", twin)
        recorded = Recorded()
        try:
            job()
        finally:
            recorded.patches.undo()
        rows = sorted(recorded.rows(), key=lambda row: (row[1], len(row[0])))
        # Names of groups count up; if an operation ends before its wait, nothing was waited for.
        spans = [] if job in MAY_END_EARLIER else sorted(recorded.spans(), key=str)
        found.append(([row[1:] for row in rows], spans))
    assert found[0] == found[1]
    assert found[1][0]
    assert not FAILURES


def test_a_handle_that_nobody_waits_for_keeps_nothing_alive() -> None:
    recorded = Recorded()
    try:
        tensor = torch.ones(4)
        gone = weakref.ref(tensor)
        distributed.all_reduce(torch.ones(1))
        work = distributed.all_reduce(tensor, async_op=True)
        while not work.is_completed():
            pass
        distributed.all_reduce(torch.ones(1))
        del work, tensor
        gc.collect()
        assert gone() is None
    finally:
        recorded.patches.undo()


def test_operations_have_the_times_of_their_call() -> None:
    recorded = Recorded()
    try:
        for _ in range(5):
            before = recorded.recorder.clock()
            distributed.all_reduce(torch.ones(4))
            after = recorded.recorder.clock()
            row = recorded.sink.rows["collectives"][-1]
            assert before <= row[6] == row[7] <= row[8] <= after
    finally:
        recorded.patches.undo()


def test_a_wait_looks_as_the_one_that_it_times() -> None:
    plain = distributed.Work.wait
    recorded = Recorded()
    try:
        assert distributed.Work.wait is not plain
        assert distributed.Work.wait.__name__ == plain.__name__
        assert distributed.Work.wait.__wrapped__ is plain
        work = distributed.all_reduce(torch.ones(1), async_op=True)
        assert work.wait(timeout=dt.timedelta(seconds=60))
        with pytest.raises(TypeError):
            work.wait("never")
    finally:
        recorded.patches.undo()


def test_compiled_calls_fail_at_import_if_a_field_of_groups_is_renamed() -> None:
    program = (
        "import collections\n"
        "from profkit.instrument import sent\n"
        "fields = ['ranks' if name == 'size' else name for name in sent.Group._fields]\n"
        "sent.Group = collections.namedtuple('Group', fields)\n"
        "import profkit.instrument._calls\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "Group has no field 'size', which _calls.c reads" in done.stderr
