"""Scenarios that the hooks of every framework must pass; each runs on a CPU."""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from profkit.clock import now_ns
from profkit.instrument.device import DeviceTimer
from profkit.instrument.frameworks.base import Framework, Seams
from profkit.instrument.guard import FAILURES, Patches, guarded
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.rows import Row
from profkit.instrument.tracking.pending import EVALUATION, Pending
from profkit.instrument.tracking.states import CHECKPOINT, UNKNOWN
from profkit.instrument.tracking.steps import MOST_ROUNDS
from profkit.instrument.tracking.tracker import Tracker
from profkit.testing import FakeClock, FakeDevice
from profkit.vocab import AUTOCAST, SKIPPED_STEP, ZERO_GRAD

BATCH, COUNT, WIDTH = 4, 10, 4
PATIENCE_S = 120
SAMPLES = [4, 4, 2]
"""What `COUNT` samples in batches of `BATCH` give."""

LOADED_STEP = ["data", "h2d", "forward", "backward", "optimizer"]
RESETS = {"pytorch": "zero_grad", "paddlepaddle": "clear_grad"}
METHODS = [
    (kind, name)
    for kind in (Tracker, Pending)
    for name, value in sorted(vars(kind).items())
    if isinstance(value, types.FunctionType) and name != "__init__"
]


class Numbers:
    """Samples for both frameworks' loaders, also in worker processes."""

    def __init__(self, count: int = COUNT) -> None:
        self.values = np.random.default_rng(0).standard_normal((count, WIDTH)).astype("float32")

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.values[index], self.values[index, :1]

    def __len__(self) -> int:
        return len(self.values)


class Span(NamedTuple):
    """A row of `spans`."""

    step: int
    phase: str
    name: str
    depth: int
    thread: str
    start_ns: int
    end_ns: int
    device_start_ns: int | None
    device_end_ns: int | None
    bytes: int | None
    error: str | None


class Step(NamedTuple):
    """A row of `steps`."""

    step: int
    start_ns: int
    end_ns: int
    sample_count: int
    loss: float | None
    grad_scale: float | None
    instrumented: bool
    epoch: int | None


class Kit:
    """One framework in the terms of these scenarios."""

    name = ""
    base: Any
    """The class of all models."""

    def framework(self) -> Framework:
        module = importlib.import_module(f"profkit.instrument.frameworks.{self.name}")
        return module.FRAMEWORK  # type: ignore[no-any-return]

    def seed(self) -> None:
        raise NotImplementedError

    def model(self, forward: Callable[[Any], Any] | None = None) -> Any:
        """Layers inside layers, seeded; `forward` is called on the way."""
        raise NotImplementedError

    def optimizer(self, model: Any, kind: str = "SGD", **options: Any) -> Any:
        raise NotImplementedError

    def new_optimizer(self, model: Any, step: Callable[[], None]) -> Any:
        """One of a class that is defined only now, which steps so."""
        raise NotImplementedError

    def loader(self, count: int = COUNT, **options: Any) -> Any:
        raise NotImplementedError

    def zero(self, optimizer: Any) -> None:
        raise NotImplementedError

    def without_gradients(self) -> contextlib.AbstractContextManager[Any]:
        raise NotImplementedError

    def scaler(self, patch: pytest.MonkeyPatch) -> Any:
        """A gradient scaler that works on a CPU, at a scale of 8."""
        raise NotImplementedError

    def overflow(self, model: Any) -> None:
        """Make a gradient infinite."""
        raise NotImplementedError

    def save(self, model: Any, path: Path) -> None:
        raise NotImplementedError

    def mixed_precision(self) -> contextlib.AbstractContextManager[Any]:
        raise NotImplementedError

    def compile(self, function: Any, graphs: list[str], patch: pytest.MonkeyPatch) -> Any:
        """Compiled by the framework's own compiler, which notes each graph that it makes."""
        raise NotImplementedError

    def loss(self, model: Any, batch: Sequence[Any]) -> Any:
        outputs = model(batch[0].to("cpu"))
        return ((outputs - batch[1]) ** 2).mean()

    def train(self, model: Any, optimizer: Any, batches: Any) -> list[float]:
        """The plain loop."""
        losses = []
        for batch in batches:
            loss = self.loss(model, batch)
            loss.backward()
            optimizer.step()
            self.zero(optimizer)
            losses.append(float(loss.detach()))
        return losses


