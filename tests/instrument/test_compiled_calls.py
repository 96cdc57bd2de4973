"""The hooks of process groups in C make the rows that those in Python make."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import weakref
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.instrument import collectives as logs
from profkit.instrument.captures import Captures
from profkit.instrument.collectives import HERE, CallLog
from profkit.instrument.device import DeviceTimer
from profkit.instrument.guard import FAILURES, Patches
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.sent import Group, Sent
from profkit.instrument.tracking.notes import Notes
from profkit.testing import FakeClock, FakeDevice
from tests.compiling import compile_module

pytest.importorskip("torch")

import torch

if not hasattr(torch.distributed.ProcessGroup, "register_pre_hook"):
    pytest.skip("this torch has no hooks of process groups", allow_module_level=True)

from profkit.instrument.frameworks.pytorch import collectives as groups  # torch
from profkit.instrument.frameworks.pytorch.group_hooks import GroupHooks  # torch
from profkit.instrument.frameworks.pytorch.groups import Watched  # torch
from profkit.instrument.frameworks.pytorch.layout import LAYOUT  # torch
from profkit.instrument.frameworks.pytorch.operations import OPERATIONS  # torch
from profkit.instrument.frameworks.pytorch.waits import hook_coalescing, hook_waits  # torch

NAMES: Any = torch._C._distributed_c10d.HookOpName
BACKENDS = ["gloo", "nccl", "nccl2"]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module in C: the installed one, else built here."""
    if groups.CompiledCalls is not None:
        return sys.modules[groups.CompiledCalls.__module__]
    source = Path(logs.__file__).with_name("_calls.c")
    return compile_module(source, tmp_path_factory.mktemp("calls"))


class Handle:
    """A handle whose operation ends when the test says so, or at once."""

    has_future = True

    def __init__(self) -> None:
        self.future: Any = torch.futures.Future()

    def get_future(self) -> Any:
        if not self.has_future:
            raise RuntimeError("not supported")
        return self.future

    def look(self) -> str:
        return "waited"


