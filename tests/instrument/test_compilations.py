"""Compilations of torch: times, failed guards and graph breaks, as the compiler says."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import profkit
from profkit.frame.compiling import Compiling, find_compiling
from profkit.instrument.compilations import MOST_LETTERS, MOST_NAMES, Compilations, cut, name_code
from profkit.instrument.frameworks.base import Books
from profkit.instrument.guard import Patches
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.testing import FakeClock
from profkit.trace import Trace
from profkit.trace.reader import events_of, find_runs
from profkit.vocab import EventKind

JOB = Path(__file__).with_name("jobs") / "compile_job.py"


class Log:
    """A process whose rows are kept in memory."""

    def __init__(self) -> None:
        self.sink = MemorySink()
        self.clock = FakeClock(now_ns=1)
        self.recorder = Recorder(self.sink, clock=self.clock)
        self.log = Compilations(self.recorder, self.sink.appender("events"), lambda: True)

    def reasons(self) -> list[str | None]:
        return [row[4] for row in self.sink.rows["events"]]


def test_a_compilation_is_a_row_and_a_phase_inside_the_one_it_interrupts() -> None:
    own = Log()
    with own.recorder.phase("forward"):
        own.clock.advance(10)
        own.log.add(5, 9, "f (a.py:1)", guard="x is larger")
    expected = (None, 9, EventKind.RECOMPILED, "f (a.py:1)", "x is larger", 4.0)
    assert own.sink.rows["events"] == [expected]
    inner, outer = own.sink.rows["spans"]
    assert (inner[1], inner[3], inner[5:7]) == ("compile", 1, (5, 9))
    assert (outer[1], outer[3]) == ("forward", 0)


def test_names_are_limited_in_number_and_length() -> None:
    own = Log()
    for number in range(MOST_NAMES + 10):
        own.log.add(1, 2, "f (a.py:1)", guard=f"size {number}")
    assert len(set(own.reasons())) == MOST_NAMES + 1
    assert own.reasons()[-1] is None
    assert len(cut("x" * 10_000)) == MOST_LETTERS + 3
    assert cut("\n  first \nsecond") == "first"
    assert cut("") == ""


def test_code_has_its_name_and_place() -> None:
    code = compile("def torch_dynamo_resume_in_forward_at_12(): pass", "/a/b.py", "exec").co_consts[
        0
    ]
    assert name_code(code) == "rest of forward (b.py:1)"


@pytest.fixture
def compiler() -> Iterator[tuple[MemorySink, Any]]:
    """The rows of what torch compiles in this process."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch._dynamo")
    from profkit.instrument.frameworks.pytorch.compilations import hook_compiler

    torch._dynamo.reset()
    sink, patches = MemorySink(), Patches()
    books = Books(
        Recorder(sink),
        sink.appender("collectives"),
        sink.appender("samples"),
        sink.appender("events"),
    )
    hook_compiler(patches, books)
    yield sink, torch
    patches.undo()
    handler = torch._dynamo.callback_handler
    assert not handler.start_callbacks
    assert not handler.end_callbacks
    torch._dynamo.reset()


def _kinds(sink: MemorySink) -> list[EventKind]:
    return [row[2] for row in sink.rows["events"]]


def _said(sink: MemorySink, *kinds: EventKind) -> list[str]:
    """The names of these events with their reasons."""
    rows = [row for row in sink.rows["events"] if row[2] in (kinds or tuple(EventKind))]
    return [f"{name}: {detail}" if detail else name for *_, name, detail, _value in rows]


def test_torch_says_what_failed(compiler: tuple[MemorySink, Any]) -> None:
    sink, torch = compiler

    def double(x: Any) -> Any:
        return x * 2

    compiled = torch.compile(double, backend="eager", dynamic=False)
    for size in (2, 2, 3, 4):
        compiled(torch.ones(size))
    _, second, third = _said(sink)
    assert _kinds(sink)[0] is EventKind.COMPILED
    for each in (second, third):
        assert each.startswith("double (test_compilations.py:")
        assert "size mismatch" in each
    assert all(row[5] > 0 for row in sink.rows["events"])
    assert [row[1] for row in sink.rows["spans"]] == ["compile"] * 3