class TorchKit(Kit):
    name = "pytorch"

    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch", reason="torch is not installed")
        self.base = self.torch.nn.Module
        self.framework()

    def seed(self) -> None:
        self.torch.manual_seed(0)

    def model(self, forward: Callable[[Any], Any] | None = None) -> Any:
        nn = self.torch.nn
        self.seed()
        return nn.Sequential(
            nn.Linear(WIDTH, WIDTH),
            nn.Sequential(nn.ReLU(), _model_of(self.base, forward)),
            nn.Linear(WIDTH, 1),
        )

    def optimizer(self, model: Any, kind: str = "SGD", **options: Any) -> Any:
        return getattr(self.torch.optim, kind)(model.parameters(), lr=0.1, **options)

    def new_optimizer(self, model: Any, step: Callable[[], None]) -> Any:
        def takes_closure(self: Any, closure: Any = None) -> None:
            step()

        return type("New", (self.torch.optim.SGD,), {"step": takes_closure})(
            model.parameters(), lr=0.1
        )

    def loader(self, count: int = COUNT, **options: Any) -> Any:
        return self.torch.utils.data.DataLoader(Numbers(count), batch_size=BATCH, **options)

    def zero(self, optimizer: Any) -> None:
        optimizer.zero_grad()

    def without_gradients(self) -> contextlib.AbstractContextManager[Any]:
        return self.torch.no_grad()  # type: ignore[no-any-return]

    def scaler(self, patch: pytest.MonkeyPatch) -> Any:
        return self.torch.amp.GradScaler("cpu", init_scale=8.0)

    def overflow(self, model: Any) -> None:
        model[0].bias.grad[0] = float("inf")

    def save(self, model: Any, path: Path) -> None:
        self.torch.save(model.state_dict(), path)

    def mixed_precision(self) -> contextlib.AbstractContextManager[Any]:
        return self.torch.autocast("cpu", self.torch.bfloat16)  # type: ignore[no-any-return]

    def compile(self, function: Any, graphs: list[str], patch: pytest.MonkeyPatch) -> Any:
        def backend(graph: Any, inputs: Any) -> Any:
            graphs.append("graph")
            return graph.forward

        self.torch._dynamo.reset()
        return self.torch.compile(function, backend=backend)


class PaddleKit(Kit):
    name = "paddlepaddle"

    def __init__(self) -> None:
        self.paddle = pytest.importorskip("paddle", reason="paddlepaddle is not installed")
        self.base = self.paddle.nn.Layer
        self.framework()

    def seed(self) -> None:
        self.paddle.seed(0)

    def model(self, forward: Callable[[Any], Any] | None = None) -> Any:
        nn = self.paddle.nn
        self.seed()
        return nn.Sequential(
            nn.Linear(WIDTH, WIDTH),
            nn.Sequential(nn.ReLU(), _model_of(self.base, forward)),
            nn.Linear(WIDTH, 1),
        )

    def optimizer(self, model: Any, kind: str = "SGD", **options: Any) -> Any:
        return getattr(self.paddle.optimizer, kind)(
            learning_rate=0.1, parameters=model.parameters(), **options
        )

    def new_optimizer(self, model: Any, step: Callable[[], None]) -> Any:
        return type("New", (self.paddle.optimizer.SGD,), {"step": lambda self: step()})(
            learning_rate=0.1, parameters=model.parameters()
        )

    def loader(self, count: int = COUNT, **options: Any) -> Any:
        return self.paddle.io.DataLoader(Numbers(count), batch_size=BATCH, **options)

    def zero(self, optimizer: Any) -> None:
        optimizer.clear_grad()

    def without_gradients(self) -> contextlib.AbstractContextManager[Any]:
        return self.paddle.no_grad()  # type: ignore[no-any-return]

    def scaler(self, patch: pytest.MonkeyPatch) -> Any:
        """Give Paddle's scaler a fake GPU, without which it switches itself off."""
        module = importlib.import_module("paddle.amp.grad_scaler")
        with pytest.MonkeyPatch.context() as told:
            place = types.SimpleNamespace(is_gpu_place=lambda: True)
            told.setattr(
                module, "_dygraph_tracer", lambda: types.SimpleNamespace(_expected_place=place)
            )
            scaler = self.paddle.amp.GradScaler(init_loss_scaling=8.0, decr_every_n_nan_or_inf=1)
        scaler._scale = scaler._scale.reshape(
            []
        )  # as it is, numpy 2.4 does not let Paddle tell of an overflow
        patch.setattr(
            module, "amp_global_state", lambda: types.SimpleNamespace(amp_dtype="float16")
        )
        return scaler

    def overflow(self, model: Any) -> None:
        with self.paddle.no_grad():
            model[0].bias.grad.fill_(float("inf"))

    def save(self, model: Any, path: Path) -> None:
        self.paddle.save(model.state_dict(), str(path))

    def mixed_precision(self) -> contextlib.AbstractContextManager[Any]:
        """Paddle's own does nothing on a CPU, so the level that it sets on a GPU is set here."""
        framework, levels = (
            importlib.import_module("paddle.base.framework"),
            importlib.import_module("paddle.base.core").AmpLevel,
        )

        @contextlib.contextmanager
        def told() -> Iterator[None]:
            tracer = framework._dygraph_tracer()
            tracer._amp_level = levels.O1
            try:
                yield
            finally:
                tracer._amp_level = levels.O0

        return told()

    def compile(self, function: Any, graphs: list[str], patch: pytest.MonkeyPatch) -> Any:
        graph = importlib.import_module(
            "paddle.jit.sot.opcode_translator.executor.function_graph"
        ).FunctionGraph
        name = (
            "compile_graph" if hasattr(graph, "compile_graph") else "start_compile"
        )  # as Paddle 2.6 calls it
        original = getattr(graph, name)

        def compile_graph(*args: Any, **kwargs: Any) -> Any:
            graphs.append("graph")
            return original(*args, **kwargs)

        patch.setenv(
            "MIN_GRAPH_SIZE", "0"
        )  # below 10 operators it makes graphs, and does not use them
        patch.setattr(graph, name, compile_graph)
        return self.paddle.jit.to_static(function, full_graph=False)