class Job:
    """One rank that does what it is told, on a clock of its own."""

    def __init__(self, compiled: Any, backend: str, *, notes: bool, on_device: bool) -> None:
        HERE.work = HERE.coalesced = HERE.module = None
        self.patch = pytest.MonkeyPatch()
        hooks_in_c = self._choose(compiled)
        self.clock, self.sink, self.backend = FakeClock(1_000), MemorySink(), backend
        self.device = FakeDevice(self.clock)
        spans = self.sink.appender("spans")
        self.timer = DeviceTimer(self.device, spans, clock=self.clock, captures=Captures())
        timer = self.timer if on_device else None
        self.recorder = Recorder(self.sink, device=timer, clock=self.clock)
        if notes:
            self._note()
        append = self.sink.appender("collectives")
        self.log = CallLog(self.recorder, append, defaultdict(itertools.count), clock=self.clock)
        self.calls = groups.GroupCalls(self.log, [])
        self.calls.look()
        own = GroupHooks(self.calls, "g")
        group = Group("g", 2, backend, blocks=False, members=(0, 1))
        own.watched = Watched(group, 0, {"cpu": backend})
        own._is_described = True
        self.hooks: Any = own if compiled is None else hooks_in_c(self.calls.compiled, own)
        self.kept: list[Any] = []
        self.told: list[Any] = []
        self.count = 0

    def _choose(self, compiled: Any) -> Any:
        self.patches = Patches()
        work, kind = type("Work", (Handle,), {}), type("Group", (), {})
        work.wait = lambda self: self.look()  # type: ignore[attr-defined]
        kind._start_coalescing = lambda self: None  # type: ignore[attr-defined]
        kind._end_coalescing = lambda self: work()  # type: ignore[attr-defined]
        self.patch.setattr(torch.distributed, "Work", work)
        self.patch.setattr(torch.distributed, "ProcessGroup", kind)
        self.patch.setattr(logs, "CompiledSent", compiled.Sent if compiled else Sent)
        self.patch.setattr(groups, "CompiledCalls", compiled.Calls if compiled else None)
        self.new_handle, self.group = work, kind()
        return compiled.Hooks if compiled else None

    def _note(self) -> None:
        notes = Notes(self, self.clock)
        notes.open(threading.get_ident(), None, 0, False)
        notes.begin_wait()
        self.recorder.redirect(lambda row, start, end: None, notes, lambda: None)
        self.notes = notes

    def run(self, actions: list[Any]) -> None:
        hook_coalescing(self.patches, self.calls)
        hook_waits(self.patches, self.calls)
        try:
            for name, *values in actions:
                self.clock.advance(10)
                getattr(self, name)(*values)
                self.timer.collect()
        finally:
            self.patches.undo()
            self.patch.undo()

    def send(self, name: str, sizes: list[int], dtype: Any, kind: str) -> None:
        tensors = [torch.ones(size, dtype=dtype) for size in sizes]
        self._pass(name, tensors, kind)

    def send_sparse(self, kind: str) -> None:
        self._pass("ALLREDUCE", [torch.eye(3).to_sparse()], kind)

    def _pass(self, name: str, tensors: list[Any], kind: str) -> None:
        self.count += 1
        common = {"name": getattr(NAMES, name), "op_id": self.count, "async_op": kind != "sync"}
        self.hooks.before(
            SimpleNamespace(input_tensors=tensors, output_tensors=tensors[:1], root=1, **common)
        )
        self.clock.advance(3)
        if kind == "lost":
            return
        together = HERE.coalesced is not None and self.backend != "gloo"
        work = None if kind == "none" or together else self.new_handle()
        if work is not None:
            work.has_future = kind != "without future"
            self.kept.append(work)
        self.hooks.after(SimpleNamespace(work=work, **common))
        if kind == "sync" and work is not None:
            work.future.set_result(None)

    def wait(self, place: int) -> None:
        if self.kept:
            self.told.append(self.kept[place % len(self.kept)].wait())

    def finish(self, place: int) -> None:
        if self.kept:
            future = self.kept[place % len(self.kept)].future
            if not future.done():
                future.set_result(None)

    def drop(self, place: int) -> None:
        if self.kept:
            del self.kept[place % len(self.kept)]
            gc.collect(0)

    def drop_waited(self) -> None:
        self.wait(-1)
        self.drop(-1)

    def begin_together(self) -> None:
        self.group._start_coalescing()

    def end_together(self) -> None:
        self.kept.append(self.group._end_coalescing())

    def step(self) -> None:
        self.recorder.end_step(self.clock(), 1)

    def switch(self) -> None:
        self.recorder.recording = not self.recorder.recording

    def name(self, module: str | None) -> None:
        HERE.module = module

    def by_address(self) -> None:
        self.calls.by_address = True

    def inside(self) -> None:
        HERE.inside = not HERE.inside

    def new_mesh(self) -> None:
        LAYOUT.version += 1

    def result(self) -> dict[str, Any]:
        HERE.inside = False
        self.clock.advance(10**9)
        self.timer.collect()
        noted = self.recorder.notes.take() if self.recorder.notes is not None else []
        return {
            "rows": self.sink.rows,
            "noted": noted,
            "told": self.told,
            "entered": list(self.log.entered()),
            "handles": len(self.log.handles),
            "in flight": len(self.calls.in_flight),
            "waits": HERE.work is not None,
            "sent": HERE.sent_ns != 0,
            "events": (self.timer.pool_size, len(self.timer._free)),
            "failures": dict(FAILURES),
        }


def run_job(compiled: Any, backend: str, actions: list[Any], **where: bool) -> dict[str, Any]:
    HERE.sent_ns = 0
    FAILURES.clear()
    job = Job(compiled, backend, **where)
    job.run(actions)
    return job.result()