def test_the_remarks_of_torch_are_no_part_of_a_guard(compiler: tuple[MemorySink, Any]) -> None:
    sink, torch = compiler

    def add(x: Any, number: int) -> Any:
        return x + number

    compiled = torch.compile(add, backend="eager", dynamic=False)
    for number in (1, 2):
        compiled(torch.ones(2), number)
    metric = _said(sink)[-1]
    assert metric.startswith("add (test_compilations.py:")
    assert metric.endswith(("number == 1", "L['number'] == 1")), metric  # torch 2.4: the latter


def test_a_function_with_too_many_variants_is_not_what_is_compiled(
    compiler: tuple[MemorySink, Any],
) -> None:
    """It fails its guards whenever it is called, between the compilations of other functions."""
    sink, torch = compiler
    if torch.__version__ < "2.7":
        pytest.skip("torch before 2.7 does not say what it compiles")

    def double(x: Any) -> Any:
        return x * 2

    def add(x: Any, number: int) -> Any:
        return x + number

    doubled = torch.compile(double, backend="eager", dynamic=False)
    added = torch.compile(add, backend="eager", dynamic=False)
    for size in (2, 3):
        doubled(torch.ones(size))
    for number in range(torch._dynamo.config.recompile_limit + 3):
        added(torch.ones(2), number)
    doubled(torch.ones(5))
    metric = _said(sink)[-1]
    assert metric.startswith("double (test_compilations.py:")
    assert "size mismatch" in metric


def test_a_module_of_torch_has_its_class_and_the_line_that_calls_it(
    compiler: tuple[MemorySink, Any],
) -> None:
    """torch compiles a wrapper in its place: `inner (external_utils.py:67)` says nothing."""
    sink, torch = compiler
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    compiled = torch.compile(layers, backend="eager", dynamic=False)
    for rows in (2, 3):
        compiled(torch.ones(rows, 4))
    (metric,) = _said(sink, EventKind.RECOMPILED)
    assert metric.startswith("Sequential (test_compilations.py:"), metric
    assert "size mismatch" in metric


@pytest.mark.parametrize("kind", ["function", "module"])
def test_a_function_over_its_limit_is_named(compiler: tuple[MemorySink, Any], kind: str) -> None:
    """From then on torch runs it uncompiled, which no callback says."""
    sink, torch = compiler

    def double(x: Any) -> Any:
        return x * 2

    what = double if kind == "function" else torch.nn.Sequential(torch.nn.ReLU())
    compiled = torch.compile(what, backend="eager", dynamic=False)
    most = getattr(torch._dynamo.config, "recompile_limit", 8)
    for size in range(2, most + 2):
        compiled(torch.ones(size))
    assert not _said(sink, EventKind.OVER_LIMIT)
    for size in range(2, most + 6):
        compiled(torch.ones(size))
    (row,) = (each for each in sink.rows["events"] if each[2] is EventKind.OVER_LIMIT)
    name = "double" if kind == "function" else "Sequential"
    assert row[3].startswith(f"{name} (test_compilations.py:")
    assert row[5] == most


def test_torch_says_where_a_graph_breaks(compiler: tuple[MemorySink, Any]) -> None:
    sink, torch = compiler

    def broken(x: Any) -> Any:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    torch.compile(broken, backend="eager")(torch.ones(2))
    (place,) = _said(sink, EventKind.GRAPH_BREAK)
    assert "test_compilations.py:" in place


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_a_graph_break_has_its_explanation_and_no_value_of_the_job(
    compiler: tuple[MemorySink, Any],
) -> None:
    """The first line, `Attempted to call function marked as skipped`, names no function."""
    sink, torch = compiler
    if torch.__version__ < "2.9":
        pytest.skip("earlier versions of torch word it differently")

    def broken(x: Any, word: str) -> Any:
        x = x + 1
        hashlib.md5(word.encode())
        return x * 2

    torch.compile(broken, backend="eager")(torch.ones(2), "hunter2")
    (place,) = _said(sink, EventKind.GRAPH_BREAK)
    assert "md5" in place
    assert "hunter2" not in place
    assert "Hint" not in place


def test_a_branch_on_a_tensor_is_said_in_words(compiler: tuple[MemorySink, Any]) -> None:
    sink, torch = compiler

    def broken(x: Any) -> Any:
        return x + 1 if x.sum() > 0 else x * 2

    torch.compile(broken, backend="eager")(torch.ones(2))
    (place,) = _said(sink, EventKind.GRAPH_BREAK)
    assert place.startswith("a branch depends on the values of a tensor (test_")