def _model_of(base: Any, forward: Callable[[Any], Any] | None) -> Any:
    class Inner(base):  # type: ignore[misc]  # what a job defines
        def forward(self, x: Any) -> Any:
            return x if forward is None else forward(x)

    return Inner()


class Followed:
    """A tracker with a framework's hooks, and the rows that it makes in memory."""

    def __init__(self, kit: Kit, **options: Any) -> None:
        self._sink = MemorySink()
        self.recorder = Recorder(self._sink, **options)
        self.tracker = Tracker(self.recorder)
        self.patches = kit.framework().install(
            Seams(
                self.tracker,
                self._sink.appender("collectives"),
                self._sink.appender("samples"),
                self._sink.appender("events"),
            )
        )

    def finish(self) -> None:
        guarded("finish", self.tracker.finish, None)()
        self.patches.undo()

    @property
    def steps(self) -> list[Step]:
        return [Step(*row) for row in self._sink.rows["steps"]]

    @property
    def spans(self) -> list[Span]:
        """All spans but `resets`, which have tests of their own: a loop has them anywhere."""
        return [span for span in self._all_spans if span.name != ZERO_GRAD]

    @property
    def resets(self) -> list[Span]:
        """The spans in which gradients were reset."""
        return [span for span in self._all_spans if span.name == ZERO_GRAD]

    @property
    def _all_spans(self) -> list[Span]:
        return [Span(*row) for row in self._sink.rows["spans"]]

    @property
    def readings(self) -> list[tuple[Any, ...]]:
        return self._sink.rows["samples"]

    @property
    def events(self) -> list[tuple[Any, ...]]:
        return self._sink.rows["events"]

    @property
    def samples(self) -> list[int]:
        return [step.sample_count for step in self.steps]

    def phases(self, step: int) -> list[str]:
        """The phases of one step in order; what lies inside a phase is none."""
        return [span.phase for span in self.spans if span.step == step and span.depth == 0]


Follow = Callable[..., Followed]


@pytest.fixture(scope="module", params=[TorchKit, PaddleKit], ids=["torch", "paddle"])
def kit(request: pytest.FixtureRequest) -> Kit:
    return request.param()  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _failures() -> Iterator[None]:
    """No hook fails but where a test plants it."""
    FAILURES.clear()
    yield
    assert not FAILURES
    FAILURES.clear()


@pytest.fixture
def follow(kit: Kit) -> Iterator[Follow]:
    """Installs the hooks; they are taken back when the test ends, if it has not done so."""
    followed: list[Followed] = []

    def start(**options: Any) -> Followed:
        followed.append(Followed(kit, **options))
        return followed[-1]

    yield start
    for each in followed:
        each.patches.undo()


# -- steps and phases ------------------------------------------------------------------------------