KINDS = st.sampled_from(["sync", "sync", "async", "async", "none", "without future", "lost"])
SENDS = st.tuples(
    st.just("send"),
    st.sampled_from(["ALLREDUCE", *OPERATIONS, "SPLIT"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.sampled_from([torch.float32, torch.float16, torch.int64]),
    KINDS,
)
PLACES = st.integers(-1, 3)
ACTIONS = st.lists(
    st.one_of(
        SENDS,
        SENDS,
        SENDS,
        st.tuples(st.just("send"), st.just("BARRIER"), st.just([]), st.none(), KINDS),
        st.tuples(st.just("send_sparse"), KINDS),
        st.tuples(st.sampled_from(["wait", "wait", "finish", "drop"]), PLACES),
        st.tuples(st.just("name"), st.sampled_from(["layers.0", None])),
        st.tuples(
            st.sampled_from(
                [
                    "drop_waited",
                    "begin_together",
                    "end_together",
                    "step",
                    "switch",
                    "by_address",
                    "inside",
                    "new_mesh",
                ]
            )
        ),
    ),
    max_size=12,
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("notes", [False, True], ids=["at once", "noted"])
def test_hooks_in_c_make_the_rows_of_those_in_python(
    compiled: Any, backend: str, *, notes: bool
) -> None:
    where = {"notes": notes, "on_device": backend != "gloo"}

    @given(ACTIONS)
    @settings(max_examples=150, deadline=None)
    def check(actions: list[Any]) -> None:
        in_c = run_job(compiled, backend, actions, **where)
        assert in_c == run_job(None, backend, actions, **where)

    check()


def test_most_of_the_usual_is_not_left_to_python(compiled: Any) -> None:
    """Else the test above would compare nothing."""
    job = Job(compiled, "gloo", notes=True, on_device=False)
    job.send("ALLREDUCE", [4], torch.float32, "async")  # the first of its type is left
    job.patch.setattr(groups.GroupCalls, "begin", None)
    job.patch.setattr(groups.GroupCalls, "end", None)
    job.patch.setattr(CallLog, "end", None)
    job.patch.setattr(Recorder, "keep_inner", None)
    for kind in ("sync", "async"):
        send = ("send", "ALLREDUCE", [4], torch.float32, kind)
        job.run([send, ("finish", -1), ("wait", -1)])
    assert len(job.sink.rows["collectives"]) == 2
    assert not FAILURES


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_of_the_job_is_kept(compiled: Any, backend: str) -> None:
    job = Job(compiled, backend, notes=False, on_device=backend != "gloo")
    job.run([("send", "ALLREDUCE", [4], torch.float32, kind) for kind in ("async", "sync")])
    handles = [weakref.ref(each) for each in job.kept]
    for each in job.kept:
        each.wait()
        if not each.future.done():
            each.future.set_result(None)
    del each
    job.kept.clear()
    HERE.work = None
    job.log.handles.clear()  # the stand-ins of torch's types are undone, so nobody took them
    gc.collect()
    assert [handle() for handle in handles] == [None, None]


def test_a_failure_is_reported_and_an_interrupt_is_the_jobs(compiled: Any) -> None:
    job = Job(compiled, "gloo", notes=False, on_device=False)
    job.patch.undo()
    FAILURES.clear()
    job.hooks.before(SimpleNamespace())
    job.hooks.after(SimpleNamespace())
    assert dict(FAILURES) == {"collective begun": 1, "collective handed over": 1}

    class Interrupted:
        @property
        def name(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.hooks.before(Interrupted())
    FAILURES.clear()


def test_it_fails_at_import_if_a_field_of_rows_is_renamed() -> None:
    """Otherwise it would fill the wrong columns."""
    if groups.CompiledCalls is None:
        pytest.skip("the hooks in C are not installed")
    program = (
        "import collections\n"
        "from profkit.instrument import rows\n"
        "fields = [{'bytes': 'size'}.get(name, name) for name in rows.CollectiveRow._fields]\n"
        "rows.CollectiveRow = collections.namedtuple('CollectiveRow', fields)\n"
        "import profkit.instrument._calls\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert "has no field 'bytes' at place 3, which _calls.c uses" in done.stderr


def test_wrong_calls_raise(compiled: Any) -> None:
    for call in (compiled.Sent, compiled.Calls, compiled.Hooks, lambda: compiled.Hooks(1, 2)):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError, match="fields"):
        compiled.Sent((1, 2), "all_reduce", (8, "float32"), 0, 0, 0, None)