def _refuse(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("no kernel for token=hunter2")


def test_a_function_that_cannot_be_compiled_is_named(compiler: tuple[MemorySink, Any]) -> None:
    """With `suppress_errors`, torch runs it uncompiled, and no list of torch says so."""
    sink, torch = compiler

    def double(x: Any) -> Any:
        return x * 2

    with torch._dynamo.config.patch(suppress_errors=True):
        torch.compile(double, backend=_refuse)(torch.ones(2))
    (failed,) = _said(sink, EventKind.NOT_COMPILED)
    assert failed.startswith("double (test_compilations.py:")
    assert "RuntimeError: no kernel for token=(left out)" in failed


def test_a_break_in_a_loop_leaves_the_function_uncompiled(
    compiler: tuple[MemorySink, Any],
) -> None:
    sink, torch = compiler

    def looped(x: Any) -> Any:
        for _ in range(3):
            x = x + 1
            torch._dynamo.graph_break()
        return x

    torch.compile(looped, backend="eager")(torch.ones(2))
    (failed,) = _said(sink, EventKind.NOT_COMPILED)
    assert failed.startswith("looped (test_compilations.py:")
    assert "torch._dynamo.graph_break()" in failed


def test_an_error_that_the_job_handles_is_no_failure(compiler: tuple[MemorySink, Any]) -> None:
    sink, torch = compiler
    try:
        json.loads("{")
    except ValueError:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert _kinds(sink) == [EventKind.COMPILED]


def test_a_guard_has_no_secret(compiler: tuple[MemorySink, Any]) -> None:
    sink, torch = compiler

    def add(x: Any, token: str) -> Any:
        return x + len(token)

    compiled = torch.compile(add, backend="eager")
    for token in ("hunter2", "hunter33"):
        compiled(torch.ones(2), token)
    assert _kinds(sink)[-1] is EventKind.RECOMPILED
    assert "hunter" not in _said(sink)[-1]


def test_a_hook_of_ours_in_a_compiled_function_is_no_break_of_the_job(
    compiler: tuple[MemorySink, Any],
) -> None:
    """A compiled function that trains calls what `backward` and the optimizer were replaced by."""
    sink, torch = compiler
    own: dict[str, Any] = {"torch": torch}
    source = "def hook(x):\n    torch._dynamo.graph_break()\n    return x * 2\n"
    exec(compile(source, str(Path(profkit.__file__).parent / "hooks.py"), "exec"), own)

    def train(x: Any) -> Any:
        return own["hook"](x + 1)

    torch.compile(train, backend="eager")(torch.ones(2))
    assert _said(sink)
    assert not _said(sink, EventKind.GRAPH_BREAK)


TRAINS = """
import json, torch
from torch._dynamo.utils import counters, get_compilation_metrics
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters())

@torch.compile(backend="eager")
def train(x, y):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()

data = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(8)]
for x, y in torch.utils.data.DataLoader(data, batch_size=None):
    loss = train(x, y)
frames = {"compiled": len(get_compilation_metrics()), "frames": counters["frames"]["total"]}
found = {"loss": loss.item(), **frames, **counters["stats"]}
print(json.dumps(found))
"""


SCALES = TRAINS.replace("loss.backward()", "scaler.scale(loss).backward()").replace(
    "optimizer.step()", "scaler.step(optimizer); scaler.update()"
)
SCALES = SCALES.replace("optimizer =", "scaler = torch.amp.GradScaler('cpu')\noptimizer =")


@pytest.mark.parametrize("job", [TRAINS, SCALES], ids=["plain", "scaler"])
def test_a_compiled_step_is_compiled_as_without_our_hooks(tmp_path: Path, job: str) -> None:
    """The compiler followed the calls into the hooks of the backward and of the optimizer."""
    (tmp_path / "job.py").write_text(job)
    bare = [sys.executable, "job.py"]
    recorded = [sys.executable, "-m", "profkit", "run", "-o", "runs", "--", *bare]
    said = []
    for command in (bare, recorded):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "graph break" not in done.stderr.lower()
        said.append(json.loads(done.stdout))
    compiled = [each.pop("compiled") for each in said]
    frames = [each.pop("frames") for each in said]
    assert said[0] == said[1]
    assert compiled[1] <= compiled[0]
    # torch looks at frames that copy a batch for the scaler, and compiles nothing of them
    assert frames[1] <= frames[0] or job is SCALES
    trace = Trace.open(find_runs(tmp_path / "runs")[0])
    assert {"backward", "optimizer"} <= set(trace.spans["phase"].to_pylist())
    breaks = events_of(trace.events, EventKind.GRAPH_BREAK)["name"].to_pylist()
    assert any("backward" in name for name in breaks)
    assert not any("disable" in name for name in breaks), "that is a hook of ours"
    assert any("torch compiles no optimizer's zero_grad (job.py:" in name for name in breaks)
    assert any("gradient scaler (job.py:" in name for name in breaks) == (job is SCALES)


def test_a_reset_of_torch_keeps_our_callbacks(compiler: tuple[MemorySink, Any]) -> None:
    sink, torch = compiler
    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert _kinds(sink) == [EventKind.COMPILED]


def test_guards_that_fail_after_a_reset_are_seen(compiler: tuple[MemorySink, Any]) -> None:
    """A reset clears torch's lists, which then hold fewer failures than were seen before."""
    sink, torch = compiler

    def double(x: Any) -> Any:
        return x * 2

    for sizes in (range(2, 8), range(2, 4)):
        torch._dynamo.reset()
        compiled = torch.compile(double, backend="eager", dynamic=False)
        for size in sizes:
            compiled(torch.ones(size))
    again = [kind is EventKind.RECOMPILED for kind in _kinds(sink)]
    assert again == [False, *[True] * 5, False, True]


def _start(folder: Path, *options: str, recorded: bool) -> dict[str, Any]:
    """Run the job, and return what torch itself counted."""
    job = [sys.executable, str(JOB), "--backend", "eager", "--width", "16", "--steps", "60"]
    if recorded:
        job = [sys.executable, "-m", "profkit", "run", "--output", "runs", "--", *job]
    done = subprocess.run(
        [*job, "--out", f"own-{recorded}", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / f"own-{recorded}.0.json").read_text())
    return found


def _compiling(folder: Path) -> Compiling:
    found = find_compiling(Trace.open(find_runs(folder / "runs")[0]))
    assert found is not None
    return found


@pytest.mark.parametrize("fault", ["shapes", "print"])
def test_a_recorded_job_compiles_what_the_bare_one_does(tmp_path: Path, fault: str) -> None:
    """Before, torch compiled our function around each model, with breaks and guards of its own."""
    pytest.importorskip("torch")
    bare = _start(tmp_path, "--fault", fault, recorded=False)
    recorded = _start(tmp_path, "--fault", fault, recorded=True)
    assert recorded["functions"] == bare["functions"]
    assert recorded["graph_breaks"] == bare["graph_breaks"]
    assert sum(times for _, times in _compiling(tmp_path).breaks) == bare["graph_breaks"]


def test_a_recorded_job_has_its_compilations(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    own = _start(tmp_path, "--fault", "shapes", recorded=True)
    found = _compiling(tmp_path)
    assert found.steps.tolist() == [0, 30, 50]
    assert found.ns / 1e9 == pytest.approx(own["torch_s"], rel=0.05)
    (again,) = found.recompiled
    assert again.times == 2
    assert again.function.startswith("forward (compile_job.py:")
    assert "size mismatch" in again.guard


def test_what_follows_a_compilation_has_its_own_name(compiler: tuple[MemorySink, Any]) -> None:
    sink, torch = compiler
    callback = torch._dynamo.callback
    for trigger in ("LAZY_BACKWARD", "CUDAGRAPH_RECORDING"):
        if not hasattr(callback, "CallbackTrigger"):
            pytest.skip("this version of torch names no triggers")
        about = callback.CallbackArgs(callback.CallbackTrigger[trigger], "0/1")
        handler = callback.callback_handler
        handler.run_start_callbacks(about)
        handler.run_end_callbacks(about)
    assert _said(sink, EventKind.COMPILED) == ["backward", "recording of a CUDA graph"]


@pytest.fixture
def to_static() -> Iterator[tuple[MemorySink, Any]]:
    """The rows of what Paddle compiles in this process."""
    paddle = pytest.importorskip("paddle")
    from profkit.instrument.frameworks.paddlepaddle.compilations import COMPILERS

    sink, patches = MemorySink(), Patches()
    books = Books(
        Recorder(sink),
        sink.appender("collectives"),
        sink.appender("samples"),
        sink.appender("events"),
    )
    for module, hook in COMPILERS.items():
        if module in sys.modules:
            hook(patches, books)
    yield sink, paddle
    patches.undo()


def test_no_time_of_paddle_is_counted_twice(to_static: tuple[MemorySink, Any]) -> None:
    """Translated bytecode builds its program inside the translation, or after it."""
    sink, paddle = to_static

    def broken(x: Any) -> Any:
        x = x * 2
        if float(x.numpy().max()) > 1e9:
            x = x + 1
        return x + 3

    compiled = paddle.jit.to_static(broken, full_graph=False)
    for size in (2, 3, 4):
        compiled(paddle.ones([size]))
    timed = [row for row in sink.rows["events"] if row[5]]
    ends = [(row[1] - row[5], row[1]) for row in timed]
    assert ends
    for (_, ended), (begun, _) in itertools.pairwise(sorted(ends)):
        assert begun >= ended
    assert not [row for row in sink.rows["events"] if "$resume" in row[3]]


def test_code_that_paddle_resumes_has_the_name_of_its_function() -> None:
    code = (lambda: None).__code__.replace(co_name="$resume_1@$resume_0@forward_af1a0")
    assert name_code(code).startswith("rest of forward (test_compilations.py:")


@pytest.mark.parametrize("full_graph", [True, False])
def test_paddle_compiles_once_for_each_kind_of_input(
    to_static: tuple[MemorySink, Any], full_graph: bool
) -> None:
    sink, paddle = to_static

    def double(x: Any) -> Any:
        return x * 2 + 1

    compiled = paddle.jit.to_static(double, full_graph=full_graph)
    for shape in ([2, 3], [2, 3], [4]):
        found = compiled(paddle.ones(shape))
        assert float(found.sum()) == 3.0 * len(paddle.ones(shape).flatten())
    first = _said(sink, EventKind.COMPILED)
    again = _said(sink, EventKind.RECOMPILED)
    own = f"double ({Path(__file__).name}:"
    assert any(own in each for each in first), first
    assert any(own in each for each in again), again
    reason = "inputs of another shape" if full_graph else "a guard that Paddle does not name"
    assert any(reason in each for each in again), again
    assert all(row[5] > 0 for row in sink.rows["events"])


@pytest.mark.parametrize("full_graph", [True, False])
def test_paddles_first_program_of_an_instance_and_a_mode_is_no_other_one(
    to_static: tuple[MemorySink, Any], full_graph: bool
) -> None:
    """Layers of one class share their code, and evaluation has a program of its own."""
    sink, paddle = to_static

    class Block(paddle.nn.Layer):  # type: ignore[misc,name-defined]  # no types
        def forward(self, x: Any) -> Any:
            return paddle.nn.functional.dropout(x, 0.5, training=self.training)

    blocks = []
    for _ in range(2):
        blocks.append(paddle.jit.to_static(Block(), full_graph=full_graph))
        blocks[-1](paddle.ones([2, 3]))
    blocks[0].eval()
    blocks[0](paddle.ones([2, 3]))
    metrics = _said(sink)
    assert EventKind.RECOMPILED not in _kinds(sink)
    own = f"forward ({Path(__file__).name}:"
    count = sum(each.startswith(own) for each in metrics)
    assert count == 3 if full_graph else count > 1  # bytecode of equal layers may be shared
    blocks[0](paddle.ones([4]))
    assert EventKind.RECOMPILED in _kinds(sink)[len(metrics) :]


def test_a_function_that_is_wrapped_again_had_no_other_inputs(
    to_static: tuple[MemorySink, Any],
) -> None:
    sink, paddle = to_static

    def double(x: Any) -> Any:
        return x * 2

    for _ in range(2):
        paddle.jit.to_static(double, full_graph=True)(paddle.ones([2]))
    _, second = _said(sink)
    assert _kinds(sink) == [EventKind.COMPILED, EventKind.RECOMPILED]
    assert "to_static was applied to it again" in second