def test_a_plain_loop_has_its_phases_in_order(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    losses = kit.train(model, kit.optimizer(model), kit.loader())
    followed.finish()
    assert followed.samples == SAMPLES
    assert followed.phases(0) == ["data", *LOADED_STEP], (
        "starting the loader is a part of the first step"
    )
    assert [followed.phases(step) for step in (1, 2)] == [LOADED_STEP] * 2
    assert [step.loss for step in followed.steps] == losses
    assert all(
        before.end_ns == after.start_ns
        for before, after in zip(followed.steps, followed.steps[1:], strict=False)
    )


def test_epochs_are_counted(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    optimizer, loader = kit.optimizer(model), kit.loader()
    for _ in range(2):
        kit.train(model, optimizer, loader)
    followed.finish()
    assert [(step.epoch, step.sample_count) for step in followed.steps] == [
        (epoch, samples) for epoch in (0, 1) for samples in SAMPLES
    ]


@pytest.mark.parametrize("first", [True, False], ids=["before the forward", "after the update"])
def test_a_reset_of_gradients_is_a_part_of_the_optimizer(
    kit: Kit, follow: Follow, *, first: bool
) -> None:
    """It makes no step, and delimits none."""
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    for batch in kit.loader():
        if first:
            kit.zero(optimizer)
        kit.loss(model, batch).backward()
        optimizer.step()
        if not first:
            kit.zero(optimizer)
    kit.zero(optimizer)  # between two epochs
    followed.finish()
    assert followed.samples == SAMPLES
    assert [followed.phases(step) for step in (1, 2)] == [LOADED_STEP] * 2
    resets = [span for span in followed.resets if span.step < len(SAMPLES)]
    assert [span.step for span in resets][:3] == [0, 1, 2]
    assert {(span.phase, span.depth, span.error) for span in resets} == {("optimizer", 0, None)}
    for step in (1, 2):
        times = {span.phase: span for span in followed.spans if span.step == step}
        reset = next(span for span in resets if span.step == step)
        assert reset.start_ns <= reset.end_ns
        if first:
            assert times["data"].end_ns <= reset.start_ns
            assert reset.end_ns <= times["backward"].start_ns
        else:
            assert times["optimizer"].end_ns <= reset.start_ns


def test_a_reset_by_another_thread_or_inside_a_phase_is_no_part_of_the_step(
    kit: Kit, follow: Follow
) -> None:
    optimizers: list[Any] = []

    def reset(x: Any) -> Any:
        kit.zero(optimizers[0])
        return x

    followed = follow()
    model = kit.model(reset)
    optimizers.append(kit.optimizer(model))
    for batch in kit.loader():
        kit.loss(model, batch).backward()
        optimizers[0].step()
        thread = threading.Thread(target=kit.zero, args=optimizers)
        thread.start()
        thread.join()
    followed.finish()
    assert followed.samples == SAMPLES
    assert followed.resets == []


def test_a_reset_that_raises_ends_its_span(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    for batch in kit.loader():
        kit.loss(model, batch).backward()
        optimizer.step()
        with pytest.raises(TypeError):
            getattr(optimizer, RESETS[kit.name])(no_such_option=True)
    followed.finish()
    assert followed.samples == SAMPLES
    assert {span.error for span in followed.resets} == {"TypeError"}


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "Adadelta"])
def test_an_optimizer_steps_once(kit: Kit, follow: Follow, kind: str) -> None:
    """Some call another's step."""
    followed = follow()
    model = kit.model()
    kit.train(model, kit.optimizer(model, kind), kit.loader())
    followed.finish()
    assert followed.samples == SAMPLES
    assert Counter(span.phase for span in followed.spans)["optimizer"] == len(SAMPLES)


def test_accumulated_batches_are_one_step(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    for number, batch in enumerate(kit.loader(count=32)):
        kit.loss(model, batch).backward()
        if number % 4 == 3:
            optimizer.step()
            kit.zero(optimizer)
    followed.finish()
    assert followed.samples == [16, 16]
    assert followed.phases(1) == ["data", "h2d", "forward", "backward"] * 4 + ["optimizer"]


def test_two_optimizers_share_a_step(kit: Kit, follow: Follow) -> None:
    followed = follow()
    judge, generator = kit.model(), _model_of(kit.base, lambda x: x * 2)
    optimizers = [kit.optimizer(judge), kit.optimizer(judge)]
    for batch in kit.loader():
        for optimizer, model in zip(
            optimizers, (judge, lambda x: judge(generator(x))), strict=True
        ):
            kit.loss(model, batch).backward()
            optimizer.step()
            kit.zero(optimizer)
    followed.finish()
    assert followed.samples == SAMPLES
    assert followed.phases(1) == [*LOADED_STEP, "forward", "forward", "backward", "optimizer"]


def test_several_forwards_are_one_step(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    for batch in kit.loader():
        (kit.loss(model, batch) + kit.loss(model, batch)).backward()
        optimizer.step()
        kit.zero(optimizer)
    followed.finish()
    assert followed.samples == SAMPLES
    assert followed.phases(2) == ["data", "h2d", "forward", "forward", "backward", "optimizer"]


def test_a_loop_without_a_loader_has_steps(kit: Kit, follow: Follow) -> None:
    batches = list(kit.loader())
    followed = follow()
    model = kit.model()
    kit.train(model, kit.optimizer(model), batches)
    followed.finish()
    assert [followed.phases(step) for step in range(3)] == [
        ["forward", "backward", "optimizer"]
    ] * 3


def test_evaluation_is_no_training(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    for batch in kit.loader():
        kit.train(model, optimizer, [batch])
        with kit.without_gradients():
            for held_out in kit.loader(count=6):
                kit.loss(model, held_out)
    followed.finish()
    assert followed.samples == SAMPLES
    trained = Counter(span.phase for span in followed.spans if span.depth == 0)
    assert trained["forward"] == len(SAMPLES)
    assert {span.name for span in followed.spans if span.phase == "other" and span.depth == 0} == {
        EVALUATION
    }
    assert trained["other"] >= 2 * len(SAMPLES) * 2, "a wait and a forward for each of two batches"


def test_a_checkpoint_is_no_training_and_the_batch_before_it_is(
    kit: Kit, follow: Follow, tmp_path: Path
) -> None:
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    for batch in kit.loader():
        kit.save(model, tmp_path / "before")
        kit.train(model, optimizer, [batch])
        kit.save(model, tmp_path / "after")
    followed.finish()
    assert followed.samples == SAMPLES
    checkpoints = [span for span in followed.spans if span.name == CHECKPOINT]
    assert [(span.step, span.phase, span.depth) for span in checkpoints] == [
        (step, "other", 0) for step in range(len(SAMPLES)) for _ in range(2)
    ]
    assert [followed.phases(step).count("data") for step in (1, 2)] == [1, 1]


def test_mixed_precision_is_told_where_it_changes(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = _model_of(kit.base, None)
    for enabled in (False, True, True, False):
        with kit.mixed_precision() if enabled else contextlib.nullcontext():
            model(BATCH)
    followed.finish()
    assert [
        value
        for _, source, metric, _, value in followed.readings
        if (source, metric) == ("framework", AUTOCAST)
    ] == [0.0, 1.0, 0.0]


@pytest.mark.filterwarnings(
    "ignore:To copy construct from a tensor:UserWarning"
)  # Paddle's LBFGS warns of itself
@pytest.mark.parametrize("loads", [True, False], ids=["with a loader", "without a loader"])
@pytest.mark.parametrize("measured", [True, False], ids=["measured", "switched off"])
def test_a_closure_is_evaluated_between_parts_of_the_optimizer(
    kit: Kit, follow: Follow, *, loads: bool, measured: bool
) -> None:
    batches = kit.loader() if loads else list(kit.loader())
    followed = follow(is_measured=lambda step: measured)
    model = kit.model()
    optimizer = kit.optimizer(model, "LBFGS", max_iter=2)
    evaluated: list[int] = []
    for batch in batches:

        def closure(batch: Any = batch) -> Any:
            kit.zero(optimizer)
            loss = kit.loss(model, batch)
            loss.backward()
            evaluated.append(now_ns())
            return loss

        optimizer.step(closure)
    followed.finish()
    assert followed.samples == (SAMPLES if loads else [0, 0, 0])
    assert followed.steps[-1].end_ns > evaluated[-1]
    phases = [phase for phase in followed.phases(1) if phase not in {"data", "h2d"}]
    assert phases[:4] == (["optimizer", "forward", "backward", "optimizer"] if measured else [])
    assert not measured or len(phases) == 1 + 3 * phases.count("forward")


@pytest.mark.parametrize("measured", [True, False], ids=["measured", "switched off"])
def test_an_optimizer_inside_another_is_a_part_of_it(
    kit: Kit, follow: Follow, *, measured: bool
) -> None:
    batches = list(kit.loader())
    followed = follow(is_measured=lambda step: measured)
    model = kit.model()
    inner = kit.optimizer(model)
    kit.train(model, kit.new_optimizer(model, inner.step), batches)
    followed.finish()
    assert len(followed.steps) == len(batches)
    assert followed.phases(1) == (["forward", "backward", "optimizer"] if measured else [])
    assert Counter(span.phase for span in followed.spans)["optimizer"] == (
        len(batches) if measured else 0
    )


# -- what goes wrong -------------------------------------------------------------------------------


def _fail(*args: object, **kwargs: object) -> None:
    raise ValueError("planted")


def _raise_once(error: Exception, at: int) -> Callable[[Any], Any]:
    calls: list[int] = []

    def forward(x: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            raise error
        return x

    return forward


def test_an_exception_in_forward_is_the_jobs(kit: Kit, follow: Follow) -> None:
    followed = follow()
    planted = ValueError("planted")
    model = kit.model(_raise_once(planted, at=2))
    optimizer = kit.optimizer(model)
    for number, batch in enumerate(kit.loader(count=16)):
        with (
            pytest.raises(ValueError, match="planted")
            if number == 1
            else contextlib.nullcontext() as raised
        ):
            kit.train(model, optimizer, [batch])
        assert raised is None or raised.value is planted
    followed.finish()
    assert [span.error for span in followed.spans if span.phase == "forward"] == [
        None,
        "ValueError",
        None,
        None,
    ]
    assert len(followed.steps) == 3
    assert followed.phases(2) == LOADED_STEP


def test_an_exception_in_backward_is_the_jobs(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    for batch in kit.loader():
        loss = kit.loss(model, batch)
        loss.backward()
        with pytest.raises((RuntimeError, SystemError)) as raised:
            loss.backward()  # its graph is gone
        optimizer.step()
        kit.zero(optimizer)
    followed.finish()
    assert [span.error for span in followed.spans if span.phase == "backward"] == [
        None,
        raised.type.__name__,
    ] * 3
    assert followed.phases(2) == ["data", "h2d", "forward", "backward", "backward", "optimizer"]


@pytest.mark.parametrize("loads", [True, False], ids=["with a loader", "without a loader"])
def test_an_exception_in_an_optimizer_is_the_jobs(kit: Kit, follow: Follow, *, loads: bool) -> None:
    batches = kit.loader() if loads else list(kit.loader())
    followed = follow()
    model = kit.model()
    failing, optimizer = kit.new_optimizer(model, _fail), kit.optimizer(model)
    for number, batch in enumerate(batches):
        with (
            pytest.raises(ValueError, match="planted") if number == 0 else contextlib.nullcontext()
        ):
            kit.train(model, failing if number == 0 else optimizer, [batch])
    followed.finish()
    known = "ValueError" if kit.name == "paddlepaddle" else UNKNOWN
    assert [span.error for span in followed.spans if span.phase == "optimizer"] == [
        known,
        None,
        None,
    ]
    assert not loads or [followed.phases(step) for step in (1, 2)] == [LOADED_STEP] * 2


def test_optimizers_may_be_exchanged(kit: Kit, follow: Follow) -> None:
    """A loop without a loader must not wait for one that is gone."""
    batches = list(kit.loader())
    followed = follow()
    model = kit.model()
    for _ in range(2):
        optimizer = kit.optimizer(model)
        for _ in range(10):
            kit.train(model, optimizer, batches)
    followed.finish()
    assert len(followed.steps) >= 2 * 10 * len(batches) - MOST_ROUNDS - 2


def test_another_threads_model_does_not_disturb(kit: Kit, follow: Follow) -> None:
    """One that reports before the loop that trains does, and goes on meanwhile."""
    other, ready, stop = kit.model(), threading.Event(), threading.Event()

    def serve() -> None:
        while not stop.is_set():
            for batch in kit.loader():
                kit.loss(other, batch)
                ready.set()
                stop.wait(0.001)

    followed = follow()
    model = kit.model()
    thread = threading.Thread(target=serve, name="server")
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        for _ in range(3):
            kit.train(model, kit.optimizer(model), kit.loader())
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    followed.finish()
    assert followed.samples == SAMPLES * 3
    assert followed.phases(1) == LOADED_STEP
    assert {span.thread for span in followed.spans if span.depth == 0} == {"MainThread"}


def test_the_thread_that_trains_may_be_another_than_the_main_one(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    thread = threading.Thread(
        target=kit.train, args=(model, kit.optimizer(model), kit.loader()), name="trainer"
    )
    thread.start()
    thread.join(PATIENCE_S)
    with kit.without_gradients():
        kit.loss(model, next(iter(kit.loader())))
    followed.finish()
    assert followed.samples == SAMPLES
    assert {span.thread for span in followed.spans if span.depth == 0} == {"trainer"}


# -- harmless --------------------------------------------------------------------------------------


def _losses(kit: Kit) -> list[float]:
    """A seeded job with all that a loop does: copies, two epochs, evaluation, two optimizers."""
    model = kit.model()
    optimizers = [kit.optimizer(model), kit.optimizer(model, "Adam")]
    losses = []
    for _ in range(2):
        for batch in kit.loader():
            for optimizer in optimizers:
                losses += kit.train(model, optimizer, [batch])
        with kit.without_gradients():
            losses += [float(kit.loss(model, batch).detach()) for batch in kit.loader(count=6)]
    return losses


def test_losses_are_equal_to_the_bit(kit: Kit, follow: Follow) -> None:
    bare = _losses(kit)
    followed = follow()
    assert _losses(kit) == bare
    followed.finish()
    assert len(followed.steps) == 6
    assert _losses(kit) == bare


@pytest.mark.parametrize(("kind", "method"), METHODS)
def test_a_fault_of_ours_does_not_reach_the_job(
    kit: Kit,
    follow: Follow,
    kind: type,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bare = _losses(kit)

    monkeypatch.setattr(kind, method, _fail)
    with caplog.at_level(logging.WARNING, logger="profkit"):
        followed = follow()
        assert _losses(kit) == bare
        followed.finish()
    told = Counter(
        record.getMessage().split(" failed ")[0].removeprefix("profkit: ")
        for record in caplog.records
    )
    assert told == dict.fromkeys(FAILURES, 1), "each site warns once"
    FAILURES.clear()


def test_undo_brings_every_attribute_back(
    kit: Kit, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = object()
    before: dict[tuple[int, str], tuple[Any, str, Any]] = {}
    replace = Patches.replace

    def note(self: Patches, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        before.setdefault((id(owner), name), (owner, name, vars(owner).get(name, missing)))
        replace(self, owner, name, wrap)

    monkeypatch.setattr(Patches, "replace", note)
    hooks = _registered_hooks(kit)
    followed = follow()
    model = kit.model()
    optimizer = kit.new_optimizer(model, _fail)
    own = type(optimizer).step
    assert len(before) >= 8
    assert all(vars(owner)[name] is not original for owner, name, original in before.values())
    followed.finish()
    assert [
        name
        for owner, name, original in before.values()
        if vars(owner).get(name, missing) is not original
    ] == []
    assert _registered_hooks(kit) == hooks
    with pytest.raises(ValueError, match="planted"):
        own(optimizer)


def _registered_hooks(kit: Kit) -> list[Any]:
    if kit.name != "pytorch":
        return []
    registry = importlib.import_module("torch.optim.optimizer")
    return [
        *registry._global_optimizer_pre_hooks.values(),
        *registry._global_optimizer_post_hooks.values(),
    ]


# -- mixed precision, compilers, workers -----------------------------------------------------------


def _scaled_step(kit: Kit, scaler: Any, optimizer: Any, how: str, scaled: Any) -> None:
    if how == "minimize":
        scaler.minimize(optimizer, scaled)
    else:
        scaler.step(optimizer)
        scaler.update()
    kit.zero(optimizer)


@pytest.mark.parametrize("how", ["step", "minimize"])
def test_a_step_that_the_scaler_skips_is_named(
    kit: Kit, follow: Follow, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "minimize" and kit.name == "pytorch":
        pytest.skip("torch's scaler has no minimize")
    followed = follow()
    model = kit.model()
    optimizer, scaler = kit.optimizer(model), kit.scaler(monkeypatch)
    losses = []
    for number, batch in enumerate(kit.loader()):
        loss = kit.loss(model, batch)
        scaled = scaler.scale(loss)
        scaled.backward()
        if number == 1:
            kit.overflow(model)
        _scaled_step(kit, scaler, optimizer, how, scaled)
        losses.append(float(loss.detach()))
    followed.finish()
    assert [span.name for span in followed.spans if span.phase == "optimizer"] == [
        "optimizer",
        SKIPPED_STEP,
        "optimizer",
    ]
    assert followed.samples == SAMPLES
    assert [step.grad_scale for step in followed.steps] == [8.0, 4.0, 4.0]
    assert [step.loss for step in followed.steps] == losses


def _calls(model: Any) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return model(x)

    return function


@pytest.mark.filterwarnings(
    "ignore:Tensor do not have 'place' interface:UserWarning"
)  # Paddle's compiler warns of itself
@pytest.mark.parametrize("what", ["model", "function"])
def test_a_compiled_model_keeps_one_graph(
    kit: Kit, follow: Follow, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = follow()
    graphs: list[str] = []
    model = kit.model()
    optimizer = kit.optimizer(model)
    compiled = kit.compile(model if what == "model" else _calls(model), graphs, monkeypatch)
    kit.train(compiled, optimizer, kit.loader(count=12))
    followed.finish()
    assert graphs == ["graph"]
    assert followed.samples == [4, 4, 4]
    expected = (
        LOADED_STEP if what == "model" else [phase for phase in LOADED_STEP if phase != "forward"]
    )
    assert followed.phases(2) == expected, "inside compiled code there is nothing to see"


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "new each epoch"])
def test_worker_processes_are_followed(kit: Kit, follow: Follow, *, persistent: bool) -> None:
    def train() -> list[float]:
        model = kit.model()
        optimizer = kit.optimizer(model)
        loader = kit.loader(num_workers=1, persistent_workers=persistent)
        return [loss for _ in range(2) for loss in kit.train(model, optimizer, loader)]

    bare = train()
    followed = follow()
    assert train() == bare
    followed.finish()
    assert followed.samples == SAMPLES * 2
    assert [step.epoch for step in followed.steps] == [0, 0, 0, 1, 1, 1]
    assert followed.phases(1) == LOADED_STEP
    assert {span.thread for span in followed.spans if span.depth == 0} == {"MainThread"}


# -- Paddle's reducer, from outside ----------------------------------------------------------------


@pytest.fixture(scope="module")
def reducer() -> Any:
    pytest.importorskip("paddle", reason="paddlepaddle is not installed")
    return importlib.import_module("profkit.instrument.frameworks.paddlepaddle.reducer")


@pytest.mark.parametrize(
    ("groups", "order", "launched"),
    [
        ([[0, 1], [2]], [0, 1, 2], [(0, 1), (1, 2)]),
        ([[0, 1], [2]], [2, 1, 0], [(0, 2), (1, 2)]),
        ([[0], [1, 2], [3]], [3, 0, 2, 1], [(0, 1), (1, 3), (2, 3)]),
        ([[0, 1], [2]], [1], [(0, 0), (1, 0)]),
        ([[0, 1], [2]], [], []),
    ],
    ids=[
        "in order",
        "a group waits for the one before",
        "interleaved",
        "unused parameters are ready at once",
        "nothing",
    ],
)
def test_groups_are_sent_in_their_order(
    reducer: Any, groups: list[list[int]], order: list[int], launched: list[tuple[int, int]]
) -> None:
    firings = [(parameter, 10 * at + 1, 10 * at + 2) for at, parameter in enumerate(order)]
    launches = list(reducer.replay(groups, firings))
    assert [(launch.group, (launch.start_ns - 1) // 10) for launch in launches] == launched
    last = {
        group: max(
            (10 * at + 1 for at, parameter in enumerate(order) if parameter in members), default=1
        )
        for group, members in enumerate(groups)
    }
    assert all(
        launch.ready_ns == last[launch.group] <= launch.start_ns < launch.end_ns
        for launch in launches
    )


def _exchange(
    reducer: Any, clock: FakeClock, backend: str
) -> tuple[Any, Recorder, dict[str, list[Row]]]:
    from profkit.instrument.buckets import BucketLog

    sink = MemorySink()
    recorder = Recorder(sink, clock=clock)
    log = BucketLog(recorder, sink.appender("collectives"), "group", 2, backend, clock=clock)
    groups = [reducer.Group((0, 1), 80, "float32"), reducer.Group((2,), 40, "float32")]
    return (
        reducer.Exchange(recorder, log, groups, blocking=backend == "gloo", clock=clock),
        recorder,
        sink.rows,
    )


def _backward(exchange: Any, clock: FakeClock, reduce: Callable[[int], None]) -> None:
    for parameter in range(3):
        clock.advance(1_000)
        exchange.before()
        reduce(parameter)
        exchange.after(parameter)
    exchange.settle()


def test_what_the_backward_waits_for_is_exposed(reducer: Any) -> None:
    clock = FakeClock()
    exchange, _, rows = _exchange(reducer, clock, "gloo")
    exchange.arm()
    _backward(exchange, clock, lambda parameter: clock.advance(100 * parameter))
    assert [(row[1], row[3], row[8] - row[7], row[11]) for row in rows["collectives"]] == [
        (0, 80, 100, 0),
        (1, 40, 200, 1),
    ]
    assert [
        (span.phase, span.end_ns - span.start_ns) for span in (Span(*row) for row in rows["spans"])
    ] == [("allreduce", 100), ("allreduce", 200)]


def test_without_synchronisation_there_are_no_rows(reducer: Any) -> None:
    clock = FakeClock()
    exchange, _, rows = _exchange(reducer, clock, "gloo")
    _backward(exchange, clock, lambda parameter: clock.advance(100))
    assert not rows["collectives"]
    assert not rows["spans"]


def test_the_device_tells_how_long_it_waited(reducer: Any) -> None:
    """The host only launches NCCL: the backward's stream waits for it at the last gradient."""
    clock = FakeClock()
    exchange, recorder, rows = _exchange(reducer, clock, "nccl")
    device = FakeDevice(clock)
    timer = DeviceTimer(device, rows["spans"].append, clock=clock)
    recorder.time_device(timer)
    timer.collect()
    exchange.arm()
    _backward(
        exchange, clock, lambda parameter: device.launch(5_000_000) if parameter == 2 else None
    )
    clock.advance(20_000_000)
    timer.collect()
    (exposed,) = (Span(*row) for row in rows["spans"])
    assert exposed.device_start_ns is not None
    assert exposed.device_end_ns is not None
    assert exposed.device_end_ns - exposed.device_start_ns == 5_000_000
    assert [(row[3], row[8] - exposed.device_end_ns) for row in rows["collectives"]] == [
        (80, 0),
        (40, 0),
    ]
