"""Each kernel of a window finds the module that launched it, and the line that calls the module."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profkit.clock import Anchor
from profkit.importers.window_rows import read_rows
from profkit.instrument.windows.module_calls import ModuleCall
from profkit.instrument.windows.windows import Window
from profkit.schema import SCHEMAS

torch = pytest.importorskip("torch")

from profkit.instrument.frameworks.pytorch import module_calls  # noqa: E402

US = 1_000
THREAD = threading.get_native_id()


class Capture:
    """The Chrome JSON of a forward and its backward on a device, as torch.profiler writes it."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def op(self, name: str, start_us: float, end_us: float, arrow: int = 0, tid: int = 0) -> None:
        where = {"pid": os.getpid(), "tid": tid or THREAD, "ts": start_us}
        self._add(name, "cpu_op", end_us - start_us, where, {})
        if arrow:
            kind = "f" if name.endswith("Backward0") else "s"
            self.events.append({"ph": kind, "id": arrow, "cat": "fwdbwd", "name": "x", **where})

    def kernel(self, name: str, launch_us: float, number: int, tid: int = 0) -> None:
        where = {"pid": os.getpid(), "tid": tid or THREAD, "ts": launch_us}
        given = {"correlation": number}
        self._add("cudaLaunchKernel", "cuda_runtime", 2, where, given)
        on_device = {"pid": 0, "tid": 7, "ts": launch_us + 500}
        self._add(name, "kernel", 40, on_device, {**given, "device": 0, "stream": 7})

    def _add(self, name: str, kind: str, dur: float, where: Any, args: Any) -> None:
        event = {"ph": "X", "cat": kind, "name": name, "dur": dur, "args": args, **where}
        self.events.append(event)

    def rows(self, folder: Path, calls: list[ModuleCall]) -> list[dict[str, Any]]:
        path = folder / "window.json"
        path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": self.events}))
        window = Window(Anchor(0, 0, 0), 5, [0, 2_000 * US], [], calls)
        names = SCHEMAS["kernels"].names[1:]
        return [dict(zip(names, row, strict=True)) for row in read_rows(path, window)]


def test_a_kernel_of_the_forward_and_of_the_backward_have_their_module(tmp_path: Path) -> None:
    capture, engine = Capture(), THREAD + 1
    capture.op("aten::addmm", 20, 40, arrow=1)
    capture.kernel("gemm", 25, 1)
    capture.op("aten::relu", 60, 70, arrow=2)
    capture.kernel("relu", 62, 2)
    capture.kernel("loss", 110, 3)
    capture.op("ReluBackward0", 200, 220, arrow=2, tid=engine)
    capture.kernel("relu back", 205, 4, tid=engine)
    capture.op("AddmmBackward0", 230, 260, arrow=1, tid=engine)
    capture.kernel("gemm back", 240, 5, tid=engine)
    calls = [
        ModuleCall(THREAD, 15 * US, 45 * US, "Net.fc", "/job/net.py", 7),
        ModuleCall(THREAD, 10 * US, 100 * US, "Net", "/job/train.py", 3),
    ]
    rows = capture.rows(tmp_path, calls)
    found = {row["name"]: (row["module"], row["line"]) for row in rows}
    fc, net = ("Net.fc", "/job/net.py:7"), ("Net", "/job/train.py:3")
    assert found == {
        "gemm": fc, "relu": net, "loss": (None, None), "relu back": net, "gemm back": fc,
    }  # fmt: skip


def test_a_module_of_another_thread_is_not_that_of_a_launch(tmp_path: Path) -> None:
    capture = Capture()
    capture.op("aten::add", 20, 40)
    capture.kernel("add", 25, 1)
    capture.op("aten::mul", 20, 40, tid=THREAD + 1)
    rows = capture.rows(tmp_path, [ModuleCall(THREAD + 1, 0, 90 * US, "Other", "/job/a.py", 1)])
    assert [(row["module"], row["line"]) for row in rows] == [(None, None)]


def test_a_capture_without_calls_has_no_modules(tmp_path: Path) -> None:
    capture = Capture()
    capture.kernel("add", 25, 1)
    assert [row["module"] for row in capture.rows(tmp_path, [])] == [None]


class Block(torch.nn.Module):  # type: ignore[misc,name-defined]  # torch may be missing
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.rest = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())

    def forward(self, given: Any) -> Any:
        return self.rest(self.first(given))


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take code that another test has compiled for none of this one's."""
    monkeypatch.setattr(module_calls, "is_compiled", lambda: False)


def _calls_of(run: Any) -> dict[str, tuple[str, str]]:
    calls = module_calls.ModuleCalls()
    calls.begin()
    run()
    calls.end()
    known = len(calls.calls)
    run()
    assert len(calls.calls) == known, "outside of windows nothing is noted"
    lines = {}
    for call in calls.calls:
        assert call.start_ns <= call.end_ns
        assert call.thread == THREAD
        code = Path(call.file).read_text().splitlines()[call.line - 1].strip()
        lines[call.module] = (Path(call.file).name, code)
    return lines


@pytest.mark.usefixtures("uncompiled")
def test_modules_have_their_place_in_the_model_and_the_line_of_the_job() -> None:
    model = Block()
    found = _calls_of(lambda: model(torch.ones(1, 2)))
    own, called = Path(__file__).name, "return self.rest(self.first(given))"
    assert found["Block.first"] == found["Block.rest.0"] == (own, called)
    assert found["Block"] == (own, "found = _calls_of(lambda: model(torch.ones(1, 2)))")
    assert set(found) == {"Block", "Block.first", "Block.rest", "Block.rest.0", "Block.rest.1"}


@pytest.mark.usefixtures("uncompiled")
def test_a_module_that_raises_leaves_the_others_in_place() -> None:
    class Broken(torch.nn.Module):  # type: ignore[misc,name-defined]  # as above
        def forward(self, given: Any) -> Any:
            raise ValueError

    broken, model = Broken(), torch.nn.Sequential(torch.nn.ReLU())

    def run() -> None:
        with pytest.raises(ValueError, match=r"^$"):
            broken(torch.ones(1))
        model(torch.ones(1))

    assert set(_calls_of(run)) == {"Broken", "Sequential", "Sequential.0"}


def test_compiled_code_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = {"torch._dynamo.utils": SimpleNamespace(counters={"frames": {"ok": 1}})}
    assert module_calls.is_compiled(compiled)
    assert not module_calls.is_compiled({"torch._dynamo.utils": SimpleNamespace(counters={})})
    monkeypatch.setitem(__import__("sys").modules, *compiled.popitem())
    calls = module_calls.ModuleCalls()
    calls.begin()
    Block()(torch.ones(1, 2))
    calls.end()
    assert not calls.calls
