"""Uses of `paddle.DataParallel`; each case reports its exact results."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import pickle
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import numpy as np  # noqa: E402  # the frameworks warn as they are imported
import paddle  # noqa: E402
import paddle.distributed as dist  # noqa: E402
from paddle.distributed.fleet.utils import recompute  # noqa: E402
from paddle.distributed.fleet.utils.hybrid_parallel_util import (  # noqa: E402
    fused_allreduce_gradients,
)
from paddle.io import DataLoader, DistributedBatchSampler, TensorDataset  # noqa: E402

Told = dict[str, Any]
CASES: dict[str, Callable[[], Told]] = {}
STEPS = 6
SMALL: dict[str, Any] = {"comm_buffer_size": 1, "last_comm_buffer_size": 0.001}  # several buckets


def case(function: Callable[[], Told]) -> Callable[[], Told]:
    CASES[function.__name__] = function
    return function


class Net(paddle.nn.Layer):
    """Two linear layers with something between them that has buffers."""

    def __init__(self, *, recomputed: bool = False) -> None:
        super().__init__()
        self.first = paddle.nn.Linear(8, 32)
        self.norm = paddle.nn.BatchNorm1D(32)
        self.last = paddle.nn.Linear(32, 4)
        self.recomputed = recomputed

    def forward(self, inputs: Any) -> Any:
        front = self._front
        return self.last(recompute(front, inputs) if self.recomputed else front(inputs))

    def _front(self, inputs: Any) -> Any:
        return paddle.nn.functional.relu(self.norm(self.first(inputs)))


class Branches(paddle.nn.Layer):
    """Only one of two branches is used in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.even = paddle.nn.Linear(8, 4)
        self.odd = paddle.nn.Linear(8, 4)
        self.never = paddle.nn.Linear(8, 4)
        self.calls = 0

    def forward(self, inputs: Any) -> Any:
        self.calls += 1
        return self.odd(inputs) if self.calls % 2 else self.even(inputs)


class Fails(Net):
    """Its third forward fails on every rank."""

    calls = 0

    def forward(self, inputs: Any) -> Any:
        self.calls += 1
        if self.calls == 3:
            raise ValueError("the model's own error")
        return super().forward(inputs)


def _batches(count: int = STEPS) -> Iterable[tuple[Any, Any]]:
    """Seeded batches, others on each rank."""
    random = np.random.default_rng(100 + dist.get_rank())
    for _ in range(count):
        inputs = random.standard_normal((6, 8)).astype("float32")
        labels = random.integers(0, 4, (6, 1))
        yield paddle.to_tensor(inputs), paddle.to_tensor(labels)


def _loss(model: Any, inputs: Any, labels: Any) -> Any:
    return paddle.nn.functional.cross_entropy(model(inputs), labels)


def _momentum(model: Any, **more: Any) -> Any:
    return paddle.optimizer.Momentum(0.05, parameters=model.parameters(), **more)


def _train(model: Any, optimizer: Any, count: int = STEPS) -> list[str]:
    losses = []
    for inputs, labels in _batches(count):
        loss = _loss(model, inputs, labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return _exact(losses)


def _exact(values: Iterable[float]) -> list[str]:
    return [float(value).hex() for value in values]


def _weights(*models: Any) -> str:
    digest = hashlib.sha256()
    for model in models:
        for name, value in model.state_dict().items():
            digest.update(name.encode())
            digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def _told(losses: list[str], *models: Any, **more: Any) -> Told:
    return {"weights": _weights(*models), "losses": losses, **more}


def _trained(model: Any) -> list[Any]:
    return [part for part in model.parameters() if not part.stop_gradient]


def _new(layers: type[Any] = Net, **how: Any) -> Any:
    return paddle.DataParallel(layers(), **{**SMALL, **how})


@case
def plain() -> Told:
    model = _new()
    return _told(_train(model, _momentum(model)), model)


@case
def one_bucket() -> Told:
    model = paddle.DataParallel(Net())
    return _told(_train(model, _momentum(model)), model)


@case
def no_sync() -> Told:
    """Half of the backward passes stay on their rank."""
    model = _new()
    optimizer = _momentum(model)
    losses = []
    for number, (inputs, labels) in enumerate(_batches()):
        with contextlib.nullcontext() if number % 2 else model.no_sync():
            loss = _loss(model, inputs, labels)
            loss.backward()
        losses.append(float(loss))
        if number % 2:
            optimizer.step()
            optimizer.clear_grad()
    return _told(_exact(losses), model)


@case
def no_sync_and_an_exchange_of_ones_own() -> Told:
    """The recipe of Paddle's documentation for PyLayer and recompute."""
    model = _new()
    optimizer = _momentum(model)
    losses = []
    for inputs, labels in _batches():
        with model.no_sync():
            loss = _loss(model, inputs, labels)
            loss.backward()
        fused_allreduce_gradients(list(model.parameters()), None)
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return _told(_exact(losses), model)


@case
def no_sync_is_left_by_an_exception() -> Told:
    model = _new()
    with contextlib.suppress(KeyError), model.no_sync():
        raise KeyError("in the block")
    return _told(_train(model, _momentum(model)), model, needs_sync=model.grad_need_sync)


@case
def find_unused_parameters() -> Told:
    model = _new(Branches, find_unused_parameters=True)
    return _told(_train(model, _momentum(model)), model)


@case
def gradient_clipping() -> Told:
    model = _new()
    clip = paddle.nn.ClipGradByGlobalNorm(0.1)
    return _told(_train(model, _momentum(model, grad_clip=clip)), model)


@case
def clipping_by_hand() -> Told:
    model = _new()
    optimizer = _momentum(model)
    norms = []
    for inputs, labels in _batches():
        _loss(model, inputs, labels).backward()
        total = paddle.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        norms.append(float(total))
        optimizer.step()
        optimizer.clear_grad()
    return _told(_exact(norms), model)


@case
def accumulation() -> Told:
    """Every backward exchanges; the gradients add up."""
    model = _new()
    optimizer = _momentum(model)
    losses = []
    for number, (inputs, labels) in enumerate(_batches()):
        loss = _loss(model, inputs, labels) / 3
        loss.backward()
        losses.append(float(loss))
        if number % 3 == 2:
            optimizer.step()
            optimizer.clear_grad()
    return _told(_exact(losses), model)


@case
def several_losses() -> Told:
    """Two forward passes before one backward."""
    model = _new()
    optimizer = _momentum(model)
    losses = []
    for inputs, labels in _batches():
        loss = _loss(model, inputs, labels) + _loss(model, inputs * 2, labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return _told(_exact(losses), model)


@case
def gradients_as_they_are() -> Told:
    """Report the content of `grad` after each backward."""
    model = _new()
    optimizer = _momentum(model)
    digest = hashlib.sha256()
    for inputs, labels in _batches():
        _loss(model, inputs, labels).backward()
        for part in _trained(model):
            digest.update(part.grad.numpy().tobytes())
        optimizer.step()
        optimizer.clear_grad()
    return _told([], model, gradients=digest.hexdigest())


@case
def gradients_by_paddle_grad() -> Told:
    """Gradients asked of the engine, without the exchange."""
    model = _new()
    digest = hashlib.sha256()
    for inputs, labels in _batches(2):
        loss = _loss(model, inputs, labels)
        for part in paddle.grad(loss, _trained(model)):
            digest.update(part.numpy().tobytes())
    return _told(_train(model, _momentum(model)), model, gradients=digest.hexdigest())


@case
def deepcopy_before_training() -> Told:
    model = _new()
    second = copy.deepcopy(model)
    return _told(_train(second, _momentum(second)), second, model)


@case
def deepcopy_after_training() -> Told:
    model = _new()
    losses = _train(model, _momentum(model), 3)
    second = copy.deepcopy(model)
    same = _weights(second) == _weights(model)
    return _told([*losses, *_train(second, _momentum(second), 3)], second, model, same=same)


@case
def pickle_of_the_wrapper() -> Told:
    model = _new()
    _train(model, _momentum(model), 2)
    return {"length": len(pickle.dumps(model)) > 0}


@case
def pickle_of_the_state() -> Told:
    model = _new()
    losses = _train(model, _momentum(model))
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    content = pickle.dumps(state)
    other = _new()
    other.set_state_dict(pickle.loads(content))
    return _told(losses, model, other, content=hashlib.sha256(content).hexdigest())


@case
def save_and_load() -> Told:
    model = _new()
    optimizer = _momentum(model)
    losses = _train(model, optimizer, 3)
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("model.pdparams", "opt.pdopt")]
        paddle.save(model.state_dict(), paths[0])
        paddle.save(optimizer.state_dict(), paths[1])
        sizes = [os.path.getsize(path) for path in paths]
        other = _new()
        other.set_state_dict(paddle.load(paths[0]))
        optimizer.set_state_dict(paddle.load(paths[1]))
    losses += _train(model, optimizer, 3)
    return _told(losses, model, other, sizes=sizes, names=sorted(other.state_dict()))


@case
def save_to_memory() -> Told:
    model = _new()
    losses = _train(model, _momentum(model))
    content = io.BytesIO()
    paddle.save(model.state_dict(), content)
    return _told(losses, model, content=hashlib.sha256(content.getvalue()).hexdigest())


@case
def average_of_weights() -> Told:
    """A copy of the inner layers follows those that train."""
    model = _new()
    average = copy.deepcopy(model._layers)
    average.eval()
    optimizer = _momentum(model)
    losses = []
    for inputs, labels in _batches():
        loss = _loss(model, inputs, labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        with paddle.no_grad():
            pairs = zip(average.parameters(), model.parameters(), strict=True)
            for old, new in pairs:
                old.set_value(old * 0.9 + new * 0.1)
            losses.append(float(_loss(average, inputs, labels)))
    return _told(_exact(losses), average, model)


@case
def deepcopy_of_the_inner_layers_while_training() -> Told:
    model = _new()
    optimizer = _momentum(model)
    losses = []
    best: list[Any] = []
    for _ in range(3):
        losses += _train(model, optimizer, 2)
        best.append(copy.deepcopy(model._layers))
    return _told(losses, *best, model)


@case
def several_modules() -> Told:
    """Two wrappers with an optimizer each, as in adversarial training."""
    models = [_new(), _new(Branches, find_unused_parameters=True)]
    optimizers = [_momentum(model) for model in models]
    losses = []
    for inputs, labels in _batches():
        for model, optimizer in zip(models, optimizers, strict=True):
            loss = _loss(model, inputs, labels)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses.append(float(loss))
    return _told(_exact(losses), *models)


@case
def modules_in_a_row() -> Told:
    """One wrapper's output is another's input."""
    front = paddle.DataParallel(paddle.nn.Linear(8, 8), **SMALL)
    back = _new()
    parameters = [*front.parameters(), *back.parameters()]
    optimizer = paddle.optimizer.Adam(0.01, parameters=parameters)
    losses = []
    for inputs, labels in _batches():
        loss = _loss(back, front(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return _told(_exact(losses), front, back)


@case
def group_of_its_own() -> Told:
    """On two ranks alone: with three, gloo's rendezvous for a second group fails at times."""
    if dist.get_world_size() > 2:
        return {"group": "not made"}
    group = dist.new_group([0, 1])
    model = _new(group=group)
    return _told(_train(model, _momentum(model)), model, ranks=group.ranks)


@case
def a_copy_wrapped_anew() -> Told:
    """A copy of the inner layers moves on into a second wrapper."""
    first = _new()
    losses = _train(first, _momentum(first), 3)
    second = paddle.DataParallel(copy.deepcopy(first._layers), **SMALL)
    losses += _train(second, _momentum(second), 3)
    return _told(losses, second, first)


@case
def inner_layers_alone_afterwards() -> Told:
    """After the wrapped training the layers train by themselves."""
    model = _new()
    losses = _train(model, _momentum(model), 3)
    losses += _train(model._layers, _momentum(model._layers), 3)
    return _told(losses, model)


@case
def hooks_on_parameters() -> Told:
    """A hook of the user's own, before and one after the wrapping."""
    inner = Net()
    seen: list[float] = []

    def double(gradient: Any) -> Any:
        seen.append(float(gradient.sum()))
        return gradient * 2

    inner.first.weight.register_hook(double)
    model = paddle.DataParallel(inner, **SMALL)
    late = model._layers.last.weight.register_hook(double)
    losses = _train(model, _momentum(model), 3)
    removed = late.remove()
    losses += _train(model, _momentum(model), 3)
    return _told(losses, model, seen=_exact(seen), removed=removed)


@case
def hooks_on_layers() -> Told:
    """Forward hooks of the user's own are called in their order, as often as they would."""
    model = _new()
    order: list[str] = []
    inner = model._layers
    handles = [
        model.register_forward_pre_hook(lambda *_: order.append("before the wrapper")),
        inner.register_forward_pre_hook(lambda *_: order.append("before the layers")),
        inner.register_forward_post_hook(lambda *_: order.append("after the layers")),
        model.register_forward_post_hook(lambda *_: order.append("after the wrapper")),
    ]
    losses = _train(model, _momentum(model), 2)
    for handle in handles:
        handle.remove()
    losses += _train(model, _momentum(model), 1)
    return _told(losses, model, order=order)


@case
def attributes() -> Told:
    """Report the content of the wrapper, its layers and their classes after training."""
    model = _new()
    losses = _train(model, _momentum(model))
    inner = model._layers
    return _told(
        losses,
        model,
        wrapper=sorted(vars(model)),
        layers=sorted(vars(inner)),
        linear=sorted(vars(inner.first)),
        classes=[kind.__qualname__ for kind in type(model).__mro__],
        own_class=type(model) is paddle.DataParallel,
        members=sorted(vars(paddle.DataParallel)),
        parameters=[name for name, _ in model.named_parameters()],
        sublayers=[name for name, _ in model.named_sublayers()],
        name=type(model).forward.__qualname__,
    )


@case
def names_of_parameters() -> Told:
    """Paddle numbers all layers of a process; a layer more would shift them."""
    model = Net()
    names = [part.name for part in model.parameters()]
    return {"names": names, "wrapper": _new().full_name()}


@case
def recomputed_layers() -> Told:
    """Reentrant recompute under the wrapper, with its own exchange."""
    model = paddle.DataParallel(Net(recomputed=True), **SMALL)
    optimizer = _momentum(model)
    losses = []
    for inputs, labels in _batches():
        inputs.stop_gradient = False
        with model.no_sync():
            loss = _loss(model, inputs, labels)
            loss.backward()
        fused_allreduce_gradients(list(model.parameters()), None)
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return _told(_exact(losses), model)


@case
def recompute_without_reentry() -> Told:
    model = _new()
    inner = model._layers

    def forward(inputs: Any) -> Any:
        inputs.stop_gradient = False
        return inner.last(recompute(inner._front, inputs, use_reentrant=False))

    inner.forward = forward
    return _told(_train(model, _momentum(model)), model)


@case
def mixed_precision() -> Told:
    """Automatic casts with a scaler."""
    model = _new()
    optimizer = _momentum(model)
    scaler = paddle.amp.GradScaler(init_loss_scaling=64.0)
    losses = []
    for inputs, labels in _batches():
        with paddle.amp.auto_cast(level="O1", dtype="bfloat16"):
            loss = _loss(model, inputs, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
        losses.append(float(loss))
    return _told(_exact(losses), model)


@case
def scheduler_and_minimize() -> Told:
    """The older way to step, with a rate that changes."""
    model = _new()
    rate = paddle.optimizer.lr.StepDecay(0.05, step_size=2)
    optimizer = paddle.optimizer.Adam(rate, parameters=model.parameters())
    losses = []
    for inputs, labels in _batches():
        loss = _loss(model, inputs, labels)
        loss.backward()
        optimizer.minimize(loss)
        rate.step()
        model.clear_gradients()
        losses.append(float(loss))
    return _told(_exact([*losses, optimizer.get_lr()]), model)


@case
def frozen_parameters() -> Told:
    inner = Net()
    inner.first.weight.stop_gradient = True
    model = paddle.DataParallel(inner, **SMALL)
    return _told(_train(model, _momentum(model)), model)


@case
def evaluation_between() -> Told:
    model = _new()
    optimizer = _momentum(model)
    losses = []
    for _ in range(2):
        losses += _train(model, optimizer, 3)
        model.eval()
        with paddle.no_grad():
            values = [float(_loss(model, *batch)) for batch in _batches(2)]
        losses += _exact(values)
        model.train()
    return _told(losses, model)


@case
def loader_with_a_sampler() -> Told:
    paddle.seed(1)
    data = TensorDataset([paddle.randn([48, 8]), paddle.randint(0, 4, [48, 1])])
    sampler = DistributedBatchSampler(data, batch_size=4, shuffle=True)
    model = _new()
    optimizer = _momentum(model)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in DataLoader(data, batch_sampler=sampler):
            loss = _loss(model, inputs, labels)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses.append(float(loss))
    return _told(_exact(losses), model)


@case
def collectives_between() -> Told:
    """The job's own exchanges, synchronous and not, between those of the wrapper."""
    model = _new()
    optimizer = _momentum(model)
    values = []
    for inputs, labels in _batches():
        loss = _loss(model, inputs, labels)
        loss.backward()
        mean = loss.detach().clone().reshape([1])
        work = dist.all_reduce(mean, sync_op=False)
        if work is not None:
            work.wait()
        gathered: list[Any] = []
        dist.all_gather(gathered, mean)
        values.append(sum(one.item() for one in gathered))
        optimizer.step()
        optimizer.clear_grad()
    dist.barrier()
    return _told(_exact(values), model)


@case
def exception_in_a_forward() -> Told:
    """The job catches it and goes on with the next batch."""
    model = _new(Fails)
    optimizer = _momentum(model)
    said = []
    for inputs, labels in _batches():
        try:
            loss = _loss(model, inputs, labels)
        except ValueError as error:
            said.append(repr(error))
            said.append(str(_depth(error)))
            continue
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        said.append(float(loss).hex())
    return _told(said, model)


def _depth(error: BaseException) -> int:
    """Return the number of its frames that are the job's own."""
    place = error.__traceback__
    count = 0
    while place is not None:
        count += place.tb_frame.f_code.co_filename == __file__
        place = place.tb_next
    return count


@case
def exception_after_a_backward() -> Told:
    """A step that is given up has its gradients cleared."""
    model = _new()
    optimizer = _momentum(model)
    losses = []
    for number, (inputs, labels) in enumerate(_batches()):
        try:
            loss = _loss(model, inputs, labels)
            loss.backward()
            _give_up(number)
            optimizer.step()
        except RuntimeError as error:
            losses.append(str(error))
        else:
            losses.append(float(loss).hex())
        finally:
            optimizer.clear_grad()
    return _told(losses, model)


def _give_up(number: int) -> None:
    if number == 2:
        raise RuntimeError("given up")


@case
def wrong_shape() -> Told:
    """The framework's own error, in its words."""
    model = _new()
    return _told([str(model(paddle.zeros([2, 7])).shape)], model)


@case
def wrong_layers() -> Told:
    """The wrapper's own error, in its words."""
    paddle.DataParallel(paddle.nn.ReLU())
    return {}


@case
def random_numbers() -> Told:
    """Nobody else draws from the generators of Paddle and NumPy."""
    paddle.seed(5)
    np.random.seed(5)  # noqa: NPY002  # the global generator is the matter
    model = _new()
    losses = _train(model, _momentum(model))
    drawn = paddle.randn([3]).numpy().tolist()
    drawn += np.random.random(3).tolist()  # noqa: NPY002  # as above
    return _told(losses, model, drawn=_exact(drawn))


@case
def zz_destroyed() -> Told:
    """The last case: without its group the job trains alone."""
    model = _new()
    losses = _train(model, _momentum(model), 2)
    dist.destroy_process_group()
    return _told(losses, model, initialised=dist.is_initialized())


def _outcome(function: Callable[[], Told]) -> Told:
    paddle.seed(0)
    try:
        return function()
    except Exception as error:  # noqa: BLE001  # the error is what the case tells
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        first = re.sub(r"0x[0-9a-f]+", "0x", lines[0] if lines else "")
        return {"error": type(error).__name__, "line": first}


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_parallel_env()
    told: dict[str, Told] = {}
    for name in [*sys.argv[2:]] or CASES:
        told[name] = _outcome(CASES[name])
        path = folder / f"rank{dist.get_rank()}.json"
        path.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
